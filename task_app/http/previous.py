"""The server of ours that holds a port, and its end. Never touches a process that is not proven to be one.

Proof is twofold: what answers `/health` on the port says it is this program and names its process, and that process
wrote its id and the moment it began into a file of this user's when it started to listen.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from task_app.core.errors import ConfigError
from task_app.http import SERVICE
from task_app.http.ports import check_port_free, who_listens
from task_app.http.process import process_began

__all__ = ["end_previous", "remembered"]

_PATIENCE_S = 20.0


@contextmanager
def remembered(port: int) -> Iterator[None]:
    """Note that this process serves on `port`, until it no longer does."""
    path = _note_of(port)
    me = {"pid": os.getpid(), "began": process_began(os.getpid())}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(json.dumps(me), encoding="utf-8")
    try:
        yield
    finally:
        if _noted(port) == me:
            path.unlink(missing_ok=True)


def end_previous(host: str, port: int) -> int | None:
    """End the server of ours on `port` and wait until it has; its process id, or None where the port is free.

    Raises ConfigError, naming who holds the port, for any other program, and for one that does not end.
    """
    with suppress(ConfigError):
        check_port_free(host, port)
        return None
    pid = _server_behind(port)
    began = process_began(pid) if pid is not None else ""
    if pid is None or not began or _noted(port) != {"pid": pid, "began": began}:
        raise ConfigError(
            f"port {port} is in use by {who_listens(port)}, which is not known to be a server of this program started "
            "by this user; it was left alone",
            field="server.port",
        )
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE_S
    while process_began(pid) == began:
        if time.monotonic() > deadline:
            raise ConfigError(f"the server on port {port} (process {pid}) does not end", field="server.port")
        time.sleep(0.05)
    return pid


def _server_behind(port: int) -> int | None:
    """The process id that `/health` names, if it is ours that answers."""
    with suppress(httpx.HTTPError, ValueError, AttributeError):
        health = httpx.get(f"http://127.0.0.1:{port}/health", timeout=2.0, trust_env=False).json()
        if health.get("service") == SERVICE and isinstance(health.get("server_pid"), int):
            return health["server_pid"]
    return None


def _noted(port: int) -> dict[str, object] | None:
    try:
        note = json.loads(_note_of(port).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _note_of(port: int) -> Path:
    return Path(tempfile.gettempdir()) / f"{SERVICE}-{os.getuid()}" / f"{port}.json"
