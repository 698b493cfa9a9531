"""The key check, as ASGI middleware: `X-API-Key` or `Authorization: Bearer`, compared in constant time.

Keys are never echoed, logged or sent on.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from task_app.http.errors import error_response

__all__ = ["KeyCheck", "is_loopback"]


class KeyCheck:
    """Answers 401 to every request without a valid key, except GET and HEAD on `open_paths`.

    Without keys everything is open; a server must then listen on loopback only.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str], open_paths: Iterable[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys if key]
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not self._keys or self._is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            sentence = "a valid key is needed in X-API-Key or Authorization: Bearer"
            response = error_response(401, "unauthorized", sentence)
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope.get("method") in ("GET", "HEAD") and scope["path"] in self._open_paths

    def _has_key(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = [headers.get(b"x-api-key", b""), token.strip() if scheme.lower() == b"bearer" else b""]
        # Every pair is compared, so that the time taken says nothing about which one matched.
        matches = [hmac.compare_digest(key, one) for key in self._keys for one in given]
        return any(matches)


def is_loopback(host: str) -> bool:
    """Whether listening on `host` reaches this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
