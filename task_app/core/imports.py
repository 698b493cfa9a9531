"""Importing what only some commands need: in less time, and with a clear word where it is not installed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from task_app.core.errors import ConfigError

__all__ = ["extra_imports"]


@contextmanager
def extra_imports(extra: str) -> Iterator[None]:
    """Import, within, what needs packages of an optional extra. Raises ConfigError where one is not installed.

    Nothing is searched for garbage meanwhile, and what is there afterwards never is: modules stay to the end, yet the
    collector walks over all of them again and again while they are loaded and once more at exit. That is 3 of the
    10 s that a command with torch and transformers needs around its work.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "task_app":
            raise
        raise ConfigError(
            f"{error.name} is not installed; it comes with the extra {extra!r}: pip install 'crafter-task-app[{extra}]'"
        ) from error
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
