"""Small episodes made by hand, and fresh databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from task_app.core.types import (
    AssistantMessage,
    Completion,
    Decision,
    DecisionRewards,
    Episode,
    ParseFailure,
    StepRecord,
    StepRewardFlags,
    TaskRef,
    TokenTrace,
    ToolCall,
)
from task_app.store import TraceStore

MakeEpisode = Callable[..., Episode]
SYSTEM = {"role": "system", "content": "Rules × 2 …"}


def decisions(tokens: bool = False) -> tuple[Decision, ...]:
    """Two decisions: one that ran three steps with three events, one that did not parse."""
    trace = TokenTrace((9, 9, 4, 5), 2, (1, 2, 3), (0.0, -0.5, -1.25), (0, 1, 1), 0.75, "grammar", "renderer")
    said = AssistantMessage("so …", (ToolCall("go", '{"to": "left"', "call_9"),), "tool_calls")
    steps = (
        StepRecord(0, "left", 1.1, False, False, ("eat", "wake")),
        StepRecord(1, "left", -0.1, False, False),
        StepRecord(2, "do", 0.0, False, False, ("eat",)),
    )
    first = Decision(
        1,
        (SYSTEM, {"role": "user", "content": "You see water."}),
        Completion(said, "c1", "m", 4, 3, 0.25, trace if tokens else None),
        None,
        steps,
        DecisionRewards(1, 2, 2, ("eat", "wake"), ("eat", "wake")),
        5.0,
        0.1,
    )
    second = Decision(
        2,
        (SYSTEM, {"role": "user", "content": [{"type": "text", "text": "You see grass."}]}),
        Completion(AssistantMessage("?"), "c2"),
        ParseFailure("no_call", "the answer holds no call"),
        (),
        DecisionRewards(2, 0, 0, (), ()),
    )
    return first, second


@pytest.fixture
def make_episode() -> MakeEpisode:
    """Make an episode with the given id; `tokens` gives its first completion a token trace."""

    def make(episode_id: str = "e1", *, tokens: bool = False, **changes: Any) -> Episode:
        fields: dict[str, Any] = {
            "episode_id": episode_id,
            "run_id": "run",
            "group_id": "g",
            "member": 0,
            "task": TaskRef("toy", "1", {"size": 4, "deep": [{"a": None}]}, 7),
            "policy": "p",
            "policy_version": "v3",
            "prompt_hash": "h",
            "flags": StepRewardFlags("decision_stepwise", "absolute", 0.5, 0.25, "episode"),
            "max_decisions": 2,
            "status": "truncated",
            "cause": "max_decisions",
            "terminated": False,
            "truncated": True,
            "outcome": 2.0,
            "decisions": decisions(tokens),
            "tools": ({"type": "function", "function": {"name": "go"}},),
            "update": None,
            "started_at": 4.5,
            "finished_at": 8.25,
            "details": {"env_s": 0.125, "note": "é"},
        }
        return Episode(**(fields | changes))

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "traces" / "t.db"


@pytest.fixture
def store(path: Path) -> Iterator[TraceStore]:
    """A fresh database, open for writing."""
    with TraceStore.open(path) as opened:
        yield opened
