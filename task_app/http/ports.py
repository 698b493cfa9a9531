"""Who listens on a port, so that "address in use" can name a culprit. Looks only at this machine."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import httpx

from task_app.core.errors import ConfigError

__all__ = ["check_port_free", "who_listens"]

_LISTEN = "0A"  # the state code of a listening socket in /proc/net/tcp


def check_port_free(host: str, port: int) -> None:
    """Raise ConfigError naming who holds the port, when it is taken or may not be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} is in use by {who_listens(port)}; choose another with --port", field="server.port"
                ) from error
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", field="server.host") from error


def who_listens(port: int) -> str:
    """A description of the listener: ours by its health answer, else by process where that can be read."""
    try:
        health = httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0).json()
        if health.get("service") == "crafter-task-app":
            return f"another crafter-task-app (process {health.get('pid')})"
    except (httpx.HTTPError, ValueError, AttributeError):
        pass
    pid = _listening_process(port)
    if pid is None:
        return "another program"
    command = Path(f"/proc/{pid}/comm").read_text().strip()
    return f"process {pid} ({command})"


def _listening_process(port: int) -> int | None:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = [line.split() for line in lines]
        inodes |= {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rsplit(":", 1)[1], 16) == port}
    for entry in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return int(entry.parts[2])
    return None
