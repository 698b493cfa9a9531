"""Reward vectors as JSON lines, one per rewarded episode, in the store's order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from task_app.collect.vectors import reward_vector
from task_app.core.types import Episode, StepRewardFlags

__all__ = ["collect_rows"]


def collect_rows(episodes: Iterable[Episode], flags: StepRewardFlags) -> Iterator[str]:
    """One strict-JSON line per episode that carries a reward; collecting twice gives the same bytes.

    `rewards` has one number per decision, in `env_sparse` one per step. `recomputed` stands only in
    lines whose records were not stored and were rebuilt from the events.
    """
    for episode in episodes:
        if not episode.rewarded:
            continue
        vector = reward_vector(episode, flags)
        row = {
            "run_id": episode.run_id,
            "update": episode.update,
            "group_id": episode.group_id,
            "member": episode.member,
            "episode_id": episode.episode_id,
            "seed": episode.task.seed,
            "status": episode.status,
            "mode": flags.mode,
            "decisions": len(episode.decisions),
            "outcome": episode.outcome,
            "rewards": list(vector.values),
            "return": vector.total,
        }
        if vector.source == "events":
            row["recomputed"] = True
        yield json.dumps(row, allow_nan=False)
