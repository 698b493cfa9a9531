"""Files that appear whole or not at all: written beside their name, then renamed. Knows no format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from task_app.core.errors import ConfigError

__all__ = ["made_beside", "refuse_existing", "write_whole"]


@contextmanager
def made_beside(path: Path, *, replace: bool) -> Iterator[Path]:
    """A new empty file beside `path`, renamed to it when the block ends well, removed when it does not.

    Folders are made. Without `replace`, a file of that name is never replaced. Raises ConfigError (field
    `output`) when the place cannot be written or the name is taken.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        beside.unlink(missing_ok=True)
        beside.touch(exist_ok=False)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}", field="output") from error
    try:
        yield beside
        with beside.open("rb") as made:
            os.fsync(made.fileno())
        _put_in_place(beside, path, replace)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}", field="output") from error
    finally:
        for end in ("", "-wal", "-shm"):  # of a database too
            with suppress(OSError):
                beside.with_name(f"{beside.name}{end}").unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file, replacing one of that name. Raises ConfigError as `made_beside` does."""
    with made_beside(path, replace=True) as beside:
        beside.write_text(text, encoding="utf-8")


def refuse_existing(path: Path) -> None:
    """Raise ConfigError when something has that name already, a dangling link too."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists already; give the name of a new file", field="output")


def _put_in_place(beside: Path, path: Path, replace: bool) -> None:
    if not replace:
        try:
            os.link(beside, path)  # unlike a rename, refuses a file that came to be meanwhile
            return
        except FileExistsError:
            refuse_existing(path)
        except OSError:  # a file system without links
            refuse_existing(path)
    beside.replace(path)
