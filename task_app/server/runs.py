"""A run as its client may ask for it: what plays and waits in any worker, what is stored, and the end of both.

A run is whatever rollouts share a `run_id`. Reads and marks; the workers that play act on it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from task_app.http.errors import NotFound
from task_app.server.shared import Shared
from task_app.store import TraceStore

__all__ = ["RunStatus", "abort_run", "run_status"]

_LISTED = 100
"""Stored episodes an answer lists, the newest first; all are counted."""


class RunStatus(BaseModel):
    """`status`: running while anything plays or waits, else done. `episodes` counts what is stored, by status."""

    run_id: str
    status: str
    running: int
    waiting: int
    aborting: int
    episodes: dict[str, int]
    rollouts: list[dict[str, Any]]


def run_status(run_id: str, shared: Shared, store: TraceStore) -> RunStatus:
    """What plays, waits and is stored of a run. Raises NotFound for a run nobody began."""
    active = shared.rollouts_of(run_id)
    sql = "SELECT status, count(*) FROM episodes WHERE run_id = ? GROUP BY status ORDER BY status"
    counts: dict[str, int] = {row[0]: row[1] for row in store.query(sql, (run_id,))}
    if not active and not counts:
        raise NotFound("no rollout of this run plays, waits or is stored here", field="run_id")
    stored = store.query(
        """SELECT episode_id, status, cause, outcome FROM episodes WHERE run_id = ?
           ORDER BY finished_at DESC, episode_id LIMIT ?""",
        (run_id, _LISTED),
    )
    return RunStatus(
        run_id=run_id,
        status="running" if active else "done",
        running=sum(rollout.state == "running" for rollout in active),
        waiting=sum(rollout.state == "waiting" for rollout in active),
        aborting=sum(rollout.aborting for rollout in active),
        episodes=counts,
        rollouts=[
            *({"episode_id": one.episode_id, "status": one.state} for one in active),
            *(dict(zip(("episode_id", "status", "cause", "outcome"), row, strict=True)) for row in stored),
        ],
    )


def abort_run(run_id: str, shared: Shared, store: TraceStore) -> int:
    """Ask every worker to end what plays or waits of a run; how many there are, 0 for a run that is over.

    Raises NotFound for a run nobody began.
    """
    asked = shared.abort(run_id)
    if not asked and not list(store.query("SELECT 1 FROM episodes WHERE run_id = ? LIMIT 1", (run_id,))):
        raise NotFound("no rollout of this run plays, waits or is stored here", field="run_id")
    return asked
