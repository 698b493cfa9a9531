"""Exported decisions → rows to imitate. Every fault is named with file, line and field; nothing is skipped.

A line is what `traces export-sft` writes: `messages`, the last of them the assistant's, `tools`, and `metadata` whose
`prompt_hash` says by which prompt form it was made. Data of another form than the task's own is refused:
what SFT, RL and evaluation show must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from task_app.core.errors import ConfigError, TrainError
from task_app.core.types import AssistantMessage, ParseFailure
from task_app.train.network import Network
from task_app.train.rows import FREE, Row

__all__ = ["read_rows", "row_of"]


def read_rows(path: Path, network: Network) -> list[Row]:
    """One row per line, in the file's order. Raises ConfigError without a line to read, TrainError for a bad one."""
    try:
        with path.open(encoding="utf-8") as file:
            rows = [_row(path, number, line, network) for number, line in enumerate(file, start=1)]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"sft data {path} cannot be read: {error}", field="sft.dataset") from error
    if not rows:
        raise ConfigError(f"sft data {path} is empty", field="sft.dataset")
    return rows


def _row(path: Path, number: int, line: str, network: Network) -> Row:
    try:
        return row_of(_checked(line, network), network)
    except (TrainError, ConfigError) as error:  # a chat template refuses with a ConfigError
        raise TrainError(f"{path} line {number}: {error}") from error


class _Malformed(TrainError):
    """What is wrong with a line, naming the field."""


class _Shape(BaseModel):
    """Types are taken as they are; what else a line holds is let through."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Part(_Shape):
    type: Literal["text"]
    text: str


class _Function(_Shape):
    name: str
    arguments: str | dict[str, Any]


class _Call(_Shape):
    function: _Function


class _Message(_Shape):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> _Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"content: a message of role {self.role} needs some")
        if self.role == "assistant" and isinstance(self.content, list):
            raise ValueError("content: an answer's must be one text")
        return self


class _Example(_Shape):
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


def _checked(line: str, network: Network) -> dict[str, Any]:
    try:
        example = json.loads(line)
    except ValueError as error:
        raise _Malformed(f"not JSON: {error}") from error
    if not isinstance(example, dict):
        raise _Malformed(f"an object was expected, got {type(example).__name__}")
    try:
        _Example.model_validate(example)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise _Malformed(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error
    if example["messages"][-1]["role"] != "assistant":
        raise _Malformed("messages: the last one must be the assistant's, it is what is learned")
    metadata = example.get("metadata") or {}
    made_by = metadata.get("prompt_hash")
    if made_by not in (None, network.spec.prompt_hash):
        raise _Malformed(
            f"metadata.prompt_hash: the prompt was made by {made_by}, this task's is {network.spec.prompt_hash}; "
            "the same app, version and options are needed"
        )
    return example


def row_of(example: Mapping[str, Any], network: Network) -> Row:
    """The row of one example whose form is sound. Raises TrainError for an answer that cannot be learned."""
    prompt = network.renderer.prompt_ids(example["messages"][:-1], example.get("tools") or ())
    answer = network.renderer.answer_ids(_assistant(example["messages"][-1]))
    if isinstance(answer, ParseFailure):
        raise _Malformed(f"messages: the answer is not a legal one ({answer.reason}: {answer.detail})")
    chosen = [(index, state) for index, state in _choices(answer, network)]
    if not chosen:
        raise _Malformed("messages: the answer holds no choice, so there is nothing to learn")
    before = len(prompt) - 1
    return Row(
        input_ids=prompt + answer[: chosen[-1][0]],
        positions=tuple(before + index for index, _ in chosen),
        targets=tuple(answer[index] for index, _ in chosen),
        states=tuple(state for _, state in chosen),
        sampler_logprobs=(0.0,) * len(chosen),
        spans=(len(chosen),),
        advantages=(1.0,),
    )


def _choices(answer: tuple[int, ...], network: Network) -> Iterator[tuple[int, int]]:
    """Index and grammar state of each token that is not forced."""
    table = network.table
    if table is None:
        yield from ((index, FREE) for index in range(len(answer)))
        return
    for index, state in enumerate(table.states(answer)):
        if table.forced_S[state] < 0:
            yield index, state


def _assistant(wire: Mapping[str, Any]) -> AssistantMessage:
    """The message to imitate; arguments given as an object (TRL's form) become the text they stand for."""
    calls = []
    for call in wire.get("tool_calls") or ():
        function = dict(call.get("function") or {})
        if isinstance(function.get("arguments"), dict):
            function["arguments"] = json.dumps(function["arguments"])
        calls.append({**call, "function": function})
    return AssistantMessage.from_wire({**wire, "tool_calls": calls}, "tool_calls" if calls else "stop")
