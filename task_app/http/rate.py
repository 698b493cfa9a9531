"""How many requests a key may make in a minute, as ASGI middleware: 429 with Retry-After beyond that.

Who counts is the caller's: a server of several processes counts in one place. Open paths are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from task_app.http.errors import error_response

__all__ = ["RateLimit"]


class RateLimit:
    """`count` adds one call of a caller (its key's bytes) to the running minute and gives how many those are."""

    def __init__(
        self, app: ASGIApp, per_minute: int, count: Callable[[bytes], Awaitable[int]], open_paths: Iterable[str]
    ) -> None:
        self._app = app
        self._per_minute = per_minute
        self._count = count
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = scope["type"] == "http" and scope["path"] not in self._open_paths
        if counted and await self._count(_caller(scope)) > self._per_minute:
            sentence = f"at most {self._per_minute} requests a minute are answered for a key"
            response = error_response(429, "too_many_requests", sentence)
            response.headers["Retry-After"] = str(60 - int(time.time()) % 60)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _caller(scope: Scope) -> bytes:
    headers = dict(scope["headers"])
    return headers.get(b"x-api-key") or headers.get(b"authorization", b"").partition(b" ")[2].strip()
