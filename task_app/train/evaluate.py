"""Held-out evaluation: one episode per world with keyed noise, and its line in the log. Works for any policy.

Every figure is over the episodes that carry a reward; failed ones are counted, never scored 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from task_app.analyze import summarise
from task_app.collect import reward_vector
from task_app.config import Config
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.rollout import plan_groups, play
from task_app.wiring import make_limits

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcomes on held-out worlds.

    low, high       95 % interval of the mean; None below two episodes
    event_shares    share of episodes in which each event happened, by name, 0 included
    reward_by_turn  mean decision reward per turn, over all episodes (0 where one had ended)
    outcomes        of each rewarded episode, in the order of their seeds
    """

    policy: str
    policy_version: str
    seeds: str
    n: int
    failed: int
    mean: float | None
    low: float | None
    high: float | None
    mean_decisions: float | None
    event_shares: dict[str, float]
    reward_by_turn: list[float]
    outcomes: list[float]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for the metrics log."""
        return asdict(self)


def evaluate(
    policy: Policy,
    spec: TaskSpec,
    config: Config,
    sink: Callable[[Episode], None],
    *,
    run_id: str,
    update: int | None = None,
) -> Evaluation:
    """Play `eval.seeds`, one episode each, and sum them up; episodes go to `sink` as they end.

    The noise depends on `eval.sampling_seed` and the world alone, so two policies meet the same draws.
    """
    held_out = config.eval
    plans = plan_groups(held_out.seeds.seeds(), 1, run_id=run_id, noise_seed=held_out.sampling_seed)
    plans = [replace(plan, update=update) for plan in plans]
    flags, concurrency = config.step_rewards, config.rollout.concurrency
    episodes = play(plans, spec, policy, make_limits(config), flags, sink, concurrency=concurrency)
    summary = summarise(episodes)
    scored = [episode for episode in episodes if episode.rewarded]
    return Evaluation(
        policy=policy.name,
        policy_version=policy.version,
        seeds=str(held_out.seeds),
        n=len(scored),
        failed=len(episodes) - len(scored),
        mean=summary.outcome.mean,
        low=summary.outcome.low,
        high=summary.outcome.high,
        mean_decisions=sum(len(episode.decisions) for episode in scored) / len(scored) if scored else None,
        event_shares={name: summary.event_shares.get(name, 0.0) for name in spec.app.event_names},
        reward_by_turn=_reward_by_turn(scored, flags),
        outcomes=[float(episode.outcome or 0.0) for episode in scored],
    )


def _reward_by_turn(scored: Sequence[Episode], flags: StepRewardFlags) -> list[float]:
    vectors = [reward_vector(episode, flags).decisions for episode in scored]
    turns = max((len(vector) for vector in vectors), default=0)
    return [math.fsum(vector[turn] for vector in vectors if len(vector) > turn) / len(vectors) for turn in range(turns)]
