"""The form of one line of data to imitate, checked field by field. Knows no network and no task, and reads no file.

A line is what `traces export-sft` writes: `messages`, the last of them the assistant's, `tools`, and `metadata` whose
`prompt_hash` says by which prompt form it was made. A message of an error holds no value of the line, only its place.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from task_app.core.errors import TrainError

__all__ = ["Malformed", "checked_line", "made_by"]


class Malformed(TrainError):
    """What is wrong with a line; `field` is the dotted name of what is wrong in it, empty for the line itself."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


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


def checked_line(line: str) -> dict[str, Any]:
    """The example on one line of JSON. Raises Malformed naming the field."""
    try:
        example = json.loads(line)
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from error
    if not isinstance(example, dict):
        raise Malformed(f"an object was expected, got {type(example).__name__}")
    try:
        _Example.model_validate(example)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Malformed(f"{place}: {first['msg'].removeprefix('Value error, ')}", place) from error
    if example["messages"][-1]["role"] != "assistant":
        raise Malformed("messages: the last one must be the assistant's, it is what is learned", "messages")
    return example


def made_by(example: dict[str, Any]) -> str | None:
    """The hash of the prompt form an example was made with; None where it does not say."""
    return (example.get("metadata") or {}).get("prompt_hash")
