"""`create_app`: the hosted task app as a FastAPI application. Routes only; the work is `service.py`'s."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response

from task_app import __version__
from task_app.config import Config
from task_app.http.auth import KeyCheck
from task_app.http.errors import install_error_handlers
from task_app.http.limits import BodyLimit
from task_app.server import stepwise
from task_app.server.describe import identity
from task_app.server.requests import RolloutRequest, TaskInfoQuery
from task_app.server.resolve import check_endpoint
from task_app.server.service import Service
from task_app.server.viewer import Viewer
from task_app.wiring import check

__all__ = ["OPEN_PATHS", "create_app"]

OPEN_PATHS = ("/", "/health")
"""What answers without a key."""

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON"},
    401: {"description": "no valid key"},
    413: {"description": "the body is too large"},
    422: {"description": "a field is unknown or holds a value that is not allowed; the body names it"},
    429: {"description": "busy; see Retry-After"},
    503: {"description": "the rollout broke or could not be stored: a missing reward, not a reward of 0"},
}


def create_app(config: Config, *, environ: Mapping[str, str] = os.environ) -> FastAPI:
    """The application for one config. Raises ConfigError for names, combinations and keys that cannot work.

    The trace database is opened when the application starts and closed when it ends; `app.state.service`
    plays the rollouts. The page at `/viewer` shows the same database.
    """
    check_endpoint(config, environ)
    service = Service(config, check(config), environ)
    keys = [environ.get(config.server.api_key_env, "").strip()]
    viewer = Viewer(config.rollout.trace_db, keys)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.opened():
            with closing(viewer):
                yield

    app = FastAPI(
        title=f"{service.spec.app.title} task app",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # its page would load scripts from elsewhere; /openapi.json is here
        redoc_url=None,
    )
    app.state.service = service
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=config.server.max_body_bytes)
    app.add_middleware(KeyCheck, keys=keys, open_paths=OPEN_PATHS, or_else=viewer.lock.admits)
    _add_routes(app, service)
    viewer.add_to(app)
    stepwise.add_to(app, config, environ)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.get("/")
    async def root() -> dict[str, Any]:
        """What this is; open to all."""
        return identity(service.spec) | {"health": "/health"}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the app is up; open to all."""
        return {"healthy": True, "status": "healthy", **identity(service.spec), "pid": os.getpid()}

    @app.get("/info", responses={401: _ERRORS[401]})
    async def info() -> dict[str, Any]:
        """The task, its tools, options, policies, flags and limits."""
        return service.describe()

    @app.get("/task_info", responses={code: _ERRORS[code] for code in (401, 422)})
    async def task_info(query: Annotated[TaskInfoQuery, Query()]) -> dict[str, Any]:
        """The task, and for each `seed` given the facts of its world."""
        instances = [await service.seed_info(seed) for seed in query.seed]
        return service.describe() | ({"instances": instances} if instances else {})

    @app.post("/rollout", responses=_ERRORS)
    async def rollout(request: RolloutRequest) -> Response:
        """Play one episode and store it."""
        return Response(await service.play(request), media_type="application/json")
