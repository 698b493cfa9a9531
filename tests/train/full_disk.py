"""A disk that takes no more, for as long as one call: the system's own limit on the size of a file, in this process."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """No file grows beyond `size` bytes inside: a write past it is cut there or refused, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refuse(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, due: Callable[..., bool], size: int | Callable[..., int] = 0
) -> None:
    """Let the disk be full while `owner.name` runs and `due(*arguments)`; `size` as above, or of the arguments."""
    original = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not due(*arguments, **named):
            return original(*arguments, **named)
        with files_end_at(size if isinstance(size, int) else size(*arguments, **named)):
            return original(*arguments, **named)

    monkeypatch.setattr(owner, name, wrapped)
