"""Exported decisions → rows to imitate. Every fault is named with file, line and field; nothing is skipped.

A line is what `traces export-sft` writes: `messages`, the last of them the assistant's, `tools`, and `metadata` whose
`prompt_hash` says by which prompt form it was made. Data of another form than the task's own is refused:
what SFT, RL and evaluation show must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from task_app.core.errors import ConfigError, TrainError
from task_app.core.types import AssistantMessage, ParseFailure
from task_app.train.network import Network
from task_app.train.rows import FREE, Row
from task_app.train.sft_lines import Malformed, checked_line, made_by

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


def _checked(line: str, network: Network) -> dict[str, Any]:
    example = checked_line(line)
    made = made_by(example)
    if made not in (None, network.spec.prompt_hash):
        raise Malformed(
            f"metadata.prompt_hash: the prompt was made by {made}, this task's is {network.spec.prompt_hash}; "
            "the same app, version and options are needed",
            "metadata.prompt_hash",
        )
    return example


def row_of(example: Mapping[str, Any], network: Network) -> Row:
    """The row of one example whose form is sound. Raises TrainError for an answer that cannot be learned."""
    prompt = network.renderer.prompt_ids(example["messages"][:-1], example.get("tools") or ())
    answer = network.renderer.answer_ids(_assistant(example["messages"][-1]))
    if isinstance(answer, ParseFailure):
        raise Malformed(f"messages: the answer is not a legal one ({answer.reason}: {answer.detail})")
    chosen = [(index, state) for index, state in _choices(answer, network)]
    if not chosen:
        raise Malformed("messages: the answer holds no choice, so there is nothing to learn")
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
