"""`task-app traces …`: looking at, checking and reshaping trace databases. One module a command or two.

show.py     a row per decision of one episode
relabel.py  what a teacher would have done in its states
"""

from __future__ import annotations

import typer

from task_app.cli.common import CommandGroup
from task_app.cli.traces import relabel, show

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    traces = typer.Typer(
        help="Look at, check and reshape trace databases.",
        cls=CommandGroup,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    traces.command("show")(show.show)
    traces.command("relabel")(relabel.relabel)
    app.add_typer(traces, name="traces")
