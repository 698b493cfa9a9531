"""Decision rewards: which events a decision caused, from the event counters before and after it.

The rule is the project's own (docs/event_rewards.md). This module knows no flags, no modes and no
reward vectors: those are the collector's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from task_app.core.types import DecisionRewards

__all__ = ["decision_rewards", "rewards_from_events"]


def decision_rewards(turn: int, before: Mapping[str, int], after: Mapping[str, int]) -> DecisionRewards:
    """The record of decision `turn`, given the episode's event counters around it.

    `all` holds the names whose counter rose: a repeat of an earlier decision counts, twice within
    this decision counts once. `unique` holds those of them never seen before in the episode.

    Raises ValueError when a counter fell: counters only ever rise within an episode.
    """
    fell = sorted(name for name, count in before.items() if after.get(name, 0) < count)
    if fell:
        raise ValueError(f"event counter fell during decision {turn}: {', '.join(fell)}")
    rose = tuple(sorted(name for name, count in after.items() if count > before.get(name, 0)))
    new = tuple(name for name in rose if before.get(name, 0) == 0)
    return DecisionRewards(turn=turn, ach_delta=len(rose), unique_delta=len(new), all=rose, unique=new)


def rewards_from_events(events_by_decision: Iterable[Iterable[str]]) -> list[DecisionRewards]:
    """The records of a whole episode from its events alone, one entry of names per decision.

    Used where records were not stored; equals `decision_rewards` on the running counters.
    """
    seen: dict[str, int] = {}
    records = []
    for turn, names in enumerate(events_by_decision, start=1):
        names = tuple(names)
        if not names:  # most decisions cause nothing, and reports read millions of them
            records.append(DecisionRewards(turn, 0, 0, (), ()))
            continue
        after = dict(seen)
        for name in names:
            after[name] = after.get(name, 0) + 1
        records.append(decision_rewards(turn, seen, after))
        seen = after
    return records
