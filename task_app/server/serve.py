"""The hosted app on a real port: checks first, then uvicorn, until it is told to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import uvicorn
from fastapi import FastAPI

from task_app.config import Config
from task_app.core.errors import ConfigError
from task_app.export import EpisodeFiles
from task_app.http.auth import is_loopback
from task_app.http.ports import listen
from task_app.server.app import create_app
from task_app.store import TraceStore

__all__ = ["address_of", "serve"]


class _Server(uvicorn.Server):
    """uvicorn that says when it serves, and stops the app's rollouts before it waits for their answers."""

    def __init__(self, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=10))
        self._service = app.state.service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)


def serve(config: Config, *, ready: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
    """Serve until interrupted; `ready` is told the address once requests are answered.

    Raises ConfigError when the port is taken (naming by whom), when the address reaches beyond this
    machine and no key is set, or when the trace folder cannot be written; StoreError when the trace
    database cannot be opened.
    """
    server = config.server
    if not is_loopback(server.host) and not environ.get(server.api_key_env, "").strip():
        raise ConfigError(
            f"refusing to serve on {server.host!r} without a key: set {server.api_key_env}, or use --host 127.0.0.1",
            field="server.host",
        )
    app = create_app(config, environ=environ)
    with listen(server.host, server.port) as listener:
        TraceStore.open(config.rollout.trace_db).close()  # here its error is ours; in uvicorn it would be a traceback
        if server.trace_dir:
            EpisodeFiles.open(server.trace_dir)  # likewise
        _Server(app, ready=lambda: ready(address_of(listener))).run(sockets=[listener])


def address_of(listener: socket.socket) -> str:
    """The URL clients reach a listening socket at."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
