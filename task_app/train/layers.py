"""A batch's rewards taken apart into layers, and who was still alive at each turn. No torch, no judgement.

A layer is one number per episode, kept group by group, since only what differs inside a group teaches anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from task_app.collect import Batch, BatchMetrics, RewardedEpisode
from task_app.core.rewards import rewards_from_events
from task_app.train.guards import GOALS, TOTAL, Grouped, mean_of, spread

__all__ = ["LAYERS", "alive_facts", "layer_facts", "reward_layers"]

LAYERS = (TOTAL, *GOALS, "ach_delta", "lambda", "beta", "env_return")
"""return: Σ r · outcome · unique_delta, ach_delta: sums over decisions · lambda, beta: what those terms of r add
· env_return: sum of the steps' own rewards."""


def reward_layers(batch: Batch) -> dict[str, Grouped]:
    """Every layer of LAYERS, one number per member of each complete group."""
    columns: dict[str, list[list[float]]] = {name: [] for name in LAYERS}
    for group in batch.groups:
        members = [_member_layers(member, batch.metrics) for member in group.members]
        for name in LAYERS:
            columns[name].append([layers[name] for layers in members])
    return dict(columns)


def _member_layers(member: RewardedEpisode, flags: BatchMetrics) -> dict[str, float]:
    episode = member.episode
    records = rewards_from_events(decision.events for decision in episode.decisions)
    paid = [record for record in records if record.unique_delta > 0] if flags.mode == "decision_stepwise" else []
    horizon = episode.max_decisions if flags.horizon == "configured" else len(records)
    return {
        "return": member.vector.total,
        "outcome": float(episode.outcome or 0.0),
        "unique_delta": float(sum(record.unique_delta for record in records)),
        "ach_delta": float(sum(record.ach_delta for record in records)),
        "lambda": flags.indicator_lambda * len(paid),
        "beta": flags.beta * fsum(horizon - (record.turn - 1) for record in paid),
        "env_return": episode.environment_return,
    }


def layer_facts(layers: Mapping[str, Grouped]) -> dict[str, float | None]:
    """`layer/<name>/mean` over episodes and `layer/<name>/spread` inside groups; None without a group."""
    facts: dict[str, float | None] = {}
    for name, groups in layers.items():
        facts[f"layer/{name}/mean"] = mean_of([value for group in groups for value in group])
        facts[f"layer/{name}/spread"] = spread(groups)
    return facts


def alive_facts(batch: Batch) -> dict[str, list[int]]:
    """By turn: members that have this decision, and those of them that are the only one in their group."""
    lengths = [[len(member.rewards) for member in group.members] for group in batch.groups]
    turns = max((length for group in lengths for length in group), default=0)
    alive = [[sum(length > turn for length in group) for group in lengths] for turn in range(turns)]
    return {
        "alive/by_turn": [sum(counts) for counts in alive],
        "alive/singletons_by_turn": [_ones(counts) for counts in alive],
    }


def _ones(counts: Sequence[int]) -> int:
    return sum(count == 1 for count in counts)
