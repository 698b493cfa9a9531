"""`task-app traces …`: looking at, checking and reshaping trace databases. One module a command or two.

analyze.py  a whole database in numbers
export.py   episodes worth imitating as SFT data
show.py     a row per decision of one episode
view.py     the same in a browser
verify.py   every episode played again and compared
maintain.py merge, prune, schema, datasette
relabel.py  what a teacher would have done in its states
"""

from __future__ import annotations

import typer

from task_app.cli.common import CONTEXT, CommandGroup
from task_app.cli.traces import analyze, export, maintain, relabel, show, verify, view

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    traces = typer.Typer(
        help="Look at, check and reshape trace databases.",
        cls=CommandGroup,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    traces.command("analyze", context_settings=CONTEXT)(analyze.analyze)
    traces.command("export-sft")(export.export_sft)
    traces.command("show")(show.show)
    traces.command("view")(view.view)
    traces.command("verify")(verify.verify)
    traces.command("merge")(maintain.merge)
    traces.command("prune")(maintain.prune)
    traces.command("schema")(maintain.schema)
    traces.command("datasette")(maintain.datasette)
    traces.command("relabel")(relabel.relabel)
    app.add_typer(traces, name="traces")
