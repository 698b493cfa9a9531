"""The viewer's own app around a database, asked like a browser on this machine would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from task_app.server.viewer.app import create_viewer_app

KEY = "ek-1"
Viewing = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def viewing() -> Viewing:
    """Look at a database: `async with viewing(db) as http`; `environ` may hold the key."""

    @asynccontextmanager
    async def look(
        db: Path, environ: Mapping[str, str] | None = None, base_url: str = "http://127.0.0.1:8011"
    ) -> AsyncIterator[httpx.AsyncClient]:
        app = create_viewer_app(db, environ=environ or {})
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url=base_url) as http,
        ):
            yield http

    return look
