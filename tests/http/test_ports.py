"""Binding a port, and saying who holds it when it is taken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from task_app.core.errors import ConfigError
from task_app.http import SERVICE
from task_app.http.ports import check_port_free, listen, who_listens
from tests.http.stranger import saying


def test_listens_on_a_free_port_and_on_localhost():
    for host in ("127.0.0.1", "localhost"):
        with listen(host, 0) as listener:
            address = listener.getsockname()
            assert address[0] == "127.0.0.1"
            socket.create_connection(address).close()


def test_checking_leaves_the_port_free():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_a_taken_port_names_the_process_and_the_way_out():
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(ConfigError, match=rf"port {port} is in use by process {other.pid} \(python") as caught:
            check_port_free("127.0.0.1", port)
        other.communicate(b"\n")
    assert caught.value.field == "server.port"
    assert f"choose another with --port {port + 1}" in str(caught.value)
    assert f"make demo PORT={port + 1}" in str(caught.value)


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ({"service": SERVICE, "pid": 4711}, f"another {SERVICE} (process 4711)"),
        ({"service": "other"}, f"process {os.getpid()} ("),
        ([], f"process {os.getpid()} ("),
    ],
    ids=["ours", "another", "no answer of ours"],
)
def test_one_of_ours_is_known_by_its_health_answer(health, expected):
    with saying(health) as port:
        assert who_listens(port).startswith(expected)


def test_nobody_listens():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    assert who_listens(port) == "another program"


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 64])
def test_a_host_that_is_not_this_machine_is_named(host):
    with pytest.raises(ConfigError, match=host) as caught:
        listen(host, 0)
    assert caught.value.field == "server.host"
