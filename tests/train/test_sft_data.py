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
        ({"messages": "hello"}, "line 2: messages: a list"),
        (
            {"messages": [{"role": "user", "content": "place"}]},
            "line 2: messages: the last one must be",
        ),
        (
            line("right", metadata={"prompt_hash": "f" * 16}),
            "line 2: metadata.prompt_hash: the prompt was made by f",
        ),
        (line("right", metadata=[1]), "line 2: metadata: an object"),
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
