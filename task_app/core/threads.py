"""Work in a thread that nobody waits for when the process ends. Bounds nothing: whoever calls counts its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

__all__ = ["in_daemon_thread"]

ResultT = TypeVar("ResultT")


def in_daemon_thread(name: str, function: Callable[..., ResultT], *arguments: Any) -> Future[ResultT]:
    """Begin `function` in a thread called `name`, in the caller's context; the future has what comes of it."""
    future: Future[ResultT] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    context = copy_context()  # so that what it logs has the request's ids
    threading.Thread(target=context.run, args=(work,), daemon=True, name=name).start()
    return future
