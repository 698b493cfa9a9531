"""What a folder offers to a command that was not told: config files with their kind, and `.env` files.

Reads files, asks nobody and chooses nothing; the environment of the process is neither read nor changed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from task_app.core.errors import ConfigError

__all__ = ["FoundConfig", "find_configs", "find_env_files", "read_env_file"]

_NO_SECRETS = ("example", "sample", "template", "dist")
"""Endings of `.env` files that only show which variables there are."""


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """One TOML file. `kind` is its `type`, "rl" where it has none, or "?" for a file that cannot be read."""

    path: Path
    kind: str


def find_configs(root: Path = Path(), kinds: Iterable[str] = ()) -> list[FoundConfig]:
    """The config files in `root` and, at any depth, in its `configs` folder, in order of their paths.

    With `kinds` only those. Other TOML files of a project (pyproject.toml) are no config files and are left out.
    """
    inside = [*root.glob("*.toml"), *(root / "configs").rglob("*.toml")]
    found = [FoundConfig(path, _kind(path)) for path in sorted(inside) if path.name != "pyproject.toml"]
    wanted = set(kinds)
    return [one for one in found if not wanted or one.kind in wanted]


def _kind(path: Path) -> str:
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "?"
    job = document.get("job")
    named = document.get("type", job.get("type") if isinstance(job, dict) else None)
    return named if isinstance(named, str) else "rl"


def find_env_files(root: Path = Path()) -> list[Path]:
    """`.env`, `.env.*` and `*.env` in `root`, in order of their names; templates of such files are left out."""
    found = {path for pattern in (".env", ".env.*", "*.env") for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if path.suffix.removeprefix(".") not in _NO_SECRETS)


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of a `.env` file as they are written; `$` stands for itself.

    Raises ConfigError for a file that is missing or unreadable and for a line that sets nothing. No error holds a
    value: it may be a secret.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            lines = list(parse_stream(stream))
    except FileNotFoundError as error:
        raise ConfigError(f"env file {path} does not exist", field="env_file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"env file {path} cannot be read ({type(error).__name__})", field="env_file") from error
    variables: dict[str, str] = {}
    for line in lines:
        if line.error or (line.key is not None and line.value is None):
            sentence = f"env file {path}, line {line.original.line}: a line is written NAME=value"
            raise ConfigError(sentence, field="env_file")
        if line.key is not None:
            variables[line.key] = line.value or ""
    return variables
