"""The key check, as ASGI middleware: `X-API-Key` or `Authorization: Bearer`, compared in constant time.

Keys are never echoed, logged or sent on.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from task_app.core.errors import ConfigError
from task_app.http.errors import error_response

__all__ = [
    "CALLER",
    "KeyCheck",
    "check_guarded",
    "has_key",
    "is_loopback",
    "key_given",
    "keys_in",
    "same_as_any",
]


CALLER = "task_app.caller"
"""Where in a request's scope the key stands that let it through; empty where it was something else."""


class KeyCheck:
    """Answers 401 to every request without a valid key, except GET and HEAD on `open_paths`.

    `or_else` says of a request whether there is another reason to let it through, such as the cookie of a
    page. Without keys everything is open; a server must then listen on loopback only.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[str],
        open_paths: Iterable[str],
        or_else: Callable[[Scope], bool] = lambda scope: False,
    ) -> None:
        self._app = app
        self._keys = [key for key in keys if key]
        self._open_paths = frozenset(open_paths)
        self._or_else = or_else

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            sentence = "a valid key is needed in X-API-Key or Authorization: Bearer"
            response = error_response(401, "unauthorized", sentence)
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        scope[CALLER] = key_given(scope, self._keys)
        if not self._keys or self._is_open(scope) or scope[CALLER]:
            return True
        return scope["type"] == "http" and self._or_else(scope)

    def _is_open(self, scope: Scope) -> bool:
        return scope.get("method") in ("GET", "HEAD") and scope["path"] in self._open_paths


def has_key(scope: Scope, keys: Iterable[str]) -> bool:
    """Whether a request's headers hold one of the keys."""
    return bool(key_given(scope, keys))


def key_given(scope: Scope, keys: Iterable[str]) -> str:
    """The one of the keys that a request's headers hold, empty where they hold none."""
    headers = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    given = [headers.get(b"x-api-key", b""), token.strip() if scheme.lower() == b"bearer" else b""]
    found = ""
    for key in keys:  # every one is compared, so that the time says nothing about which
        found = key if same_as_any(given, [key]) else found
    return found


def same_as_any(given: Iterable[bytes], keys: Iterable[str]) -> bool:
    """Whether one of the keys was given; every pair is compared, so that the time says nothing about which."""
    every = list(given)
    matches = [hmac.compare_digest(key.encode(), one) for key in keys for one in every]
    return any(matches)


def keys_in(environ: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """The keys that the variables hold; those that are unset or empty hold none."""
    return [key for name in names if name and (key := environ.get(name, "").strip())]


def check_guarded(
    host: str, environ: Mapping[str, str], names: Sequence[str], *, field: str = "server.host", what: str = "serve"
) -> None:
    """Raise ConfigError about `field` for an address that others reach while none of the variables holds a key."""
    if not is_loopback(host) and not keys_in(environ, names):
        raise ConfigError(
            f"refusing to {what} on {host!r} without a key: set {names[0]}, or use --host 127.0.0.1", field=field
        )


def is_loopback(host: str) -> bool:
    """Whether listening on `host` reaches this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
