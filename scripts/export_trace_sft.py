"""Write episodes worth imitating as SFT data; `task-app traces export-sft` under its older name, same flags.

    python scripts/export_trace_sft.py --db traces/task_app.db --output traces/sft.jsonl --min-unique 3

A thin entry point: `task_app.export.export_sft` does the work.
"""

from __future__ import annotations

import typer

from task_app.cli.common import run_guarded
from task_app.cli.traces.export import export_sft


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(export_sft)
    app()


if __name__ == "__main__":
    run_guarded(main)
