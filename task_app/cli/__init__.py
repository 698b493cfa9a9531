"""`task-app`: a command loads its config, calls one library function and prints. No logic lives here.

Nothing but Typer is imported until a command runs, so that `--help` answers at once.

    common.py    options and overrides every command shares, the error boundary
    output.py    tables and progress bars
    serving.py   list, info, serve
    rollouts.py  rollout, eval, collect
    traces/      traces show, …
    training.py  train, demo; live.py shows a run on a terminal
    checkpoints.py  checkpoint export
    jobs.py      jobs serve; train with a backend
    deploying.py  deploy, modal-serve
"""

from __future__ import annotations

import typer

from task_app.cli import checkpoints, deploying, jobs, rollouts, serving, traces, training
from task_app.cli.common import CommandGroup, run_guarded

__all__ = ["app", "main"]

app = typer.Typer(
    name="task-app",
    cls=CommandGroup,
    help="Serve, roll out and train a Crafter-style task app with event-level step rewards.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
serving.add_to(app)
rollouts.add_to(app)
traces.add_to(app)
training.add_to(app)
checkpoints.add_to(app)
jobs.add_to(app)
deploying.add_to(app)


def main() -> None:
    """The console command. Exit codes: 0 done, 1 failed, 2 a wrong setting, 130 interrupted."""
    run_guarded(app)
