"""`traces relabel`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from task_app.cli.common import DEFAULT_DB, Db, Json

__all__ = ["relabel"]


def relabel(
    teacher: Annotated[str, typer.Option(help="Scripted player that is asked: expert, or another of the app's.")],
    output: Annotated[Path, typer.Option(help="JSONL file to write, one row a decision.")],
    db: Db = DEFAULT_DB,
    run_id: Annotated[str | None, typer.Option(help="Only this run's episodes.")] = None,
    as_json: Json = False,
) -> None:
    """Ask a teacher what it would have done in every state of the stored episodes; rows for `train --type sft`."""
    from task_app.cli.output import console, print_json
    from task_app.relabel import relabel_database

    done = relabel_database(db, teacher, output, run_id=run_id)
    if as_json:
        print_json(done.to_json())
        return
    console.print(f"{done.rows} rows of {done.episodes} episodes in {done.output}; {teacher} agreed in {done.agreed}")
