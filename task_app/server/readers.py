"""Readers of the page who gave the key, known to every worker of the server and to no server after it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from task_app.core.errors import StoreError
from task_app.server.shared import Shared
from task_app.server.viewer.login import MOST_SESSIONS, SESSION_S, digest

__all__ = ["SharedSessions"]

logger = logging.getLogger(__name__)


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
        """Whether the token was given and is still good; no where that cannot be read just now."""
        try:
            return bool(token) and self._shared().session_ends(digest(token)) > time.time()
        except StoreError as error:
            logger.warning("no reader is let in by a cookie just now: %s", error)
            return False

    def end(self, token: str) -> None:
        """Forget the token."""
        self._shared().end_session(digest(token))
