"""`task-app checkpoint …`: what is done with the weights of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from task_app.cli.common import CommandGroup
from task_app.core.imports import extra_imports

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    checkpoints = typer.Typer(
        help="Hand trained weights on.", cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None
    )
    checkpoints.command("export")(export)
    # A group of one command would otherwise be that command.
    checkpoints.callback()(lambda: None)
    app.add_typer(checkpoints, name="checkpoint")


def export(
    run: Annotated[Path, typer.Argument(help="Run folder (its best checkpoint, else its latest) or a checkpoint.")],
    output: Annotated[Path, typer.Option(help="Folder to write; it must not exist or be empty.")],
    merge: Annotated[bool, typer.Option("--merge", help="Add LoRA adapters into whole weights.")] = False,
) -> None:
    """Write a plain Hugging Face folder: weights, or adapters, and tokenizer."""
    from task_app.cli.output import console

    with extra_imports("train"):
        from task_app.train.export import export_checkpoint

    checkpoint = export_checkpoint(run, output, merge=merge)
    console.print(f"{checkpoint} is in {output}")
