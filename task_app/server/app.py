"""`create_app`: the hosted task app as a FastAPI application. Routes only; the work is `service.py`'s."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Annotated, Any

from anyio import to_thread
from fastapi import FastAPI, Header, Path, Query, Request, Response
from starlette.middleware.cors import CORSMiddleware

from task_app import __version__
from task_app.codehash import code_hash
from task_app.config import Config
from task_app.config.models import ServerSection
from task_app.http.auth import KeyCheck, keys_in
from task_app.http.errors import install_error_handlers
from task_app.http.limits import BodyLimit
from task_app.http.logs import RequestLog, note
from task_app.http.rate import RateLimit
from task_app.server import stepwise
from task_app.server.describe import identity
from task_app.server.metrics import CONTENT_TYPE, Metrics
from task_app.server.readers import SharedSessions
from task_app.server.requests import AbortRequest, Name, RolloutRequest, TaskInfoQuery
from task_app.server.resolve import check_endpoint
from task_app.server.runs import RunStatus
from task_app.server.service import Service
from task_app.server.viewer import Viewer
from task_app.wiring import check

__all__ = ["OPEN_PATHS", "SERVER_PID", "create_app"]

OPEN_PATHS = ("/", "/health")
"""What answers without a key."""
SERVER_PID = "TASK_APP_SERVER_PID"
"""The variable that tells worker processes which process is the server."""

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON"},
    401: {"description": "no valid key"},
    404: {"description": "there is no such run"},
    409: {"description": "the Idempotency-Key came with another body before"},
    413: {"description": "the body is too large"},
    422: {"description": "a field is unknown or holds a value that is not allowed; the body names it"},
    429: {"description": "busy, or too many requests of this key; see Retry-After"},
    503: {"description": "the rollout broke or could not be stored: a missing reward, not a reward of 0"},
}


def create_app(config: Config, *, environ: Mapping[str, str] = os.environ) -> FastAPI:
    """The application for one config. Raises ConfigError for names, combinations and keys that cannot work.

    The trace database is opened when the application starts and closed when it ends; `app.state.service`
    plays the rollouts. The page at `/viewer` shows the same database.
    """
    check_endpoint(config, environ)
    service = Service(config, check(config), environ, Metrics())
    keys = keys_in(environ, config.server.key_envs)
    viewer = Viewer(config.rollout.trace_db, keys, SharedSessions(lambda: service.shared))

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
    _add_middleware(app, config.server, service, keys, viewer)
    _add_routes(app, service)
    viewer.add_to(app)
    stepwise.add_to(app, config, environ, service)
    return app


def _add_middleware(app: FastAPI, server: ServerSection, service: Service, keys: list[str], viewer: Viewer) -> None:
    """From the inside out: the last one added sees a request first."""
    app.add_middleware(BodyLimit, max_bytes=server.max_body_bytes)
    if server.requests_per_minute:
        app.add_middleware(
            RateLimit, per_minute=server.requests_per_minute, count=service.count_call, open_paths=OPEN_PATHS
        )
    app.add_middleware(KeyCheck, keys=keys, open_paths=OPEN_PATHS, or_else=viewer.lock.admits)
    if server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=server.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["X-API-Key", "Authorization", "Content-Type", "Idempotency-Key"],
        )
    app.add_middleware(RequestLog, observe=service.metrics.request)


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.get("/")
    async def root() -> dict[str, Any]:
        """What this is; open to all."""
        return identity(service.spec) | {"health": "/health"}

    @app.get("/health", responses={503: {"description": "up, but rollouts cannot be played just now"}})
    async def health(response: Response) -> dict[str, Any]:
        """Whether the app is up and can play rollouts, and how busy it is; open to all."""
        state = service.state()
        response.status_code = 200 if state["ready"] else 503
        said = {"healthy": state["ready"], "status": "healthy" if state["ready"] else "not ready"}
        pids = {"pid": os.getpid(), "server_pid": int(os.environ.get(SERVER_PID) or os.getpid())}
        return said | identity(service.spec) | {"code_hash": code_hash()} | pids | state

    @app.get("/info", responses={401: _ERRORS[401]})
    async def info() -> dict[str, Any]:
        """The task, its tools, options, policies, flags and limits."""
        return service.describe()

    @app.get("/task_info", responses={code: _ERRORS[code] for code in (401, 422)})
    async def task_info(query: Annotated[TaskInfoQuery, Query()]) -> dict[str, Any]:
        """The task, and for each `seed` given the facts of its world."""
        instances = [await service.seed_info(seed) for seed in query.seed]
        return service.describe() | ({"instances": instances} if instances else {})

    @app.get("/metrics", responses={401: _ERRORS[401]}, response_class=Response)
    async def metrics() -> Response:
        """Counts and times of all workers together, as Prometheus reads them."""
        return Response(await to_thread.run_sync(service.metrics.text), media_type=CONTENT_TYPE)

    @app.post("/rollout", responses={code: _ERRORS[code] for code in _ERRORS if code != 404})
    async def rollout(
        request: Request,
        body: RolloutRequest,
        idempotency_key: Annotated[str, Header(max_length=200, pattern=r"^[\x21-\x7e]*$")] = "",
    ) -> Response:
        """Play one episode and store it; with an `Idempotency-Key`, once for all requests that have it."""
        note(run_id=body.run_id)
        answered = await service.play(body, key=idempotency_key, body=await request.body())
        headers = {"Idempotent-Replayed": "true"} if answered.again else None
        return Response(answered.body, media_type="application/json", headers=headers)

    @app.get("/run/status/{run_id}", responses={code: _ERRORS[code] for code in (401, 404, 422)})
    async def status(run_id: Annotated[Name, Path()]) -> RunStatus:
        """What plays, waits and is stored of a run."""
        return await service.status(run_id)

    @app.post("/run/abort", responses={code: _ERRORS[code] for code in (400, 401, 404, 413, 422)})
    async def abort(body: AbortRequest) -> dict[str, Any]:
        """End all that plays or waits of a run, in every worker; each is stored as aborted."""
        return {"run_id": body.run_id, "aborting": await service.abort(body.run_id)}
