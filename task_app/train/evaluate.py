"""Held-out evaluation: one episode per world with keyed noise, and what it says. Works for any policy.

Every figure is over the episodes that carry a reward; failed ones are counted, never scored 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from task_app.collect import reward_vector
from task_app.config.models import Config
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.rollout import EpisodePlan, Limits, plan_groups, play

__all__ = ["Evaluation", "evaluate", "limits_of", "summarise"]

NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcomes on held-out worlds.

    low, high       95 % interval of the mean (normal approximation); None below two episodes
    event_shares    share of episodes in which each event happened, by name
    reward_by_turn  mean decision reward per turn, over all episodes (0 where one had ended)
    outcomes        per world seed, in order
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


def limits_of(config: Config) -> Limits:
    """The limits of episodes played under a config."""
    rollout = config.rollout
    return Limits(rollout.max_decisions, rollout.max_parse_failures, rollout.infra_tries)


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
    plans: Sequence[EpisodePlan] = [
        replace(plan, update=update)
        for plan in plan_groups(config.eval.seeds.seeds(), 1, run_id=run_id, noise_seed=config.eval.sampling_seed)
    ]
    flags = config.step_rewards
    episodes = play(plans, spec, policy, limits_of(config), flags, sink, concurrency=config.rollout.concurrency)
    return summarise(episodes, flags, spec.app.event_names, seeds=str(config.eval.seeds))


def summarise(
    episodes: Sequence[Episode], flags: StepRewardFlags, event_names: Sequence[str], *, seeds: str = ""
) -> Evaluation:
    """The figures of episodes already played; pure."""
    scored = [episode for episode in episodes if episode.rewarded]
    outcomes = [float(episode.outcome or 0.0) for episode in scored]
    low, high = _interval(outcomes)
    happened = Counter(name for episode in scored for name in set(episode.event_counts))
    vectors = [reward_vector(episode, flags).decisions for episode in scored]
    turns = max((len(vector) for vector in vectors), default=0)
    first = episodes[0] if episodes else None
    count = len(scored)
    return Evaluation(
        policy=first.policy if first else "",
        policy_version=first.policy_version if first else "",
        seeds=seeds,
        n=count,
        failed=len(episodes) - count,
        mean=math.fsum(outcomes) / count if count else None,
        low=low,
        high=high,
        mean_decisions=sum(len(vector) for vector in vectors) / count if count else None,
        event_shares={name: happened[name] / count if count else 0.0 for name in event_names},
        reward_by_turn=[
            math.fsum(vector[turn] for vector in vectors if len(vector) > turn) / count for turn in range(turns)
        ],
        outcomes=outcomes,
    )


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return None, None
    middle = math.fsum(values) / len(values)
    variance = math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
    half = NORMAL_95 * math.sqrt(variance / len(values))
    return middle - half, middle + half
