"""What the routes share: rollouts in threads of their own, how many at once and how long, and descriptions.

Nothing heavy runs on the event loop. At most `max_concurrent_rollouts` play, `max_waiting_rollouts` wait,
further ones are refused; none holds its place beyond its time limit, however its policy hangs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from anyio import to_thread

from task_app import __version__
from task_app.config import Config
from task_app.core.task import TaskSpec
from task_app.http.errors import Busy, InfrastructureFailure
from task_app.server.requests import RolloutRequest
from task_app.server.resolve import resolve_request
from task_app.server.responses import broken_rollout, rollout_json
from task_app.server.rollouts import FinishedRollout, Rollout
from task_app.store import TraceStore
from task_app.wiring import policy_names

__all__ = ["SERVICE", "Service"]

SERVICE = "crafter-task-app"
GRACE_S = 1.0
"""How long a rollout may take to notice that its time is up or the server stops, before it is given up."""

ResultT = TypeVar("ResultT")


class Service:
    """One served task. `opened` for as long as it plays; `stop` ends what is running."""

    def __init__(self, config: Config, spec: TaskSpec, environ: Mapping[str, str]) -> None:
        self._config, self._spec, self._environ = config, spec, environ
        self._slots = asyncio.Semaphore(config.server.max_concurrent_rollouts)
        self._accepted = 0
        self._stop = threading.Event()
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold the trace database and the connections to model endpoints open. Raises StoreError."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        with (
            TraceStore.open(self._config.rollout.trace_db) as self._store,
            httpx.Client(follow_redirects=False, limits=limits) as self._client,
        ):
            try:
                yield
            finally:
                self.stop()

    def stop(self) -> None:
        """Abort what is running at its next decision, at the latest after `GRACE_S`; refuse what waits."""
        self._stop.set()
        self._stopping.set()

    async def play(self, request: RolloutRequest) -> bytes:
        """Play one request; its answer as JSON.

        Raises ConfigError for what the request asks, Busy when too many wait, InfrastructureFailure when the
        rollout broke, StoreError when it could not be kept.
        """
        resolved = await to_thread.run_sync(self._resolve, request)
        async with self._slot(resolved.limits.max_time_s):
            if self._stopping.is_set():
                raise InfrastructureFailure("the server is stopping")
            rollout = Rollout(resolved, self._store, self._stop)
            return await self._at_most(rollout, in_daemon_thread(self._answer, rollout))

    async def _at_most(self, rollout: Rollout, answer: Future[bytes]) -> bytes:
        """The answer, or that of the episode given up, when its time is up or the server stops."""
        limit_s = rollout.resolved.limits.max_time_s
        waited_for, stopping = asyncio.wrap_future(answer), asyncio.ensure_future(self._stopping.wait())
        timeout_s = None if limit_s is None else limit_s + GRACE_S
        await asyncio.wait((waited_for, stopping), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping.is_set():
            await asyncio.wait((waited_for,), timeout=GRACE_S)
        stopping.cancel()
        if waited_for.done():
            return waited_for.result()
        cause = "interrupted" if self._stopping.is_set() else f"took longer than {limit_s:g} s"
        return await to_thread.run_sync(_given_up, rollout, cause)

    @asynccontextmanager
    async def _slot(self, max_wait_s: float | None) -> AsyncIterator[None]:
        server = self._config.server
        if self._accepted >= server.max_concurrent_rollouts + server.max_waiting_rollouts:
            raise Busy
        self._accepted += 1
        try:
            try:
                await asyncio.wait_for(self._slots.acquire(), max_wait_s)
            except TimeoutError:
                raise Busy from None
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self._accepted -= 1

    def _resolve(self, request: RolloutRequest) -> ResolvedRequest:
        return resolve_request(request, self._config, client=self._client, environ=self._environ)

    def _answer(self, rollout: Rollout) -> bytes:
        run_id = rollout.resolved.request.run_id
        self._store.write_run(run_id, "serve", self._config.model_dump(mode="json"))
        return _json(rollout.play())
