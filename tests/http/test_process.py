"""Which process is meant, and whether it still runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from task_app.http.process import identity_of, is_running, process_began


def test_this_process_runs():
    assert is_running(identity_of(os.getpid()))
    assert process_began(os.getpid()) in identity_of(os.getpid())


def test_one_that_has_ended_does_not_even_before_its_parent_has_noticed():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identity_of(child.pid)
    assert is_running(identity)
    child.kill()
    while process_began(child.pid):
        pass
    assert not is_running(identity)
    child.wait()
    assert not is_running(identity)
    assert process_began(child.pid) == ""
    child.communicate()


@pytest.mark.parametrize(
    "identity",
    [f"{os.getpid()}:1", f"{os.getpid()}:", "0:", "", "word:1"],
    ids=["another began", "none began", "none", "empty", "a word"],
)
def test_another_that_has_the_id_now_is_not_meant(identity):
    assert not is_running(identity)


def test_a_process_of_another_users_may_run():
    assert is_running(identity_of(1))
