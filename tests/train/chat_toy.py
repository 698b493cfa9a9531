"""The walk on a line for models that speak: one tool in JSON, or a plain letter, and prompts of a few dozen bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from task_app.core.task import TurnContext
from task_app.core.types import AssistantMessage, ParseFailure, PastDecision, ToolCall
from tests.train.conftest import MOVES, LineApp, LineOptions


class ChatLineApp(LineApp):
    """Reads a call of `walk`; without one, the first letter of the text decides, so that random models get about."""

    name, renderer_version = "chatline", "chatline/1"

    def tools(self, options: LineOptions) -> tuple[dict[str, Any], ...]:
        parameters = {"type": "object", "properties": {"moves": {"type": "array"}}, "required": ["moves"]}
        return ({"type": "function", "function": {"name": "walk", "description": "Walk.", "parameters": parameters}},)

    def observe(
        self, observation: tuple[int, int], history: Sequence[PastDecision], context: TurnContext, options: LineOptions
    ) -> list[dict[str, Any]]:
        return [{"type": "text", "text": f"place {observation[0]}, turn {context.turn} {options.words}"}]

    def parse(self, message: AssistantMessage, options: LineOptions) -> tuple[str, ...] | ParseFailure:
        if message.tool_calls:
            try:
                moves = json.loads(message.tool_calls[0].arguments)["moves"]
            except (ValueError, KeyError, TypeError):
                return ParseFailure("bad_json", "moves were expected")
            return tuple(moves) if set(moves) <= MOVES.keys() else ParseFailure("unknown_move", "left, right, stay")
        if not message.content:
            return ParseFailure("empty", "nothing was said")
        return (tuple(MOVES)[ord(message.content[0]) % 3],)

    def say(self, actions: Sequence[str]) -> AssistantMessage:
        call = ToolCall("walk", json.dumps({"moves": list(actions)}))
        return AssistantMessage(tool_calls=(call,), finish_reason="tool_calls")

    def grammar(self, options: LineOptions) -> None:
        return None

    def vocabulary(self, options: LineOptions) -> tuple[str, ...]:
        return ()
