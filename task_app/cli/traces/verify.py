"""`traces verify`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from task_app.cli.common import DEFAULT_DB, Db, Json

__all__ = ["verify"]

_SHOWN = 20
"""Failing episodes that get a line; the others are counted (`--json` has them all)."""


def verify(
    db: Db = DEFAULT_DB,
    run_id: Annotated[str | None, typer.Option(help="Only this run's episodes.")] = None,
    episode: Annotated[str | None, typer.Option(help="Only this episode: its id, or the beginning of it.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    as_json: Json = False,
) -> None:
    """Play every stored episode again and compare: a count per verdict, a line per failing episode.

    Exit code 0 only when all pass.
    """
    from task_app.cli.output import console, print_json, print_table, progress_bar
    from task_app.verify import verify_database

    report = verify_database(
        db, run_id=run_id, episode_id=episode, workers=workers, progress=lambda total: progress_bar("verify", total)
    )
    if as_json:
        print_json(report.to_json())
    else:
        print_table(f"{report.episodes} episodes in {db}", ("verdict", "episodes", "meaning"), report.table())
        for failed in report.failed[:_SHOWN]:
            console.print(failed.line(), markup=False, soft_wrap=True)
        if len(report.failed) > _SHOWN:
            console.print(f"… and {len(report.failed) - _SHOWN} more (--json lists them all)")
        console.print(report.conclusion())
    if not report.passed:
        sys.exit(1)
