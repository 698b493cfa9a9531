"""Held-out evaluation: one episode per world with keyed noise, and its line in the log. Works for any policy.

Every figure is over the episodes that carry a reward; failed ones are counted, never scored 0. Means are over worlds
first; over training seeds only afterwards (`launch.train_seeds`). It trains nothing and chooses no checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from task_app.analyze import summarise
from task_app.collect import reward_vector
from task_app.config import Config
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.rollout import Limits, plan_groups
from task_app.store import TraceStore
from task_app.train.hosted import OwnRollouts, Rollouts
from task_app.train.paired import paired
from task_app.train.plan import config_json
from task_app.wiring import make_limits, make_step_limits

__all__ = ["STEPS", "Evaluation", "evaluate", "evaluate_both"]

STEPS = "steps"
"""What the run id of the evaluation with a budget of environment steps ends in."""

_IN_FULL = ("policy", "policy_version", "seeds", "event_shares", "reward_by_turn")
"""Fields of an evaluation that the line's second one leaves out."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcomes on held-out worlds.

    low, high       95 % interval of the mean; None below two episodes
    mean_steps      environment steps an episode used
    event_shares    share of episodes in which each event happened, by name, 0 included
    reward_by_turn  mean decision reward per turn, over all episodes (0 where one had ended)
    worlds          seeds of the rewarded episodes, in order
    outcomes        of each of them
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
    mean_steps: float | None
    event_shares: dict[str, float]
    reward_by_turn: list[float]
    worlds: list[int]
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
    limits: Limits | None = None,
    rollouts: Rollouts = OwnRollouts(),
) -> Evaluation:
    """Play `eval.seeds`, one episode each, and sum them up; episodes go to `sink` as they end.

    The noise depends on `eval.sampling_seed` and the world alone, so two policies meet the same draws.
    """
    held_out = config.eval
    plans = plan_groups(held_out.seeds.seeds(), 1, run_id=run_id, noise_seed=held_out.sampling_seed)
    plans = [replace(plan, update=update) for plan in plans]
    flags, concurrency = config.step_rewards, config.rollout.concurrency
    limits = limits or make_limits(config)
    episodes = rollouts.play(plans, spec, policy, limits, flags, sink, concurrency=concurrency)
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
        mean_decisions=_mean([len(episode.decisions) for episode in scored]),
        mean_steps=_mean([len(episode.steps) for episode in scored]),
        event_shares={name: summary.event_shares.get(name, 0.0) for name in spec.app.event_names},
        reward_by_turn=_reward_by_turn(scored, flags),
        worlds=[episode.task.seed for episode in scored],
        outcomes=[float(episode.outcome or 0.0) for episode in scored],
    )


def evaluate_both(
    policy: Policy,
    spec: TaskSpec,
    config: Config,
    store: TraceStore,
    *,
    run_id: str,
    update: int,
    first: Mapping[str, Any] | None = None,
    rollouts: Rollouts = OwnRollouts(),
) -> dict[str, Any]:
    """Evaluate under the turn limit and, where `eval.env_steps` asks for it, under that budget; what to log.

    Episodes go to the runs `run_id` and `run_id`-steps; what an interrupted evaluation of this update left there is
    superseded. With the line of a `first` evaluation, each has the paired difference to it. Raises StoreError.
    """

    def one(run_id: str, limits: Limits | None, first: Mapping[str, Any] | None) -> dict[str, Any]:
        store.write_run(run_id, "eval", config_json(config))
        store.supersede(run_id, update)
        done = evaluate(
            policy,
            spec,
            config,
            store.write_episode,
            run_id=run_id,
            update=update,
            limits=limits,
            rollouts=rollouts,
        )
        return done.to_json() | {"paired": paired(first, done.to_json()) if first else None}

    line = one(run_id, None, first)
    limits = make_step_limits(config)
    if limits is None:
        return line | {"env_steps": None}
    second = one(f"{run_id}-{STEPS}", limits, first and first.get("env_steps"))
    shown = {name: value for name, value in second.items() if name not in _IN_FULL}
    return line | {"env_steps": {"budget": limits.max_env_steps, **shown}}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _reward_by_turn(scored: Sequence[Episode], flags: StepRewardFlags) -> list[float]:
    vectors = [reward_vector(episode, flags).decisions for episode in scored]
    turns = max((len(vector) for vector in vectors), default=0)
    return [math.fsum(vector[turn] for vector in vectors if len(vector) > turn) / len(vectors) for turn in range(turns)]
