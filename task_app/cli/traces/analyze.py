"""`traces analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from task_app.cli.common import DEFAULT_DB, ConfigFile, Db, Json, config_from

__all__ = ["analyze"]


def analyze(
    ctx: typer.Context,
    db: Db = DEFAULT_DB,
    run_id: Annotated[list[str] | None, typer.Option("--run-id", help="Only this run; may be repeated.")] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", help="Two players, as `policy:model`, policy or model; `@version` for one version."),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write one self-contained page.")] = None,
    as_json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Sum up a database: players, achievements, rewards by turn, costs, a comparison, and what to be wary of.

    Costs need `[prices]` in the TOML of --config.
    """
    from task_app.analyze.database import analyze_database
    from task_app.analyze.database_tables import caution_lines, heading, report_tables
    from task_app.cli.output import console, print_json, print_table
    from task_app.store import TraceStore

    prices = config_from(ctx, config, {}).prices
    with TraceStore.open(db, create=False, read_only=True) as store:
        report = analyze_database(store, run_ids=run_id or None, prices=prices, compare=compare)
    if html is not None:
        from task_app.analyze.database_report import write_database_report

        write_database_report(html, report)
    if as_json:
        print_json(report.to_json())
        return
    console.print(heading(report), soft_wrap=True)
    for line in caution_lines((*report.warnings, *report.notes)):
        console.print(line, soft_wrap=True)
    for table in report_tables(report):
        console.print()
        print_table(table.title, table.columns, table.rows)
        if table.note:
            console.print(table.note, style="dim", soft_wrap=True)
    if html is not None:
        console.print(f"\n{html}", soft_wrap=True)
