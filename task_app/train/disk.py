"""A disk that refuses, told the same way whatever was writing; files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from task_app.core.errors import TrainError

__all__ = ["make_folder", "replace_text", "writing"]

_OF_LIBRARIES = ("iostream", "PytorchStreamWriter", "inline_container", "os error")
"""In what `torch.save` and the tokenizers' own code say of a refused write: they raise no OSError."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a refused write of what belongs to `path` into a TrainError that names it and says what to do."""
    try:
        yield
    except Exception as error:
        said = str(error) or type(error).__name__
        if not isinstance(error, OSError | SafetensorError):
            if not any(sign in said for sign in _OF_LIBRARIES):
                raise
            said = f"the disk did not take all of it ({said.splitlines()[0]})"
        raise TrainError(
            f"{path} could not be written: {said}. What was recorded before stays: make room, or let the folder be "
            "written, and run the same command again"
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all. Raises TrainError; the file that was there then stays."""
    partial = path.with_name(f".partial-{path.name}")
    with writing(path):
        try:
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def make_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Make a folder with what `write` puts into it; an empty one of that name is replaced.

    Raises TrainError when the disk refuses; the folder is then not there.
    """
    partial = path.with_name(f".partial-{path.name}")
    try:
        with writing(path):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write(partial)
            if path.exists():
                path.rmdir()
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
