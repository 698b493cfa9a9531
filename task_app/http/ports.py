"""Binding a port, so that "address in use" can name a culprit. Looks only at this machine."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx

from task_app.core.errors import ConfigError
from task_app.http import SERVICE

__all__ = ["address_of", "check_port_free", "listen", "who_listens"]

_BACKLOG = 2048
_LISTENING = "0A"  # the state of a listening socket in /proc/net/tcp


def listen(host: str, port: int) -> socket.socket:
    """A socket listening on the address; port 0 takes a free one.

    Raises ConfigError, naming who holds the port when it is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error}", field="server.host") from error
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", field="server.host") from error
        other = port + 1 if port < 65_535 else port - 1
        raise ConfigError(
            f"port {port} is in use by {who_listens(port)}; choose another with --port {other} "
            f"(for the demo: make demo PORT={other}); a server of ours is ended first with serve --force",
            field="server.port",
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL clients reach a listening socket at."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_port_free(host: str, port: int) -> None:
    """Raise ConfigError like `listen`, keeping nothing."""
    listen(host, port).close()


def who_listens(port: int) -> str:
    """A description of the listener: ours by its health answer, else its process where that can be read."""
    with suppress(httpx.HTTPError, ValueError, AttributeError):
        health = httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0, trust_env=False).json()
        if health.get("service") == SERVICE:
            return f"another {SERVICE} (process {health.get('pid')})"
    with suppress(OSError):
        for process in _listening_processes(port):
            return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return "another program"


def _listening_processes(port: int) -> Iterator[Path]:
    """The /proc folders of the processes that hold a listening socket on `port`."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # another user's, or gone by now
            if any(os.readlink(file) in sockets for file in (process / "fd").iterdir()):
                yield process


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for row in map(str.split, Path("/proc/net", table).read_text().splitlines()[1:]):
                if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port:
                    yield row[9]
