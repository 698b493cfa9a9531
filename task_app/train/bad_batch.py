"""What is kept of a batch whose loss or gradient was not finite, so that it can be looked at. Judges nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from task_app.collect import Batch
from task_app.core.errors import TrainError
from task_app.core.types import Decision
from task_app.credit import CreditResult
from task_app.train.disk import replace_text
from task_app.train.metrics import strict

__all__ = ["dump_batch"]


def dump_batch(run_dir: Path, update: int, reason: str, batch: Batch, credit: CreditResult) -> str:
    """Write `run_dir/bad_batch-u<update>.json`: per decision its ids, advantage and log-probabilities.

    Numbers that are not finite are null. Returns a clause that says where it is, or why it could not be written: the
    fault that made it is what matters, and is not hidden by a full disk.
    """
    path = run_dir / f"bad_batch-u{update:06d}.json"
    episodes = [
        {
            "episode_id": member.episode.episode_id,
            "group_id": member.episode.group_id,
            "member": member.episode.member,
            "seed": member.episode.task.seed,
            "policy_version": member.episode.policy_version,
            "rewards": list(member.rewards),
            "decisions": [
                _decision(decision, advantage)
                for decision, advantage in zip(member.episode.decisions, advantages, strict=True)
            ],
        }
        for group, credited in zip(batch.groups, credit.groups, strict=True)
        for member, advantages in zip(group.members, credited.advantages, strict=True)
    ]
    record = strict({"update": update, "reason": reason, "episodes": episodes})
    try:
        replace_text(path, json.dumps(record, allow_nan=False))
    except TrainError as error:
        return str(error)
    return f"the batch is in {path}"


def _decision(decision: Decision, advantage: float) -> dict[str, Any]:
    tokens = decision.completion.tokens
    traced: dict[str, Any] = {}
    if tokens is not None:
        traced = {
            "prompt_ids": tokens.prompt_ids,
            "completion_ids": tokens.completion_ids,
            "logprobs": tokens.logprobs,
            "mask": tokens.mask,
        }
    identity = {"turn": decision.turn, "completion_id": decision.completion.completion_id}
    return {**identity, "advantage": advantage, **traced}
