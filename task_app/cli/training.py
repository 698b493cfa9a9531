"""`train` and `demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from task_app.cli.common import CONTEXT, ConfigFile, config_from

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("train", context_settings=CONTEXT)(train)
    app.command("demo")(demo)


def train(
    ctx: typer.Context,
    config: ConfigFile = None,
    kind: Annotated[str, typer.Option("--type", help="rl: GRPO from event-level step rewards.")] = "rl",
) -> None:
    """Train a policy by a TOML file; the same command again resumes an interrupted run."""
    raise NotImplementedError


def demo(
    port: Annotated[int, typer.Option(help="Port the task app is served on.")] = 8010,
) -> None:
    """Everything once, in a few minutes: serve, roll out over HTTP, collect, train, evaluate, report."""
    raise NotImplementedError
