"""Lines to imitate: what is learned of them, and that every fault names file, line and field."""

from __future__ import annotations

import json

import pytest

from task_app.core.errors import ConfigError, TrainError
from task_app.train.sft_data import read_rows


def line(*moves: str, **changes) -> dict:
    call = {"id": "c", "type": "function", "function": {"name": "walk", "arguments": " ".join(moves)}}
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "place 1, turn 2"}]
    return {"messages": [*messages, {"role": "assistant", "content": None, "tool_calls": [call]}], **changes}


def said(index: int, **changes) -> dict:
    """A good line, one message of which has other fields."""
    good = line("right")
    good["messages"][index] |= changes
    return good


@pytest.fixture
def read(tmp_path, network):
    def run(*lines):
        path = tmp_path / "data.jsonl"
        path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
        return read_rows(path, network)

    return run


def test_only_choices_of_the_answer_are_learned(read, network):
    (one, two) = read(line("right"), line("left", "stay"))
    words = network.renderer.tokenizer.words
    assert [words[token] for token in one.input_ids] == [
        *("<begin>", "place", "1", "turn", "2", "<answer>", "walk", "right"),
    ]
    assert [words[token] for token in one.targets] == ["right", "end"]
    assert [words[token] for token in two.targets] == ["left", "and", "stay"]
    for row in (one, two):
        assert [row.input_ids[position + 1] for position in row.positions[:-1]] == list(row.targets[:-1])
        assert row.advantages == (1.0,)


def test_a_prompt_form_that_is_the_tasks_own_is_accepted(read, network):
    assert len(read(line("right", metadata={"prompt_hash": network.spec.prompt_hash}), line("left", metadata={}))) == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: an object was expected, got list"),
        ({"messages": "hello"}, "line 2: messages: Input should be a valid list"),
        ({"messages": []}, "line 2: messages: .* at least 1"),
        ({}, "line 2: messages: Field required"),
        (line("right", tools=3), "line 2: tools: Input should be a valid list"),
        (line("right", tools=[3]), r"line 2: tools\.0: Input should be a valid dict"),
        (said(0, role=3), r"line 2: messages\.0\.role: Input should be 'system'"),
        (said(1, content=5), r"line 2: messages\.1\.content\.str: Input should be a valid string"),
        (said(1, content=None), r"line 2: messages\.1: content: a message of role user needs some"),
        (said(1, content=[{"type": "image_url"}]), r"line 2: messages\.1\.content\."),
        (said(2, content=5), r"line 2: messages\.2\.content\.str: Input should be a valid string"),
        (
            said(2, content=[{"type": "text", "text": "a"}]),
            r"line 2: messages\.2: content: an answer's must be one text",
        ),
        (said(2, tool_calls="walk"), r"line 2: messages\.2\.tool_calls: Input should be a valid list"),
        (said(2, tool_calls=[1]), r"line 2: messages\.2\.tool_calls\.0: "),
        (said(2, tool_calls=[{"id": "c"}]), r"line 2: messages\.2\.tool_calls\.0\.function: Field required"),
        (
            said(2, tool_calls=[{"function": {"name": "walk", "arguments": 3}}]),
            r"line 2: messages\.2\.tool_calls\.0\.function\.arguments\.str: Input should be a valid string",
        ),
        (said(2, tool_calls=None), r"line 2: messages: the answer is not a legal one \(no_walk"),
        (
            {"messages": [{"role": "user", "content": "place"}]},
            "line 2: messages: the last one must be",
        ),
        (
            line("right", metadata={"prompt_hash": "f" * 16}),
            "line 2: metadata.prompt_hash: the prompt was made by f",
        ),
        (line("right", metadata=[1]), "line 2: metadata: Input should be a valid dict"),
        (line("fly"), r"line 2: messages: the answer is not a legal one \(no_walk"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "line 2: a decision's messages hold no user message"),
    ],
)
def test_a_bad_line_is_named(read, bad, problem):
    with pytest.raises(TrainError, match=problem):
        read(line("right"), bad)


def test_a_file_without_lines_is_refused(read, tmp_path, network):
    with pytest.raises(ConfigError, match="is empty"):
        read()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl", network)
