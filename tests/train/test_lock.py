"""One process a run folder: refused while it lives, taken over when it is dead, never in the way."""

import os
import signal
import subprocess
import sys

import pytest

from task_app.core.errors import TrainError
from task_app.train.lock import LOCK, run_lock

HOLD = """
import sys, time
from pathlib import Path
from task_app.train.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate(timeout=10)


def test_another_process_is_refused_by_its_number(holder, tmp_path):
    with pytest.raises(TrainError, match=f"process {holder.pid} is training in {tmp_path}"), run_lock(tmp_path):
        pass
    assert (tmp_path / LOCK).read_text() == f"{holder.pid}\n"


def test_the_lock_of_a_killed_process_is_taken_over(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    assert (tmp_path / LOCK).exists()
    with run_lock(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_nothing_is_left_behind(tmp_path):
    for _ in range(2):
        with run_lock(tmp_path / "run"):
            assert (tmp_path / "run" / LOCK).exists()
        assert list((tmp_path / "run").iterdir()) == []
    with pytest.raises(KeyError), run_lock(tmp_path / "run"):
        raise KeyError
    assert list((tmp_path / "run").iterdir()) == []


def test_one_process_cannot_hold_it_twice(tmp_path):
    with (
        run_lock(tmp_path),
        pytest.raises(TrainError, match=f"process {os.getpid()} is training"),
        run_lock(tmp_path),
    ):
        pass


def test_a_text_without_a_lock_is_no_lock(tmp_path):
    (tmp_path / LOCK).write_text("1\n")
    with run_lock(tmp_path):
        pass


def test_a_folder_that_cannot_be_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match="cannot be locked"), run_lock(tmp_path / "file" / "run"):
        pass
