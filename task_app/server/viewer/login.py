"""The lock before every viewer page, as ASGI middleware: the key by a form, then a cookie; nothing else is read.

The cookie holds a random token that is forgotten when the server ends; it opens reading under `/viewer`
and nothing more. Without keys only this machine is served, also when a foreign page gives its own host name
this machine's address (DNS rebinding). Every answer carries the headers that keep foreign content out.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from string import Template
from typing import Protocol
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from task_app.http.auth import has_key, is_loopback, same_as_any
from task_app.http.errors import error_response

__all__ = ["MOST_SESSIONS", "OPEN_FILES", "PREFIX", "SESSION_S", "Gate", "KeptSessions", "Lock", "Sessions", "digest"]

PREFIX = "/viewer"
API = f"{PREFIX}/api/"
OPEN_FILES = frozenset({f"{PREFIX}/static/login.css", f"{PREFIX}/static/icon.svg"})
"""What the form itself needs; they say nothing of any database."""
_FORM_PATHS = frozenset({f"{PREFIX}/login", f"{PREFIX}/logout"})

SESSION_S = 12 * 3600.0
MOST_SESSIONS = 256

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OWN_ADDRESS = re.compile(r"/viewer(?:[?/][\x21-\x5b\x5d-\x7e]*)?")
"""Where a login may lead: this page and below, written with plain characters and no backslash."""
_FORM = Template((Path(__file__).parent / "static" / "login.html").read_text())


class KeptSessions(Protocol):
    """Tokens of those who gave the key, wherever they are kept."""

    def begin(self) -> str:
        """A fresh token."""
        ...

    def holds(self, token: str) -> bool:
        """Whether the token was given and is still good."""
        ...

    def end(self, token: str) -> None:
        """Forget the token."""
        ...


class Sessions:
    """Tokens of those who gave the key, in memory; at most `MOST_SESSIONS`, each for `SESSION_S` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: dict[bytes, float] = {}

    def begin(self) -> str:
        """A fresh token. The oldest one is forgotten when there are too many."""
        now = self._clock()
        self._ends = {token: end for token, end in self._ends.items() if end > now}
        while len(self._ends) >= MOST_SESSIONS:
            del self._ends[next(iter(self._ends))]
        token = secrets.token_urlsafe(32)
        self._ends[digest(token)] = now + SESSION_S
        return token

    def holds(self, token: str) -> bool:
        """Whether the token was given and is still good. Looked up by its hash, so time tells nothing."""
        return self._ends.get(digest(token), 0.0) > self._clock()

    def end(self, token: str) -> None:
        """Forget the token."""
        self._ends.pop(digest(token), None)


def digest(token: str) -> bytes:
    """What a token is looked up by, so that the time says nothing of it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Lock:
    """Keys and sessions of one viewer, and what they open."""

    def __init__(self, keys: Iterable[str], sessions: KeptSessions | None = None) -> None:
        self.keys = [key for key in keys if key]
        self._sessions = sessions or Sessions()

    def admits(self, scope: Scope) -> bool:
        """Whether a request without a key is let through: the form and its two files, and reading with a cookie."""
        path, method = scope["path"], scope["method"]
        if not _is_ours(path):
            return False
        if method == "POST":
            return path in _FORM_PATHS
        return method in ("GET", "HEAD") and (path in OPEN_FILES or self._sessions.holds(self._token(scope)))

    def enter(self, scope: Scope, body: bytes) -> Response:
        """The answer to the form: on to the page with a cookie, or the form again."""
        fields = _fields(body)
        onwards = fields.get("next", "")
        onwards = onwards if _OWN_ADDRESS.fullmatch(onwards) else PREFIX
        if not self.keys:
            return RedirectResponse(onwards, status_code=303)
        if not same_as_any([fields.get("key", "").strip().encode()], self.keys):
            return login_form(onwards, "That is not the key.")
        response = RedirectResponse(onwards, status_code=303)
        response.set_cookie(
            _cookie_name(scope),
            self._sessions.begin(),
            max_age=int(SESSION_S),
            path=PREFIX,
            secure=scope.get("scheme") == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def leave(self, scope: Scope) -> Response:
        """Forget the session, and back to the form."""
        self._sessions.end(self._token(scope))
        response = RedirectResponse(PREFIX, status_code=303)
        response.delete_cookie(_cookie_name(scope), path=PREFIX, httponly=True, samesite="strict")
        return response

    @staticmethod
    def _token(scope: Scope) -> str:
        cookies = SimpleCookie()
        try:
            cookies.load(dict(scope["headers"]).get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return ""
        found = cookies.get(_cookie_name(scope))
        return found.value if found else ""


def _fields(body: bytes) -> dict[str, str]:
    """The form's fields; none where there are more than any form of ours has."""
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=8))
    except ValueError:
        return {}


def _cookie_name(scope: Scope) -> str:
    """Browsers keep one jar for all ports of a host; two viewers side by side need two names."""
    _, port = scope.get("server") or ("", None)
    return f"task_app_viewer_{port}" if port else "task_app_viewer"


def login_form(onwards: str, message: str = "") -> Response:
    """The page that asks for the key; `onwards` is where it leads, never more than our own address."""
    text = _FORM.substitute(next=escape(onwards), message=escape(message))
    return HTMLResponse(text, status_code=401, headers={"WWW-Authenticate": "Bearer"})


class Gate:
    """Middleware around a whole app that looks after `/viewer` and passes everything else by.

    The key itself is checked by `KeyCheck` behind it, which `Lock.admits` tells of the cookie.
    """

    def __init__(self, app: ASGIApp, lock: Lock) -> None:
        self._app = app
        self._lock = lock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_ours(scope["path"]):
            await self._app(scope, receive, send)
            return
        response = self._refusal(scope)
        await (response or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        if not self._lock.keys:
            if is_loopback(_host_of(scope)):
                return None
            sentence = "without a key this page is for this machine alone; open it at 127.0.0.1 or localhost"
            return error_response(400, "bad_host", sentence, "Host")
        wants_page = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith(API)
        if not wants_page or self._lock.admits(scope) or has_key(scope, self._lock.keys):
            return None
        return login_form(_address_of(scope))


def _is_ours(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def _host_of(scope: Scope) -> str:
    """The host name the client asked for, without its port, in small letters."""
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]*))(?::[0-9]{1,5})?", host)
    return (found[1] or found[2] or "") if found else ""


def _address_of(scope: Scope) -> str:
    """The path and query asked for, as far as a login may lead there."""
    raw = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string", b"")
    if scope["path"] in _FORM_PATHS:
        return PREFIX
    address = (raw.partition(b"?")[0] + (b"?" + query if query else b"")).decode("latin-1")
    return address if _OWN_ADDRESS.fullmatch(address) else PREFIX


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            _set_defaults(headers, HEADERS)
            _set_defaults(headers, {"Cache-Control": "no-store"})
        await send(message)

    return sending


def _set_defaults(headers: MutableHeaders, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        headers.setdefault(name, value)
