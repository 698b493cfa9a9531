"""Readers of the page who gave the key, known to every worker of the server and to no server after it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from task_app.server.shared import Shared
from task_app.server.viewer.login import MOST_SESSIONS, SESSION_S, digest

__all__ = ["SharedSessions"]


class SharedSessions:
    """`login.Sessions` for several processes; `shared` is asked for when it is open."""

    def __init__(self, shared: Callable[[], Shared]) -> None:
        self._shared = shared

    def begin(self) -> str:
        """A fresh token."""
        token = secrets.token_urlsafe(32)
        self._shared().begin_session(digest(token), time.time() + SESSION_S, MOST_SESSIONS)
        return token

    def holds(self, token: str) -> bool:
        """Whether the token was given and is still good."""
        return bool(token) and self._shared().session_ends(digest(token)) > time.time()

    def end(self, token: str) -> None:
        """Forget the token."""
        self._shared().end_session(digest(token))
