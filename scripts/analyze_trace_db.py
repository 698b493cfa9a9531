"""Sum up a trace database: `task-app traces analyze` under the name older notes use, with the same flags.

    python scripts/analyze_trace_db.py --db traces/task_app.db

A thin entry point: `task_app.analyze.database.analyze_database` does the work.
"""

from __future__ import annotations

import typer

from task_app.cli.common import CONTEXT, run_guarded
from task_app.cli.traces.analyze import analyze


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(context_settings=CONTEXT)(analyze)
    app()


if __name__ == "__main__":
    run_guarded(main)
