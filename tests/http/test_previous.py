"""Who may be ended for a port, and who is left alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from task_app.core.errors import ConfigError
from task_app.http import SERVICE
from task_app.http.ports import listen
from task_app.http.previous import end_previous, remembered
from task_app.http.process import process_began
from tests.http.stranger import saying


@pytest.fixture(autouse=True)
def own_notes(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@contextmanager
def ours(tmp_path):
    """A real server of ours in another process, and its port."""
    command = [
        sys.executable,
        "-m",
        "task_app",
        "serve",
        "crafter",
        "--port",
        "0",
        "--trace-db",
        str(tmp_path / "t.db"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    try:
        assert process.stdout is not None
        yield process, int(re.findall(r":(\d+) ", process.stdout.readline())[0])
    finally:
        process.kill()
        process.communicate()


def test_a_free_port_has_nobody_to_end():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    assert end_previous("127.0.0.1", port) is None


def test_a_server_of_ours_is_ended_and_the_port_is_free(tmp_path):
    with ours(tmp_path) as (process, port):
        assert end_previous("127.0.0.1", port) == process.pid
        assert process.wait(10) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        assert end_previous("127.0.0.1", port) is None


def test_one_of_ours_without_its_note_is_left_alone(tmp_path):
    with ours(tmp_path) as (process, port):
        for note in tmp_path.rglob(f"{port}.json"):
            note.unlink()
        with pytest.raises(ConfigError, match=f"another {SERVICE} .*left alone"):
            end_previous("127.0.0.1", port)
        assert process.poll() is None


@pytest.mark.parametrize(
    "claims", [{"service": SERVICE, "server_pid": 1}, {"service": "other"}, [], {"service": SERVICE}]
)
def test_a_stranger_is_left_alone_whatever_it_says(claims):
    with saying(claims) as port, pytest.raises(ConfigError, match="left alone") as caught:
        end_previous("127.0.0.1", port)
    assert caught.value.field == "server.port"


def test_a_stranger_that_names_one_of_our_servers_ends_nobody(tmp_path):
    """The note is of the port, so that a server elsewhere cannot be pointed at."""
    with ours(tmp_path) as (process, _):
        claim = {"service": SERVICE, "server_pid": process.pid}
        with saying(claim) as port, pytest.raises(ConfigError, match="left alone"):
            end_previous("127.0.0.1", port)
        assert process.poll() is None


def test_a_note_of_a_process_whose_id_is_used_again_proves_nothing(tmp_path):
    with saying({"service": SERVICE, "server_pid": os.getpid()}) as port, remembered(port):
        (note,) = tmp_path.rglob(f"{port}.json")
        note.write_text(json.dumps({"pid": os.getpid(), "began": "1"}))
        with pytest.raises(ConfigError, match="left alone"):
            end_previous("127.0.0.1", port)


def test_the_note_is_this_users_and_goes_with_the_server(tmp_path):
    with remembered(4321):
        (note,) = tmp_path.rglob("4321.json")
        assert note.parent.stat().st_mode & 0o777 == 0o700
        assert json.loads(note.read_text()) == {"pid": os.getpid(), "began": process_began(os.getpid())}
    assert list(tmp_path.rglob("4321.json")) == []
