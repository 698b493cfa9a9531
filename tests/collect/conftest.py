"""Episodes made by hand, whose every reward can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from task_app.core.rewards import rewards_from_events
from task_app.core.types import (
    AssistantMessage,
    Completion,
    Decision,
    Episode,
    StepRecord,
    StepRewardFlags,
    TaskRef,
)

Step = tuple[float, Sequence[str]]
MakeEpisode = Callable[..., Episode]


@pytest.fixture
def make_episode() -> MakeEpisode:
    """Make an episode of decisions, each a list of steps `(reward, events)`; its outcome is the events' number."""

    def make(decisions: Sequence[Sequence[Step]], *, records: bool = True, **changes: Any) -> Episode:
        names = [[name for _, events in steps for name in events] for steps in decisions]
        kept = rewards_from_events(names) if records else [None] * len(names)
        made, first = [], 0
        for turn, (steps, record) in enumerate(zip(decisions, kept, strict=True), start=1):
            rows = tuple(
                StepRecord(first + index, "do", reward, False, False, tuple(events))
                for index, (reward, events) in enumerate(steps)
            )
            first += len(rows)
            completion = Completion(AssistantMessage("said"), f"c{turn}")
            made.append(Decision(turn, (), completion, None, rows, record))
        flags = StepRewardFlags() if records else StepRewardFlags(mode="off")
        fields: dict[str, Any] = {
            "episode_id": "ep",
            "run_id": "run",
            "group_id": "g",
            "member": 0,
            "task": TaskRef("toy", "1", {}, 7),
            "policy": "p",
            "policy_version": "1",
            "prompt_hash": "h",
            "flags": flags,
            "max_decisions": 20,
            "status": "truncated",
            "cause": "max_decisions",
            "terminated": False,
            "truncated": True,
            "outcome": float(len({name for events in names for name in events})),
            "decisions": tuple(made),
        }
        return Episode(**(fields | changes))

    return make


@pytest.fixture
def five(make_episode: MakeEpisode) -> MakeEpisode:
    """The worked example, five decisions under a turn limit of 20; with keyword arguments, a variation of it.

    turn  steps (reward: events)                  all            unique    AchΔ  UniqueΔ
    1     1.0: wood                               wood           wood      1     1
    2     -0.1: wood wood   1.0: sapling          sapling wood   sapling   2     1
    3     (the answer did not parse)                                       0     0
    4     0.1: wood         0.0:                  wood                     1     0
    5     0.9: table wood                         table wood     table     2     1
    """
    steps: list[list[Step]] = [
        [(1.0, ["wood"])],
        [(-0.1, ["wood", "wood"]), (1.0, ["sapling"])],
        [],
        [(0.1, ["wood"]), (0.0, [])],
        [(0.9, ["table", "wood"])],
    ]
    return lambda **changes: make_episode(steps, **changes)
