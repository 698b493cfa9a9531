"""`create_app`: the hosted task app as a FastAPI application. Routes only; rollouts are `rollouts.py`'s.

Nothing heavy runs on the event loop: a rollout plays in a worker thread, at most
`max_concurrent_rollouts` at once, further ones wait, and beyond that the answer is 429.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import FastAPI, Query

from task_app import __version__
from task_app.config import Config
from task_app.core.task import TaskSpec
from task_app.http.auth import KeyCheck
from task_app.http.errors import Busy, InfrastructureFailure, error_response, install_error_handlers
from task_app.http.limits import BodyLimit
from task_app.server.requests import RolloutRequest
from task_app.server.responses import rollout_response
from task_app.server.rollouts import Rollouts
from task_app.store import TraceStore
from task_app.wiring import check, policy_names

__all__ = ["SERVICE", "create_app"]

SERVICE = "crafter-task-app"
OPEN_PATHS = ("/", "/health")


def create_app(config: Config, *, environ: Mapping[str, str] = os.environ) -> FastAPI:
    """The application for one config. Raises ConfigError for names and combinations that cannot work.

    The trace database is opened when the application starts and closed when it ends.
    """
    spec = check(config)
    service = _Service(config, spec, environ)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with TraceStore.open(config.rollout.trace_db) as store:
            service.rollouts = Rollouts(config, store, environ)
            try:
                yield
            finally:
                service.rollouts.stop()
                service.rollouts.close()

    app = FastAPI(title=f"{spec.app.title} task app", version=__version__, lifespan=lifespan)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=config.server.max_body_bytes)
    app.add_middleware(KeyCheck, keys=[environ.get(config.server.api_key_env, "")], open_paths=OPEN_PATHS)
    _add_routes(app, service)
    return app


class _Service:
    """What the routes share: config, task, and the players of requests."""

    rollouts: Rollouts

    def __init__(self, config: Config, spec: TaskSpec, environ: Mapping[str, str]) -> None:
        self.config = config
        self.spec = spec
        self._slots = anyio.CapacityLimiter(config.server.max_concurrent_rollouts)
        self._accepted = 0

    async def play(self, request: RolloutRequest) -> dict[str, Any]:
        """Play one request in a thread. Raises Busy when too many wait, InfrastructureFailure when it broke."""
        server = self.config.server
        if self._accepted >= server.max_concurrent_rollouts + server.max_waiting_rollouts:
            raise Busy(retry_after_s=1)
        self._accepted += 1
        try:
            return await to_thread.run_sync(self._play, request, limiter=self._slots)
        finally:
            self._accepted -= 1

    def _play(self, request: RolloutRequest) -> dict[str, Any]:
        finished = self.rollouts.play(request)
        episode = finished.episode
        if episode.status == "infra_error":
            raise InfrastructureFailure(
                f"the rollout broke: {episode.cause}; it is stored without a reward",
                episode_id=episode.episode_id,
                decisions=len(episode.decisions),
            )
        return rollout_response(finished, request)

    def describe(self) -> dict[str, Any]:
        """The task and how it is played."""
        app, options, config = self.spec.app, self.spec.options, self.config
        flags = config.step_rewards
        return {
            "service": SERVICE,
            "version": __version__,
            "task": {"name": app.name, "version": app.version, "title": app.title, "description": app.description},
            "aliases": list(app.aliases),
            "actions": list(app.action_names),
            "events": list(app.event_names),
            "tools": list(app.tools(options)),
            "options": options.model_dump(mode="json"),
            "policies": policy_names(app),
            "prompt_hash": self.spec.prompt_hash,
            "step_rewards": {
                "mode": flags.mode,
                "kind": flags.kind,
                "indicator_lambda": flags.indicator_lambda,
                "step_beta": flags.beta,
                "horizon": flags.horizon,
            },
            "limits": {
                "max_decisions": config.server.max_decisions,
                "max_time_s": config.server.max_time_s,
                "max_concurrent_rollouts": config.server.max_concurrent_rollouts,
                "max_body_bytes": config.server.max_body_bytes,
            },
        }

    def seed_info(self, seed: int) -> dict[str, Any]:
        """One seed's instance of the task."""
        task = self.spec.ref(seed)
        world = self.spec.app.seed_info(seed, self.spec.options)
        return {"seed": seed, "task": {"app": task.app, "version": task.version}, "world": world}


Seed = Annotated[int, Query(ge=0, lt=2**31 - 1)]


def _add_routes(app: FastAPI, service: _Service) -> None:
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": text}
        for status, text in {
            400: "the body is not JSON",
            401: "no valid key",
            413: "the body is too large",
            422: "a field is unknown or holds a value that is not allowed; the body names it",
            429: "busy; see Retry-After",
            503: "the rollout broke or could not be stored: a missing reward, not a reward of 0",
        }.items()
    }

    @app.get("/")
    async def root() -> dict[str, Any]:
        """What this is; open to all."""
        return {"service": SERVICE, "version": __version__, "task": service.spec.app.name, "health": "/health"}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the app is up; open to all."""
        return {
            "healthy": True,
            "status": "healthy",
            "service": SERVICE,
            "version": __version__,
            "task": service.spec.app.name,
            "pid": os.getpid(),
        }

    @app.get("/info", responses={401: errors[401]})
    async def info() -> dict[str, Any]:
        """The task, its tools, options, policies, flags and limits."""
        return service.describe()

    @app.get("/task_info", responses={code: errors[code] for code in (401, 422)})
    async def task_info(seed: Annotated[list[Seed] | None, Query(max_length=64)] = None) -> Any:
        """The task, and for each `seed` given the facts of its world."""
        described = service.describe()
        if not seed:
            return described
        found = [await to_thread.run_sync(service.seed_info, one) for one in seed]
        return described | {"instances": found}

    @app.post("/rollout", responses=errors)
    async def rollout(request: RolloutRequest) -> dict[str, Any]:
        """Play one episode and store it."""
        return await service.play(request)

    @app.exception_handler(Exception)
    async def unexpected(request: Any, error: Exception) -> Any:
        return error_response(500, "internal", "the server failed; the log says why")
