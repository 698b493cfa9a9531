"""Episodes and decisions as table rows and JSON rows: what `rollout` and `traces show` print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from task_app.collect import reward_vector
from task_app.core.rewards import rewards_from_events
from task_app.core.types import Decision, DecisionRewards, Episode

__all__ = ["decision_table", "episode_heading", "episode_row", "episode_table"]

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def episode_row(episode: Episode, *, decisions: bool = False) -> dict[str, Any]:
    """One episode as JSON values; with `decisions`, a row for each of them too."""
    records = _records(episode)
    row: dict[str, Any] = {
        "episode_id": episode.episode_id,
        "run_id": episode.run_id,
        "group_id": episode.group_id,
        "member": episode.member,
        "seed": episode.task.seed,
        "policy": episode.policy,
        "status": episode.status,
        "cause": episode.cause,
        "decisions": len(episode.decisions),
        "outcome": episode.outcome,
        "return": reward_vector(episode, episode.flags).total if episode.rewarded else None,
        "ach_delta_sum": sum(record.ach_delta for record in records),
        "unique_delta_sum": sum(record.unique_delta for record in records),
        "unique_delta_by_turn": {record.turn: record.unique_delta for record in records if record.unique_delta},
        "events": dict(sorted(episode.event_counts.items())),
    }
    if decisions:
        columns, rows = decision_table(episode, {})
        row["decision_rows"] = [dict(zip(columns, values, strict=True)) for values in rows]
    return row


def episode_table(episodes: list[Episode]) -> Table:
    """A row per episode: sums of deltas, the turns that earned them, and the achievements."""
    columns = ("episode", "seed", "#", "status", "turns", "outcome", "ΣAchΔ", "ΣUniqueΔ", "by turn", "achievements")
    rows = []
    for episode in episodes:
        row = episode_row(episode)
        by_turn = " ".join(f"{turn}:+{delta}" for turn, delta in row["unique_delta_by_turn"].items())
        shown = (
            episode.episode_id[:8],
            episode.task.seed,
            episode.member,
            episode.status if episode.rewarded else f"{episode.status}: {episode.cause}",
            len(episode.decisions),
            episode.outcome,
            row["ach_delta_sum"],
            row["unique_delta_sum"],
            by_turn,
            ", ".join(row["events"]),
        )
        rows.append(shown)
    return columns, rows


def episode_heading(episode: Episode) -> str:
    """One line that says which episode this is and how it ended."""
    flags = episode.flags
    return (
        f"{episode.episode_id} · {episode.task.app} seed {episode.task.seed} · {episode.policy} "
        f"{episode.policy_version} · {episode.status} ({episode.cause}) · outcome {episode.outcome} · "
        f"{flags.mode}, {flags.kind}"
    )


def decision_table(episode: Episode, advantages: Mapping[int, float]) -> Table:
    """A row per decision. Deltas come from the stored record; in modes without one, – is shown."""
    columns = ("turn", "said", "executed", "ach_delta", "unique_delta", "all", "unique", "reward", "total")
    rewards = reward_vector(episode, episode.flags).decisions if episode.rewarded else None
    total, rows = 0.0, []
    for index, decision in enumerate(episode.decisions):
        reward = rewards[index] if rewards is not None else None
        total += reward or 0.0
        record = decision.rewards
        row: tuple[Any, ...] = (
            decision.turn,
            _said(decision),
            " ".join(step.action for step in decision.steps),
            record.ach_delta if record else None,
            record.unique_delta if record else None,
            ", ".join(record.all) if record else None,
            ", ".join(record.unique) if record else None,
            reward,
            total if rewards is not None else None,
        )
        rows.append((*row, advantages.get(decision.turn)) if advantages else row)
    return ((*columns, "advantage") if advantages else columns), rows


def _said(decision: Decision) -> str:
    message = decision.completion.message
    parts = [message.content] if message.content else []
    parts += [f"{call.name} {call.arguments}" for call in message.tool_calls]
    said = " ".join(parts) or "(nothing)"
    return f"{said} ⟂ {decision.failure.reason}" if decision.failure else said


def _records(episode: Episode) -> list[DecisionRewards]:
    """The deltas of each decision, from the events, so that every mode has them."""
    return rewards_from_events(decision.events for decision in episode.decisions)
