"""One episode → its reward vector r."""

from __future__ import annotations

from dataclasses import dataclass

from task_app.core.types import Episode, StepRewardFlags

__all__ = ["RewardVector", "reward_vector"]


@dataclass(frozen=True, slots=True)
class RewardVector:
    """r of one episode: one number per decision."""

    values: tuple[float, ...]


def reward_vector(episode: Episode, flags: StepRewardFlags) -> RewardVector:
    """r of a rewarded episode: 0 except the last decision, which gets the outcome; [] without decisions."""
    if episode.outcome is None:
        raise ValueError(f"episode {episode.episode_id} has status {episode.status} and carries no reward")
    count = len(episode.decisions)
    return RewardVector(((0.0,) * (count - 1) + (episode.outcome,)) if count else ())
