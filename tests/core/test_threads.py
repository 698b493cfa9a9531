"""Work in a thread that nobody waits for."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from task_app.core.threads import in_daemon_thread

told: ContextVar[str] = ContextVar("told", default="nothing")


def test_gives_what_comes_of_it_from_a_daemon_in_the_callers_context():
    token = told.set("something")
    try:
        work = in_daemon_thread("worker", lambda word: (word, told.get(), threading.current_thread()), "said")
    finally:
        told.reset(token)
    word, heard, thread = work.result(5)
    assert (word, heard, thread.name, thread.daemon) == ("said", "something", "worker", True)


def test_an_error_comes_by_the_future():
    with pytest.raises(ZeroDivisionError):
        in_daemon_thread("worker", lambda: 1 / 0).result(5)
