"""How many requests a key may make in a minute, as ASGI middleware: 429 with Retry-After beyond that.

By the key that let a request through. Who counts is the server's: several processes count in one place. Open paths
are not counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from task_app.core.errors import StoreError
from task_app.http.auth import CALLER
from task_app.http.errors import error_response

__all__ = ["RateLimit"]

logger = logging.getLogger(__name__)


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
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            refused = await self._refusal(str(scope.get(CALLER, "")))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, caller: str) -> JSONResponse | None:
        try:
            calls = await self._count(caller.encode())
        except StoreError as error:
            logger.error("%s", error)
            return error_response(503, "store_unavailable", "requests cannot be counted just now")
        if calls <= self._per_minute:
            return None
        sentence = f"at most {self._per_minute} requests a minute are answered for a key"
        response = error_response(429, "too_many_requests", sentence)
        response.headers["Retry-After"] = str(60 - int(time.time()) % 60)
        return response
