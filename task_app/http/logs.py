"""One line on standard error for each request, each connection that ended and each warning, as words or as JSON;
request ids that come back.

A line has when, which logger, what happened, and where they are known the ids of request and run. It never has a
body, a header, a query or anything else a client wrote: of an address only the route's pattern is told.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LogKind", "RequestLog", "log_to_stderr", "note"]

LogKind = Literal["quiet", "text", "json"]
ID_HEADER = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_noted: ContextVar[dict[str, Any] | None] = ContextVar("noted", default=None)

logger = logging.getLogger(__name__)


def note(**facts: Any) -> None:
    """Add facts to the line of the request that is being answered: ids and counts, never text of a client."""
    held = _noted.get()
    if held is not None:
        held.update(facts)


def log_to_stderr(kind: LogKind) -> None:
    """Send the program's log lines to standard error: warnings alone for `quiet`, else a line a request too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson() if kind == "json" else _AsWords())
    root = logging.getLogger("task_app")
    root.handlers, root.propagate = [handler], False
    root.setLevel(logging.WARNING if kind == "quiet" else logging.INFO)


class RequestLog:
    """ASGI middleware: gives each request an id (the client's own, if it is a plain word), measures it, tells of it.

    `observe` gets the route's pattern, the method, the status and the seconds of each request. A WebSocket's connection
    is told when it ends, as WS with the status 101, or why it was not let in; `observe` hears nothing of it.
    """

    def __init__(self, app: ASGIApp, observe: Callable[[str, str, int, float], None] | None = None) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id, begun = _request_id(scope), time.perf_counter()
        status = 500 if scope["type"] == "http" else 403
        facts: dict[str, Any] = {"request_id": request_id}
        token = _noted.set(facts)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except BaseException:
            status = 500
            raise
        finally:
            _noted.reset(token)
            seconds, route, method = time.perf_counter() - begun, _route(scope), _method(scope)
            if self._observe is not None and scope["type"] == "http":
                self._observe(route, method, status, seconds)
            if logger.isEnabledFor(logging.INFO):
                facts |= {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
                logger.info("%s %s %d", method, route, status, extra={"facts": facts})


def _request_id(scope: Scope) -> str:
    sent = dict(scope["headers"]).get(ID_HEADER, b"")
    return sent.decode() if _ID.fullmatch(sent) else secrets.token_hex(8)


def _route(scope: Scope) -> str:
    """The pattern of the route that answered; of an address that has none, nothing is told."""
    return getattr(scope.get("route"), "path", "other")


def _method(scope: Scope) -> str:
    if scope["type"] == "websocket":
        return "WS"
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"


class _AsJson(logging.Formatter):
    """One strict-JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", _noted.get() or {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _AsWords(logging.Formatter):
    """`time level message name=value …`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", _noted.get() or {})
        told = {name: value for name, value in facts.items() if name not in ("method", "route", "status")}
        said = "".join(f" {name}={_as_word(value)}" for name, value in told.items())
        return super().formatMessage(record) + said


def _as_word(value: Any) -> str:
    """A value as one word: an id that a client chose may hold anything, a line's end too."""
    text = str(value)
    return text if _ID.fullmatch(text.encode("utf-8", "replace")) else json.dumps(text)
