"""What the routes share: rollouts in threads of their own, how many at once and for how long.

Nothing heavy runs on the event loop. In all worker processes together at most `max_concurrent_rollouts` play and
`max_waiting_rollouts` wait, further ones are refused; none keeps its place beyond its time limit, however its policy
hangs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread

from task_app.config import Config
from task_app.core.errors import StoreError
from task_app.core.task import TaskSpec
from task_app.core.threads import in_daemon_thread
from task_app.core.types import Episode
from task_app.export import EpisodeFiles
from task_app.http.errors import Busy, InfrastructureFailure
from task_app.policies.chat import completions_url
from task_app.policies.http_client import HttpClient
from task_app.server.describe import describe, seed_info
from task_app.server.idempotency import Answered, Once
from task_app.server.metrics import Metrics
from task_app.server.requests import RolloutRequest
from task_app.server.resolve import ResolvedRequest, resolve_request
from task_app.server.responses import response_bytes
from task_app.server.rollouts import FinishedRollout, Rollout
from task_app.server.runs import RunStatus, abort_run, run_status
from task_app.server.shared import Counts, Shared, shared_path
from task_app.store import TraceStore

__all__ = ["Service"]

GRACE_S = 1.0
"""How long a rollout may take to notice that its time is up or the server stops, before it is given up."""
ABORTED = "aborted by request"
_LOOK_EVERY_S = 0.1
_TRY_EVERY_S = 0.01
_RUNS_REMEMBERED = 1024

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class _Seen:
    """How things were at a time of `time.monotonic`; `fault` is why the trace database cannot be read, if so."""

    at: float
    counts: Counts
    fault: str


class Service:
    """One served task; usable while `opened`.

    Then `store` is the trace database, `files` the folder of SFT rows if there is one, `client` asks model endpoints.
    """

    def __init__(self, config: Config, spec: TaskSpec, environ: Mapping[str, str], metrics: Metrics) -> None:
        self.spec, self.metrics = spec, metrics
        self._config, self._environ = config, environ
        self._config_as_json = config.model_dump(mode="json")
        self._runs_written: set[str] = set()
        self._playing: dict[str, Rollout] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._somebody_waits = asyncio.Event()
        self._stopping = asyncio.Event()
        self._seen = _Seen(-math.inf, Counts(0, 0), "")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Hold the trace database and the connections to model endpoints open.

        Raises StoreError for the database, ConfigError for a trace folder that cannot be written.
        """
        folder, server = self._config.server.trace_dir, self._config.server
        self.files = EpisodeFiles.open(folder) if folder else None
        with (
            TraceStore.open(self._config.rollout.trace_db) as self.store,
            TraceStore.open(self._config.rollout.trace_db, read_only=True) as self._glance,
            Shared.opened(
                shared_path(self._config.rollout.trace_db),
                max_running=server.max_concurrent_rollouts,
                max_waiting=server.max_waiting_rollouts,
            ) as self.shared,
            HttpClient() as self.client,
        ):
            tasks = [asyncio.create_task(self._heed_aborts()), asyncio.create_task(self._let_in())]
            try:
                yield
            finally:
                self.stop()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Abort what is running at its next decision, or give it up after `GRACE_S`; refuse what waits."""
        self._stopping.set()
        for episode_id, rollout in list(self._playing.items()):
            rollout.stop.set()
            self._wake(episode_id)

    # -- what the app says -------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """The task, how it is played, and the limits."""
        return describe(self._config, self.spec)

    async def seed_info(self, seed: int) -> dict[str, Any]:
        """One seed's instance of the task; makes its world. Raises EnvError."""
        return await to_thread.run_sync(seed_info, self.spec, seed)

    def state(self) -> dict[str, Any]:
        """Whether rollouts can be played, and how many do; the database is looked at, not only held open.

        As seen at most a moment ago by whoever looks about while rollouts play; else on the event loop, over
        connections that only read: they wait for no writer, and a thread would for its turn.
        """
        seen, server = self._seen, self._config.server
        if time.monotonic() - seen.at > 2 * _LOOK_EVERY_S:
            seen = self._see()
        counts, fault = seen.counts, seen.fault
        return {
            "ready": not fault and not self._stopping.is_set(),
            "queue": {
                "running": counts.running,
                "waiting": counts.waiting,
                "max_running": server.max_concurrent_rollouts,
                "max_waiting": server.max_waiting_rollouts,
            },
            "store": {"ok": not fault},
        }

    async def count_call(self, caller: bytes) -> int:
        """Count one more call of a caller; how many those are in the running minute, in all workers together."""
        return await to_thread.run_sync(self.shared.calls_this_minute, caller)

    async def status(self, run_id: str) -> RunStatus:
        """What plays, waits and is stored of a run. Raises NotFound."""
        return await to_thread.run_sync(run_status, run_id, self.shared, self.store)

    async def abort(self, run_id: str) -> int:
        """End all that plays or waits of a run, in every worker; how many there are. Raises NotFound."""
        return await to_thread.run_sync(abort_run, run_id, self.shared, self.store)

    # -- playing -----------------------------------------------------------------------------------

    async def play(self, request: RolloutRequest, *, key: str = "", body: bytes = b"") -> Answered:
        """Play one request and give its answer as JSON; with an idempotency `key`, once for all its repetitions.

        Raises ConfigError for what it asks, Busy when too many wait, InfrastructureFailure when the rollout
        broke, StoreError when it could not be kept, Conflict for a key that came with another `body`.
        """
        resolved = await to_thread.run_sync(self._resolve, request)
        rollout = Rollout(resolved, self.store, self.files)
        if not key:
            return Answered(await self._played(rollout))
        limit_s = self._limit_s(rollout)
        once = Once(self.shared, self.store, key, body, rollout)
        return await once.answered(lambda: self._played(rollout), limit_s)

    async def _played(self, rollout: Rollout) -> bytes:
        limit_s, begun = self._limit_s(rollout), time.monotonic()
        async with self._place(rollout, limit_s):
            if self._stopping.is_set():
                raise InfrastructureFailure("the server is stopping")
            self.metrics.began()
            try:
                playing = asyncio.wrap_future(in_daemon_thread("rollout", self._play, rollout))
                await self._wait(playing, rollout, limit_s)
                if playing.done():
                    episode, answer = playing.result()
                else:
                    cause = rollout.stop.cause if rollout.stop.is_set() else f"took longer than {limit_s:g} s"
                    episode, answer = await to_thread.run_sync(_give_up, rollout, cause)
            except BaseException:
                self.metrics.ended("not_stored", 0, time.monotonic() - begun)
                raise
            self.metrics.ended(episode.status, len(episode.decisions), time.monotonic() - begun)
            if isinstance(answer, InfrastructureFailure):
                raise answer
            return answer

    @asynccontextmanager
    async def _place(self, rollout: Rollout, max_wait_s: float) -> AsyncIterator[None]:
        """A place among those that play. Raises Busy when too many wait, or for too long."""
        episode_id = rollout.episode_id
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[episode_id] = called  # before it stands in line, where it may be called at once
        try:
            plays = await self._entered(rollout)
        except BaseException:
            del self._waiting[episode_id]
            raise
        self._playing[episode_id] = rollout
        try:
            if not plays:
                await self._wait_in_line(called, max_wait_s)
            del self._waiting[episode_id]
            yield
        finally:
            self._waiting.pop(episode_id, None)
            del self._playing[episode_id]
            for let_in in await to_thread.run_sync(self.shared.leave, episode_id):
                self._wake(let_in)

    async def _entered(self, rollout: Rollout) -> bool:
        """Whether it plays at once, and does not wait. Raises Busy when too many wait."""
        try:
            return await to_thread.run_sync(self.shared.enter, rollout.episode_id, rollout.resolved.request.run_id)
        except Busy:
            self.metrics.refused("busy")
            raise

    async def _wait_in_line(self, called: asyncio.Future[None], max_wait_s: float) -> None:
        """Until a place is free; whoever was stopped meanwhile needs none. Raises Busy after too long."""
        self._somebody_waits.set()
        try:
            async with asyncio.timeout(max_wait_s):
                await called
        except TimeoutError as error:
            self.metrics.refused("waited_too_long")
            raise Busy from error

    def _wake(self, episode_id: str) -> None:
        """Call one that waits, if it does."""
        called = self._waiting.get(episode_id)
        if called is not None and not called.done():
            called.set_result(None)

    async def _let_in(self) -> None:
        """Call those that wait, in the order of all workers together, as other workers' places become free.

        Whether there are any is looked at on the event loop, which is cheaper than to ask a thread.
        """
        while True:
            await self._somebody_waits.wait()
            await asyncio.sleep(_TRY_EVERY_S)
            if not self._waiting:
                self._somebody_waits.clear()
                continue
            try:
                if self.shared.has_turn():
                    for episode_id in await to_thread.run_sync(self.shared.advance):
                        self._wake(episode_id)
            except StoreError as error:
                logger.warning("nobody who waits is let in just now: %s", error)
                await asyncio.sleep(1.0)

    async def _wait(self, playing: asyncio.Future[Any], rollout: Rollout, limit_s: float) -> None:
        """Until the rollout has ended, its time is up, or it has been asked to end for a moment."""
        end = time.monotonic() + limit_s + GRACE_S
        while not playing.done() and (left_s := end - time.monotonic()) > 0:
            if rollout.stop.is_set():
                left_s = min(left_s, GRACE_S)
                end = min(end, time.monotonic() + left_s)
            await asyncio.wait((playing,), timeout=min(left_s, _LOOK_EVERY_S))

    async def _heed_aborts(self) -> None:
        """Stop what any worker was asked to abort, then write what is owed and free the places of the dead."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if not (self._playing or self.shared.owes):
                continue
            try:
                for episode_id in await to_thread.run_sync(self._look_about):
                    if rollout := self._playing.get(episode_id):
                        rollout.stop.set(ABORTED)
                        self._wake(episode_id)
                await to_thread.run_sync(self._catch_up)
            except StoreError as error:
                logger.warning("places and aborts are not looked after just now: %s", error)
                await asyncio.sleep(1.0)

    def _look_about(self) -> set[str]:
        """See how things are; whose end was asked for."""
        self._seen = self._see()
        return self.shared.to_abort()

    def _catch_up(self) -> None:
        self.shared.settle()
        self.shared.drop_the_dead()

    def _see(self) -> _Seen:
        return _Seen(time.monotonic(), self.shared.counts(), self._glance.fault())

    def _limit_s(self, rollout: Rollout) -> float:
        return rollout.resolved.limits.max_time_s or self._config.server.max_time_s

    def _resolve(self, request: RolloutRequest) -> ResolvedRequest:
        return resolve_request(request, self._config, client=self.client, environ=self._environ)

    def _play(self, rollout: Rollout) -> tuple[Episode, bytes | InfrastructureFailure]:
        run_id = rollout.resolved.request.run_id
        if run_id not in self._runs_written:
            self.store.write_run(run_id, "serve", self._config_as_json)
            if len(self._runs_written) >= _RUNS_REMEMBERED:
                self._runs_written.clear()
            self._runs_written.add(run_id)
        return _with_answer(rollout.play())


def _give_up(rollout: Rollout, cause: str) -> tuple[Episode, bytes | InfrastructureFailure]:
    finished = rollout.give_up(cause)
    if finished is None:
        raise InfrastructureFailure(f"no episode was begun: {cause}")
    return _with_answer(finished)


def _with_answer(finished: FinishedRollout) -> tuple[Episode, bytes | InfrastructureFailure]:
    """The episode and its answer as JSON, or the failure that is the answer."""
    episode = finished.episode
    if episode.status != "infra_error":
        return episode, response_bytes(finished)
    cause, url = episode.cause, finished.resolved.request.policy.config.inference_url
    if url and episode.policy == "chat":  # the endpoint's host is then the request's, and no answer repeats input
        cause = cause.replace(completions_url(url).host, "(inference_url)")
    return episode, InfrastructureFailure(
        f"the rollout broke: {cause}; it is stored without a reward",
        episode_id=episode.episode_id,
        decisions=len(episode.decisions),
    )
