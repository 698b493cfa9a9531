"""Options and overrides every command shares, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from task_app.core.names import did_you_mean

if TYPE_CHECKING:
    from task_app.config import Config

__all__ = [
    "CONTEXT",
    "DEFAULT_DB",
    "CommandGroup",
    "ConfigFile",
    "Db",
    "Json",
    "config_from",
    "overrides_from",
    "run_guarded",
]

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Lets a command take `--section.key=value` overrides; anything else left over is refused by name."""

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file; without one, defaults.")]
DEFAULT_DB = Path("traces/task_app.db")
Db = Annotated[Path, typer.Option("--db", help="Trace database.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


class CommandGroup(TyperGroup):
    """Names the nearest command when one is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self.commands) or f" (commands: {', '.join(self.commands)})"
            ctx.fail(f"unknown command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)


def config_from(ctx: typer.Context, path: Path | None, options: Mapping[str, Any]) -> Config:
    """The config of a command: file, then `--section.key=value` overrides, then the command's own options.

    `options` are dotted keys; those that are None were not given.
    """
    from task_app.config import load_config

    return load_config(path, overrides_from(ctx, options))


def overrides_from(ctx: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a command was told besides its file: `--section.key=value`, and over that its own options."""
    from task_app.config import parse_overrides

    return parse_overrides(ctx.args) | {key: value for key, value in options.items() if value is not None}


def run_guarded(command: Callable[[], Any]) -> None:
    """Run a command; print errors raised on purpose as one sentence and turn them into exit codes."""
    from task_app.core.errors import ConfigError, TaskAppError

    try:
        command()
    except ConfigError as error:
        _fail(str(error), 2)
    except TaskAppError as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, EOFError):
        _fail("interrupted; what was recorded is kept", 130)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
