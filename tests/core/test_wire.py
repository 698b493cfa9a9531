"""Episodes as JSON: nothing is lost on the way, and the canonical bytes hold exactly what a replay determines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

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
from task_app.core.wire import episode_bytes, episode_from_json, episode_to_json

TOKENS = TokenTrace((5, 6, 7), 2, (1, 2), (0.0, -0.5), (0, 1), 1.0, "g", "r")
SAID = AssistantMessage(None, (ToolCall("go", '{"to": "left"}'),), "tool_calls")
PROMPT = ({"role": "system", "content": "Rules × 2"}, {"role": "user", "content": [{"type": "text", "text": "here"}]})
STEPS = (StepRecord(0, "left", 1.1, False, False, ("eat", "eat")), StepRecord(1, "left", -0.1, True, False))
EPISODE = Episode(
    episode_id="e",
    run_id="r",
    group_id="g",
    member=3,
    task=TaskRef("toy", "1", {"size": 4, "words": ["a"]}, 7),
    policy="p",
    policy_version="1",
    prompt_hash="h",
    flags=StepRewardFlags(indicator_lambda=0.5),
    max_decisions=4,
    status="ok",
    cause="terminated",
    terminated=True,
    truncated=False,
    outcome=1.0,
    decisions=(
        Decision(
            1, PROMPT, Completion(AssistantMessage("?"), "c0"), ParseFailure("no_call", "none"), (), None, 5.0, 0.1
        ),
        Decision(
            2,
            PROMPT,
            Completion(SAID, "c1", "m", 3, 2, 0.25, TOKENS),
            None,
            STEPS,
            DecisionRewards(2, 1, 1, ("eat",), ("eat",)),
            6.0,
            0.2,
        ),
    ),
    tools=({"type": "function"},),
    update=2,
    started_at=4.0,
    finished_at=8.0,
    details={"env_s": 0.3},
)


def with_second(**changes) -> Episode:
    """EPISODE with its second decision changed."""
    return replace(EPISODE, decisions=(EPISODE.decisions[0], replace(EPISODE.decisions[1], **changes)))


def test_facts_read_off_an_episode():
    assert EPISODE.environment_return == pytest.approx(1.0)
    assert EPISODE.event_counts == {"eat": 2}
    assert [step.step for step in EPISODE.steps] == [0, 1]
    assert EPISODE.rewarded
    assert not replace(EPISODE, status="infra_error", outcome=None).rewarded


def test_an_episode_with_tokens_failures_and_parts_round_trips_as_json():
    assert episode_from_json(json.loads(json.dumps(episode_to_json(EPISODE)))) == EPISODE


def test_a_played_episode_round_trips_as_json(play_scripted):
    (episode,) = play_scripted(range(1), 1, max_decisions=4)
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode)))) == episode


@pytest.mark.parametrize("path", [("status",), ("decisions", 1, "completion", "tokens", "prefix_length")])
def test_a_record_of_another_form_is_refused(path):
    record = episode_to_json(EPISODE)
    *inside, last = path
    place = record
    for key in inside:
        place = place[key]
    place[last] = 99
    with pytest.raises(ValidationError):
        episode_from_json(record)


@pytest.mark.parametrize(
    "other",
    [
        replace(EPISODE, episode_id="x", run_id="x", group_id="x", started_at=0.0, finished_at=1.0, details={}),
        with_second(started_at=0.0, env_s=9.0),
        with_second(completion=replace(EPISODE.decisions[1].completion, completion_id="x", latency_s=9.0)),
    ],
    ids=["ids and times of the episode", "times of a decision", "id and latency of a completion"],
)
def test_ids_and_times_are_not_in_the_canonical_bytes(other):
    assert episode_bytes(other) == episode_bytes(EPISODE)


@pytest.mark.parametrize(
    "other",
    [
        replace(EPISODE, task=replace(EPISODE.task, seed=8)),
        replace(EPISODE, member=4),
        replace(EPISODE, outcome=2.0),
        with_second(steps=(replace(STEPS[0], reward=1.0), STEPS[1])),
        with_second(steps=(replace(STEPS[0], events=("eat",)), STEPS[1])),
        with_second(rewards=None),
        with_second(completion=Completion(SAID, "c1", "m", 3, 2, 0.25, replace(TOKENS, completion_ids=(1, 3)))),
        with_second(messages=()),
    ],
    ids=["seed", "member", "outcome", "reward", "events", "record", "tokens", "prompt"],
)
def test_everything_else_is_in_the_canonical_bytes(other):
    assert episode_bytes(other) != episode_bytes(EPISODE)


def test_canonical_bytes_are_strict_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        episode_bytes(replace(EPISODE, outcome=float("nan")))
