"""The step-wise routes, in the hosted app and under its key. Routes only; sessions.py and policies.py do the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from task_app.config import Config
from task_app.http.errors import Busy, error_response
from task_app.server.service import Service
from task_app.server.shared import shared_path
from task_app.server.stepwise.bodies import InitializeBody, PolicyBody, PolicyStepBody, StepBody, TerminateBody
from task_app.server.stepwise.policies import SessionPolicies
from task_app.server.stepwise.sessions import SessionProblem, Sessions
from task_app.server.stepwise.table import SessionTable

__all__ = ["add_to"]

logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON"},
    401: {"description": "no valid key"},
    404: {"description": "no such environment, session or policy"},
    409: {"description": "the session's episode has ended, or another request of it is being played"},
    413: {"description": "the body is too large"},
    422: {"description": "a field is unknown or holds a value that is not allowed; the body names it"},
    429: {"description": "as many sessions, policies or requests as allowed are open; see Retry-After"},
    503: {"description": "the environment, the policy or the store broke: a missing reward, not a reward of 0"},
}


class _Stepwise:
    """The open parts, and threads for the work: at most as many at once as rollouts, as many more may wait."""

    def __init__(self, config: Config, environ: Mapping[str, str], service: Service) -> None:
        self._config, self._environ, self._service = config, environ, service
        self.app = service.spec.app
        self._inside = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold the sessions open, end what nobody uses meanwhile, and what is left at the end.

        Inside the service's own `opened`: episodes are stored where rollouts are.
        """
        config, service = self._config, self._service
        self._threads = CapacityLimiter(config.server.max_concurrent_rollouts)
        with SessionTable(shared_path(config.rollout.trace_db)) as table:
            self.sessions = Sessions(config, table, service.store, service.files)
            self.policies = SessionPolicies(self.sessions, service.client, self._environ)
            expiring = asyncio.create_task(self._expire())
            try:
                yield
            finally:
                expiring.cancel()
                with suppress(asyncio.CancelledError):
                    await expiring
                await to_thread.run_sync(self.sessions.abort_own)

    async def run(self, work: Callable[..., ResultT], *arguments: Any) -> ResultT:
        """Do blocking work in a thread. Raises Busy when too many requests do, or wait."""
        server = self._config.server
        if self._inside >= server.max_concurrent_rollouts + server.max_waiting_rollouts:
            raise Busy
        self._inside += 1
        try:
            return await to_thread.run_sync(work, *arguments, limiter=self._threads)
        finally:
            self._inside -= 1

    def check_name(self, name: str) -> None:
        """Raise SessionProblem for a task that is not served here."""
        if name not in (self.app.name, *self.app.aliases):
            raise SessionProblem(404, "not_found", f"this server plays {self.app.name!r}", "env_name")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._config.server.session_ttl_s / 4))
            try:
                await to_thread.run_sync(self.sessions.expire)
            except Exception:  # a locked or full disk now may be well in a moment
                logger.exception("sessions could not be looked through")


def add_to(app: FastAPI, config: Config, environ: Mapping[str, str], service: Service) -> None:
    """Add the routes, and what keeps their sessions, to the hosted app of `service`."""
    stepwise = _Stepwise(config, environ, service)
    _open_with(app, stepwise)
    _add_env_routes(app, stepwise)
    _add_policy_routes(app, stepwise)

    @app.exception_handler(SessionProblem)
    async def no_session(request: Request, problem: SessionProblem) -> JSONResponse:
        ending = {"ending": problem.ending} if problem.ending is not None else {}
        return error_response(problem.status, problem.code, str(problem), problem.field, **ending)


def _open_with(app: FastAPI, stepwise: _Stepwise) -> None:
    """Open the sessions inside the app's own lifespan."""
    outer = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: Any) -> AsyncIterator[Any]:
        async with outer(running) as state, stepwise.opened():
            yield state

    app.router.lifespan_context = lifespan


def _add_env_routes(app: FastAPI, stepwise: _Stepwise) -> None:
    @app.post("/env/{name}/initialize", responses=_ERRORS)
    async def initialize(name: str, body: InitializeBody) -> dict[str, Any]:
        """Begin an episode whose decisions the client makes."""
        stepwise.check_name(name)
        if body.env_name is not None:
            stepwise.check_name(body.env_name)
        return await stepwise.run(stepwise.sessions.initialize, name, body)

    @app.post("/env/{name}/step", responses=_ERRORS)
    async def step(name: str, body: StepBody) -> dict[str, Any]:
        """Play one decision: its steps, reward, decision record and the next prompt."""
        stepwise.check_name(name)
        return await stepwise.run(stepwise.sessions.step, body)

    @app.post("/env/{name}/terminate", responses=_ERRORS)
    async def terminate(name: str, body: TerminateBody) -> dict[str, Any]:
        """End a session; an episode that had not ended is stored as aborted, without a reward."""
        stepwise.check_name(name)
        return await stepwise.run(stepwise.sessions.terminate, body.env_id)


def _add_policy_routes(app: FastAPI, stepwise: _Stepwise) -> None:
    @app.post("/policy/create", responses=_ERRORS)
    async def create(body: PolicyBody) -> dict[str, Any]:
        """Keep one of the app's own policies, scripted or chat, to be asked about sessions."""
        return await stepwise.run(stepwise.policies.create, body)

    @app.post("/policy/step", responses=_ERRORS)
    async def decide(body: PolicyStepBody) -> dict[str, Any]:
        """The decision a policy would make in a session now; nothing is played."""
        return await stepwise.run(stepwise.policies.step, body)
