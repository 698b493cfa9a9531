"""uvicorn on a socket that already listens, which says when it serves. Knows no application of ours."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp

__all__ = ["ReadyServer"]


class ReadyServer(uvicorn.Server):
    """Calls `ready` once requests are answered; at the end those under way have `patience_s` seconds.

    `settings` are uvicorn's own.
    """

    def __init__(self, app: ASGIApp, ready: Callable[[], None], *, patience_s: int, **settings: Any) -> None:
        fixed = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": patience_s}
        super().__init__(uvicorn.Config(app, **fixed, **settings))
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
