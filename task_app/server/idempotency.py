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

from task_app.core.errors import StoreError
from task_app.http.errors import Busy
from task_app.rollout.replay import replay
from task_app.server.responses import response_bytes
from task_app.server.rollouts import FinishedRollout, Rollout
from task_app.server.shared import Shared
from task_app.store import TraceStore

__all__ = ["Answered", "answered_once"]

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as JSON; `again` when an earlier request with the same key was answered so."""

    body: bytes
    again: bool = False


async def answered_once(
    shared: Shared,
    store: TraceStore,
    key: str,
    body: bytes,
    rollout: Rollout,
    play: Callable[[], Awaitable[bytes]],
    *,
    limit_s: float,
) -> Answered:
    """`play`'s answer, or the one that another request with `key` got.

    Raises Conflict for a key that came with another body, Busy when the rollout it began still plays after `limit_s`,
    and what `play` raises.
    """
    deadline = time.monotonic() + limit_s
    while True:
        before = await to_thread.run_sync(shared.begin_request, key, body, rollout.episode_id)
        if before is None:
            break
        if before.answer is not None:
            return Answered(before.answer, again=True)
        if before.lost:
            stored = await to_thread.run_sync(_stored_answer, store, before.episode_id, rollout)
            if stored is not None:
                await to_thread.run_sync(shared.finish_request, key, stored)
                return Answered(stored, again=True)
            if await to_thread.run_sync(shared.take_over, key, before.episode_id, rollout.episode_id):
                break
        if time.monotonic() >= deadline:
            raise Busy
        await asyncio.sleep(_LOOK_EVERY_S)
    try:
        answer = await play()
    except BaseException:
        await asyncio.shield(to_thread.run_sync(shared.forget_request, key))
        raise
    await to_thread.run_sync(shared.finish_request, key, answer)
    return Answered(answer)


def _stored_answer(store: TraceStore, episode_id: str, rollout: Rollout) -> bytes | None:
    """The answer of an episode that was stored before its process could send it; None when none was stored."""
    try:
        episode = store.episode(episode_id)
    except StoreError:
        return None
    states: tuple[Any, ...] = tuple(one.observation for one in replay(rollout.resolved.spec, episode, texts=False))
    return response_bytes(FinishedRollout(rollout.resolved, episode, states))
