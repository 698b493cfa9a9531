"""A request that is sent again with the same `Idempotency-Key` is answered by the rollout that the first one began.

It waits for that rollout where it still plays, in whichever worker. Where the worker has died, its stored episode is
the answer, or, if it stored none, the rollout is played again. A rollout that came to nothing leaves no answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from task_app.http.errors import Busy
from task_app.rollout import Stop
from task_app.rollout.replay import replay
from task_app.server.responses import response_bytes
from task_app.server.rollouts import FinishedRollout, Rollout
from task_app.server.shared import Shared
from task_app.store import TraceStore

__all__ = ["Answered", "Once"]

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as JSON; `again` when an earlier request with the same key was answered so."""

    body: bytes
    again: bool = False


class Once:
    """One request with an idempotency `key`, and the rollout that would answer it."""

    def __init__(self, shared: Shared, store: TraceStore, key: str, body: bytes, rollout: Rollout) -> None:
        self._shared, self._store, self._rollout = shared, store, rollout
        self._key, self._body = key, body

    async def answered(self, play: Callable[[], Awaitable[bytes]], limit_s: float) -> Answered:
        """`play`'s answer, or the one that another request with the key got.

        Raises Conflict for a key that came with another body, Busy when the rollout it began still plays after
        `limit_s`, StoreError while it is not known whether it was stored, and what `play` raises.
        """
        before = await self._answer_before(limit_s)
        if before is not None:
            return Answered(before, again=True)
        stop = self._rollout.stop
        try:
            answer = await play()
        except BaseException:
            await asyncio.shield(to_thread.run_sync(self._shared.forget_request, self._key))
            raise
        if stop.is_set() and stop.cause == Stop.INTERRUPTED:  # the server ends: the next one shall play it whole
            await to_thread.run_sync(self._shared.forget_request, self._key)
        else:
            await to_thread.run_sync(self._shared.finish_request, self._key, answer)
        return Answered(answer)

    async def _answer_before(self, limit_s: float) -> bytes | None:
        """An earlier answer, waited for; None where it is this request that plays."""
        deadline, mine = time.monotonic() + limit_s, self._rollout.episode_id
        while True:
            before = await to_thread.run_sync(self._shared.begin_request, self._key, self._body, mine)
            if before is None or before.answer is not None:
                return before.answer if before else None
            if before.lost:
                stored = await to_thread.run_sync(self._stored_answer, before.episode_id)
                if stored is not None:
                    await to_thread.run_sync(self._shared.finish_request, self._key, stored)
                    return stored
                if await to_thread.run_sync(self._shared.take_over, self._key, before.episode_id, mine):
                    return None
            if time.monotonic() >= deadline:
                raise Busy
            await asyncio.sleep(_LOOK_EVERY_S)

    def _stored_answer(self, episode_id: str) -> bytes | None:
        """The answer of an episode that was stored before its process could send it; None when none was stored.

        One that broke is no answer: like every rollout that comes to nothing it is played again.
        """
        if not self._store.query("SELECT 1 FROM episodes WHERE episode_id = ?", (episode_id,)):
            return None
        episode, resolved = self._store.episode(episode_id), self._rollout.resolved
        if episode.status == "infra_error":
            return None
        states: tuple[Any, ...] = tuple(one.observation for one in replay(resolved.spec, episode, texts=False))
        return response_bytes(FinishedRollout(resolved, episode, states))
