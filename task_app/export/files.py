"""Where an export may be written, and writing it whole or not at all. What the files hold is decided elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from task_app.core.errors import ConfigError, TaskAppError
from task_app.store.files import made_beside

__all__ = ["ExportError", "check_output", "replacing"]


class ExportError(TaskAppError):
    """Nothing was exported, and why; no file was changed."""


def check_output(path: Path, database: Path) -> None:
    """Raise ConfigError when `path` is no place for a file of ours: a folder, a device, or the database itself."""
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; name a file in it", field="output")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--output {path}: is no ordinary file", field="output")
    own = {Path(f"{database.resolve()}{end}") for end in ("", "-wal", "-shm")}
    if path.resolve() in own:
        raise ConfigError(f"--output {path}: is the trace database itself", field="output")


@contextmanager
def replacing(paths: Sequence[Path]) -> Iterator[list[BinaryIO]]:
    """Files to write, which take the places of `paths` when the block ends well; folders are made.

    A block that raises leaves everything as it was. A link keeps pointing where it did: its target is
    replaced. Raises ConfigError when a file cannot be made, written or put in its place.
    """
    with ExitStack() as stack:
        besides = [stack.enter_context(made_beside(path.resolve(), replace=True)) for path in paths]
        yield [stack.enter_context(beside.open("wb")) for beside in besides]
