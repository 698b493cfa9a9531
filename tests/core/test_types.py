"""The values between layers: token traces check their lengths, messages survive the wire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_app.core.types import AssistantMessage, DecisionRewards, TokenTrace, ToolCall

TRACE = TokenTrace(
    prompt_ids=(5, 6, 7),
    prefix_length=2,
    completion_ids=(1, 2),
    logprobs=(0.0, -0.5),
    mask=(0, 1),
    temperature=1.0,
    grammar_hash="g",
    renderer_hash="r",
)

calls = st.builds(ToolCall, name=st.text(), arguments=st.text(), id=st.text(min_size=1))
messages = st.builds(
    AssistantMessage,
    content=st.none() | st.text(),
    tool_calls=st.lists(calls, max_size=3).map(tuple),
    finish_reason=st.sampled_from(("stop", "tool_calls", "length")),
)


@pytest.mark.parametrize(
    ("change", "lengths"),
    [
        ({"completion_ids": (1, 2, 3)}, "3, 2, 2"),
        ({"logprobs": (0.0,)}, "2, 1, 2"),
        ({"mask": ()}, "2, 2, 0"),
    ],
)
def test_completion_columns_of_different_lengths_are_refused(change, lengths):
    with pytest.raises(ValueError, match=f"must have one length, got {lengths}"):
        replace(TRACE, **change)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_prefix_beyond_the_prompt_is_refused(length):
    with pytest.raises(ValueError, match=rf"prefix_length {length} is outside 0\.\.3"):
        replace(TRACE, prefix_length=length)


@pytest.mark.parametrize("length", [0, 3])
def test_a_prefix_may_be_nothing_or_the_whole_prompt(length):
    assert replace(TRACE, prefix_length=length).prefix_length == length


@given(messages)
def test_messages_round_trip_over_the_wire(message):
    assert AssistantMessage.from_wire(message.to_wire(), message.finish_reason) == message


def test_the_wire_form_is_the_openai_one():
    message = AssistantMessage("so", (ToolCall("go", '{"a": 1}', "call_7"),), "tool_calls")
    assert message.to_wire() == {
        "role": "assistant",
        "content": "so",
        "tool_calls": [{"id": "call_7", "type": "function", "function": {"name": "go", "arguments": '{"a": 1}'}}],
    }
    assert AssistantMessage("hi").to_wire() == {"role": "assistant", "content": "hi"}


def test_a_call_without_its_parts_is_read_as_empty():
    wire = {"role": "assistant", "tool_calls": [{"function": None}, {"id": "x", "function": {"name": "go"}}]}
    message = AssistantMessage.from_wire(wire)
    assert message.tool_calls == (ToolCall("", "", "call_0"), ToolCall("go", "", "x"))
    assert message.content is None


def test_the_five_keys_of_a_decision_record():
    record = DecisionRewards(5, 2, 1, ("collect_wood", "eat_cow"), ("eat_cow",))
    assert record.to_wire() == {
        "turn": 5,
        "ach_delta": 2,
        "unique_delta": 1,
        "all": ["collect_wood", "eat_cow"],
        "unique": ["eat_cow"],
    }
