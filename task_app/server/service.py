"""What the routes share: rollouts in threads of their own, how many at once and for how long.

Nothing heavy runs on the event loop. At most `max_concurrent_rollouts` play, `max_waiting_rollouts` wait,
further ones are refused; none keeps its place beyond its time limit, however its policy hangs.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from anyio import to_thread

from task_app.config import Config
from task_app.core.task import TaskSpec
from task_app.export import EpisodeFiles
from task_app.http.errors import Busy, InfrastructureFailure
from task_app.policies.chat import completions_url
from task_app.server.describe import describe, seed_info
from task_app.server.requests import RolloutRequest
from task_app.server.resolve import ResolvedRequest, resolve_request
from task_app.server.responses import rollout_response
from task_app.server.rollouts import FinishedRollout, Rollout
from task_app.store import TraceStore

__all__ = ["Service"]

GRACE_S = 1.0
"""How long a rollout may take to notice that its time is up or the server stops, before it is given up."""

ResultT = TypeVar("ResultT")


class Service:
    """One served task; usable while `opened`."""

    def __init__(self, config: Config, spec: TaskSpec, environ: Mapping[str, str]) -> None:
        self.spec = spec
        self._config, self._environ = config, environ
        self._config_as_json = config.model_dump(mode="json")
        self._slots = asyncio.Semaphore(config.server.max_concurrent_rollouts)
        self._accepted = 0
        self._stop = threading.Event()
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold the trace database and the connections to model endpoints open.

        Raises StoreError for the database, ConfigError for a trace folder that cannot be written.
        """
        folder = self._config.server.trace_dir
        self._files = EpisodeFiles.open(folder) if folder else None
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
        """Abort what is running at its next decision, or give it up after `GRACE_S`; refuse what waits."""
        self._stop.set()
        self._stopping.set()

    def describe(self) -> dict[str, Any]:
        """The task, how it is played, and the limits."""
        return describe(self._config, self.spec)

    async def seed_info(self, seed: int) -> dict[str, Any]:
        """One seed's instance of the task; makes its world. Raises EnvError."""
        return await to_thread.run_sync(seed_info, self.spec, seed)

    async def play(self, request: RolloutRequest) -> bytes:
        """Play one request and give its answer as JSON.

        Raises ConfigError for what it asks, Busy when too many wait, InfrastructureFailure when the rollout
        broke, StoreError when it could not be kept.
        """
        resolved = await to_thread.run_sync(self._resolve, request)
        rollout = Rollout(resolved, self._store, self._stop, self._files)
        limit_s = resolved.limits.max_time_s or self._config.server.max_time_s
        async with self._slot(limit_s):
            if self._stopping.is_set():
                raise InfrastructureFailure("the server is stopping")
            playing = asyncio.wrap_future(_in_daemon_thread(self._play, rollout))
            await self._wait(playing, limit_s)
            if playing.done():
                return playing.result()
            cause = "interrupted" if self._stopping.is_set() else f"took longer than {limit_s:g} s"
            return await to_thread.run_sync(_give_up, rollout, cause)

    @asynccontextmanager
    async def _slot(self, max_wait_s: float) -> AsyncIterator[None]:
        """A place among those that play. Raises Busy when too many wait, or for too long."""
        server = self._config.server
        if self._accepted >= server.max_concurrent_rollouts + server.max_waiting_rollouts:
            raise Busy
        self._accepted += 1
        try:
            try:
                async with asyncio.timeout(max_wait_s):
                    await self._slots.acquire()
            except TimeoutError as error:
                raise Busy from error
            try:
                yield
            finally:
                self._slots.release()
        finally:
            self._accepted -= 1

    async def _wait(self, playing: asyncio.Future[bytes], limit_s: float) -> None:
        """Until the rollout has ended, its time is up, or the server has been stopping for a moment."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((playing, stopping), timeout=limit_s + GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await asyncio.wait((playing,), timeout=GRACE_S)
        stopping.cancel()

    def _resolve(self, request: RolloutRequest) -> ResolvedRequest:
        return resolve_request(request, self._config, client=self._client, environ=self._environ)

    def _play(self, rollout: Rollout) -> bytes:
        self._store.write_run(rollout.resolved.request.run_id, "serve", self._config_as_json)
        return _answer(rollout.play())


def _give_up(rollout: Rollout, cause: str) -> bytes:
    finished = rollout.give_up(cause)
    if finished is None:
        raise InfrastructureFailure(f"no episode was begun: {cause}")
    return _answer(finished)


def _answer(finished: FinishedRollout) -> bytes:
    episode = finished.episode
    if episode.status != "infra_error":
        return json.dumps(rollout_response(finished), allow_nan=False, separators=(",", ":")).encode()
    cause, url = episode.cause, finished.resolved.request.policy.config.inference_url
    if url and episode.policy == "chat":  # the endpoint's host is then the request's, and no answer repeats input
        cause = cause.replace(completions_url(url).host, "(inference_url)")
    raise InfrastructureFailure(
        f"the rollout broke: {cause}; it is stored without a reward",
        episode_id=episode.episode_id,
        decisions=len(episode.decisions),
    )


def _in_daemon_thread(function: Callable[..., ResultT], *arguments: Any) -> Future[ResultT]:
    """Run `function` in a thread that nobody waits for when the process ends."""
    future: Future[ResultT] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="rollout").start()
    return future
