"""One episode → its reward vector r, exactly as docs/event_rewards.md states it.

    off                 one number per decision: 0, and the outcome at the last
    decision_stepwise   one number per decision, from its record
    env_sparse          one number per environment step, the step's own reward

Reads an `Episode` and flags, nothing else. In `off` no decision record is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum  # unlike sum, the same bytes in every Python version
from typing import Literal

from task_app.core.rewards import rewards_from_events
from task_app.core.types import DecisionRewards, Episode, StepRewardFlags

__all__ = ["RewardVector", "reward_vector", "stepwise_rewards"]

Source = Literal["outcome", "records", "events", "steps"]


@dataclass(frozen=True, slots=True)
class RewardVector:
    """r of one episode.

    values     (T,) one number per decision; in `env_sparse` (S,) one per environment step
    decisions  (T,) what trainers use: `values`, or in `env_sparse` the sum per decision, 0 without steps
    source     what it was built from: outcome | records | events (records recomputed) | steps
    """

    values: tuple[float, ...]
    decisions: tuple[float, ...]
    source: Source

    @property
    def total(self) -> float:
        """The episode return: Σ r."""
        return fsum(self.values)


def reward_vector(episode: Episode, flags: StepRewardFlags) -> RewardVector:
    """r of an episode that carries a reward; empty for one without decisions.

    Raises ValueError when the episode carries no reward (infra_error, aborted), when its records have
    duplicate, missing or out-of-range turns, or when the mode is unknown.
    """
    if episode.outcome is None:
        raise ValueError(f"episode {episode.episode_id} has status {episode.status} and carries no reward")
    match flags.mode:
        case "off":
            count = len(episode.decisions)
            values = ((0.0,) * (count - 1) + (float(episode.outcome),)) if count else ()
            return RewardVector(values, values, "outcome")
        case "decision_stepwise":
            records, source = _records(episode)
            values = stepwise_rewards(records, len(episode.decisions), episode.max_decisions, flags)
            return RewardVector(values, values, source)
        case "env_sparse":
            sums = tuple(fsum(step.reward for step in decision.steps) for decision in episode.decisions)
            return RewardVector(tuple(step.reward for step in episode.steps), sums, "steps")
        case _:
            raise ValueError(f"unknown step-reward mode {flags.mode!r}; modes: off, decision_stepwise, env_sparse")


def stepwise_rewards(
    records: Sequence[DecisionRewards], decisions: int, max_decisions: int, flags: StepRewardFlags
) -> tuple[float, ...]:
    """r of `decision_stepwise`: base + (unique_delta > 0) · (lambda + beta · (T − t)), t = turn − 1.

    base is unique_delta or ach_delta by `flags.kind`; T is `max_decisions` (`configured`) or
    `decisions` (`episode`). Raises ValueError for duplicate, missing or out-of-range turns.
    """
    by_turn: dict[int, DecisionRewards] = {}
    for record in records:
        if not 1 <= record.turn <= decisions:
            raise ValueError(f"decision record for turn {record.turn}, but the episode has turns 1 to {decisions}")
        if record.turn in by_turn:
            raise ValueError(f"two decision records for turn {record.turn}")
        by_turn[record.turn] = record
    missing = [turn for turn in range(1, decisions + 1) if turn not in by_turn]
    if missing:
        raise ValueError(f"no decision record for turn {missing[0]}")
    horizon = max_decisions if flags.horizon == "configured" else decisions
    return tuple(_reward(by_turn[turn], horizon, flags) for turn in range(1, decisions + 1))


def _reward(record: DecisionRewards, horizon: int, flags: StepRewardFlags) -> float:
    reward = float(record.unique_delta if flags.kind == "unique" else record.ach_delta)
    if record.unique_delta > 0:
        reward += flags.indicator_lambda + flags.beta * (horizon - (record.turn - 1))
    return reward


def _records(episode: Episode) -> tuple[list[DecisionRewards], Source]:
    """The stored records, or, where the episode was recorded without any, the same from its events."""
    stored = [decision.rewards for decision in episode.decisions if decision.rewards is not None]
    if stored or not episode.decisions:
        return stored, "records"
    return rewards_from_events(decision.events for decision in episode.decisions), "events"
