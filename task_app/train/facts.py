"""What the log says of a run's start and of each update, computed from the values at hand. No torch."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from task_app.collect import Batch
from task_app.config.models import Config
from task_app.core.types import Episode
from task_app.credit import CreditResult
from task_app.train.behaviour import measure_behaviour
from task_app.train.layers import alive_facts, layer_facts, reward_layers
from task_app.train.plan import credit_settings, warnings

__all__ = [
    "Clock",
    "advantages_by_episode",
    "batch_facts",
    "behaviour_facts",
    "peak_rss_mb",
    "run_facts",
    "seconds_by_part",
]


class Clock:
    """Seconds by name, and in total since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def total(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._start


def run_facts(config: Config) -> dict[str, Any]:
    """Mode, flags and settings in force, echoed in a run's first line."""
    flags, credit = asdict(config.step_rewards), asdict(credit_settings(config))
    return {
        "step_rewards": flags,
        "credit": credit,
        "updates": config.training.updates,
        "groups_per_update": config.training.groups_per_update,
        "group_size": config.rollout.group_size,
        "max_decisions": config.rollout.max_decisions,
        "optimizer_steps_per_update": config.training.optimizer_steps_per_update,
        "learning_rate": config.training.learning_rate,
        "temperature": config.policy.temperature,
        "warnings": warnings(config),
    }


def batch_facts(batch: Batch, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Rewards, outcomes and losses of an update's batch. Sums run over complete groups."""
    metrics = batch.metrics
    members = [member.episode for group in batch.groups for member in group.members]
    vectors = [member.rewards for group in batch.groups for member in group.members]
    parsed = [decision.failure is None for episode in members for decision in episode.decisions]
    failed = [episode for episode in episodes if not episode.rewarded]
    return {
        "reward/mode": metrics.mode,
        "reward/sum": metrics.reward_sum,
        "reward/mean_return": metrics.reward_sum / metrics.episodes if metrics.episodes else None,
        "reward/ach_delta_sum": metrics.ach_delta_sum,
        "reward/unique_delta_sum": metrics.unique_delta_sum,
        "reward/decisions_with_unique": metrics.decisions_with_unique,
        "reward/positive_share": _share([reward > 0 for rewards in vectors for reward in rewards]),
        "reward/episode_event_share": metrics.episode_event_share,
        "reward/has_event": metrics.has_event_reward,
        "reward/misaligned": metrics.misaligned,
        "reward/by_turn": [entry[0] for _, entry in sorted(metrics.by_turn.items())],
        "episodes": metrics.episodes,
        "decisions": metrics.decisions,
        "outcome/mean": _mean([episode.outcome or 0.0 for episode in members]),
        "length/scored": _mean([len(episode.decisions) for episode in episodes if episode.rewarded]),
        "length/failed": _mean([len(episode.decisions) for episode in failed]),
        "sampler/staleness": _staleness(members),
        "failures/episodes": len(failed),
        "failures/groups": dict(batch.dropped),
        "parse_failures": parsed.count(False),
        "parse_rate": _share(parsed),
        **layer_facts(reward_layers(batch)),
        **alive_facts(batch),
    }


def behaviour_facts(batch: Batch, known_actions: int, top: int) -> dict[str, Any]:
    """How varied the actions of complete groups were; the task has `known_actions`, the commonest `top` are named."""
    members = [member.episode for group in batch.groups for member in group.members]
    played = [[step.action for step in episode.steps] for episode in members]
    measured = measure_behaviour(played, known_actions, top=top)
    return {
        "behaviour/actions": measured.actions,
        "behaviour/unique_actions": measured.unique_actions,
        "behaviour/window_entropy": measured.window_entropy,
        "behaviour/cycle_steps": measured.cycle_steps,
        "behaviour/cycling_episodes": measured.cycling,
    }


def advantages_by_episode(batch: Batch, credit: CreditResult) -> dict[str, Sequence[float]]:
    """One advantage per decision, by episode id."""
    return {
        member.episode.episode_id: values
        for group, credited in zip(batch.groups, credit.groups, strict=True)
        for member, values in zip(group.members, credited.advantages, strict=True)
    }


def seconds_by_part(episodes: Sequence[Episode]) -> dict[str, float]:
    """Where playing spent its time, besides the policy: making worlds, stepping them, writing texts."""
    parts: Mapping[str, str] = {"world": "reset_s", "step": "env_s", "text": "text_s"}
    return {part: sum(float(episode.details.get(key, 0.0)) for episode in episodes) for part, key in parts.items()}


def peak_rss_mb() -> float:
    """The most memory this process ever held, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _staleness(members: Sequence[Episode]) -> int | None:
    """How many updates older the oldest weights that played are than those being updated."""
    ages = [
        episode.update - 1 - int(made[1])
        for episode in members
        if episode.update is not None and (made := re.fullmatch(r"u(\d+)", episode.policy_version))
    ]
    return max(ages, default=None)


def _share(hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
