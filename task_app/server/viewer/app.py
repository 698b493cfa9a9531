"""The viewer on its own: `task-app traces view`. Opens one database read-only; serves nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import RedirectResponse

from task_app import __version__
from task_app.config.models import ServerSection
from task_app.http import SERVICE
from task_app.http.auth import KeyCheck, check_guarded
from task_app.http.errors import install_error_handlers
from task_app.http.limits import BodyLimit
from task_app.http.ports import address_of, listen
from task_app.http.serving import ReadyServer
from task_app.server.viewer.login import PREFIX
from task_app.server.viewer.routes import Viewer
from task_app.store import TraceStore

__all__ = ["KEY_ENV", "create_viewer_app", "view"]

KEY_ENV = ServerSection().api_key_env
"""The variable that holds the key, the same as of `task-app serve`."""
MOST_BODY_BYTES = 16_384
"""The largest body is a login form."""


def create_viewer_app(db: Path, *, environ: Mapping[str, str] = os.environ) -> FastAPI:
    """The application that shows `db`. With a key in the environment it asks for it."""
    keys = [environ.get(KEY_ENV, "").strip()]
    viewer = Viewer(db, keys)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with closing(viewer):
            yield

    app = FastAPI(title="viewer", lifespan=lifespan, redirect_slashes=False, openapi_url=None, version=__version__)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=MOST_BODY_BYTES)
    app.add_middleware(KeyCheck, keys=keys, open_paths=("/", "/health"), or_else=viewer.lock.admits)
    viewer.add_to(app)

    @app.get("/")
    def root() -> RedirectResponse:
        return RedirectResponse(PREFIX)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"healthy": True, "status": "healthy", "service": SERVICE, "version": __version__, "pid": os.getpid()}

    return app


def view(
    db: Path, *, host: str, port: int, ready: Callable[[str], None], environ: Mapping[str, str] = os.environ
) -> None:
    """Show `db` until interrupted; `ready` is told the page's address once requests are answered.

    Raises StoreError when the database is missing, foreign, newer or cannot be read; ConfigError when the
    port is taken, or when the address reaches beyond this machine and no key is set.
    """
    TraceStore.open(db, create=False, read_only=True).close()
    check_guarded(host, environ, [KEY_ENV], field="host", what="show traces")
    app = create_viewer_app(db, environ=environ)
    with listen(host, port) as listener:
        ReadyServer(app, lambda: ready(address_of(listener) + PREFIX), patience_s=2).run(sockets=[listener])
