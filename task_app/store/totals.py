"""What an episode adds up to: the totals stored in its row, from its facts alone.

They repeat nothing that is only said elsewhere: each can be computed again from steps, events and
decisions, and `traces verify` does. From them and the flags the episode return is one SQL expression
(`episode_summaries` in schema.py), equal to the collector's Σ r.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from task_app.core.rewards import rewards_from_events
from task_app.core.types import Episode

__all__ = ["totals_of"]


def totals_of(episode: Episode) -> dict[str, Any]:
    """The columns of totals, by name.

    model              the model of the first completion, "" without one
    decision_count, step_count, parse_failures
    environment_return  sum of the steps' own rewards
    ach_delta, unique_delta  sums over decisions, from the events, whatever the flags
    unique_decisions   decisions with unique_delta > 0; unique_index_sum: the sum of their 0-based indexes
    prompt_tokens, completion_tokens  None when no completion says
    latency_s          seconds waited for the policy
    """
    decisions = episode.decisions
    records = rewards_from_events(decision.events for decision in decisions)
    flips = [record.turn - 1 for record in records if record.unique_delta]
    return {
        "model": decisions[0].completion.model if decisions else "",
        "decision_count": len(decisions),
        "step_count": sum(len(decision.steps) for decision in decisions),
        "parse_failures": sum(decision.failure is not None for decision in decisions),
        "environment_return": episode.environment_return,
        "ach_delta": sum(record.ach_delta for record in records),
        "unique_delta": sum(record.unique_delta for record in records),
        "unique_decisions": len(flips),
        "unique_index_sum": sum(flips),
        "prompt_tokens": _known_sum(decision.completion.prompt_tokens for decision in decisions),
        "completion_tokens": _known_sum(decision.completion.completion_tokens for decision in decisions),
        "latency_s": sum(decision.completion.latency_s for decision in decisions),
    }


def _known_sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
