"""Messages ↔ token ids of a chat model: its own template and tool format, and which earlier decisions are repeated.

A prompt with history is put together from ids: the first prompt, then each answer exactly as it was sampled and the
template's text up to the next answer. Nothing sampled is encoded again, except that `keep_thinking = false` cuts an
answer's thinking out, as many templates do; such a prompt does not begin with the last one. SFT, training and
evaluation share this renderer; its hash travels with every stored decision.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from task_app.config.training import ModelSection
from task_app.core.errors import ContextOverflow, TrainError
from task_app.core.types import AssistantMessage, DecisionRequest, Message, ParseFailure, ToolCall
from task_app.train.chat_template import ChatTemplate
from task_app.train.network import Conversation
from task_app.train.renderer import message_text

__all__ = ["ChatConversation", "ChatRenderer", "PromptTooLong", "read_answer"]

FORM = "chat turns as sampled/1"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')


class PromptTooLong(TrainError):
    """A prompt exceeds `model.max_prompt_tokens`."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One earlier decision: what the user said, and the ids of the answer."""

    user: Message
    answer: tuple[int, ...]


class ChatRenderer:
    """Builds prompts and answers by a chat template; see `PromptRenderer`."""

    def __init__(self, template: ChatTemplate, settings: ModelSection, tools: Sequence[Mapping[str, Any]]) -> None:
        """Raises ConfigError when history is asked for and the template rewrites earlier turns."""
        self.template, self._settings, self._tools = template, settings, list(tools)
        self.window = _window(settings.history)
        if self.window:
            template.next_text({"role": "user", "content": "probe gamma"})
        self.prefix_length = template.shared_prefix
        limits = [settings.max_prompt_tokens, settings.max_new_tokens]
        form = [FORM, settings.history, settings.keep_thinking, limits, template.identity]
        self.hash = hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()[:16]

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[dict] = ()) -> tuple[int, ...]:
        """The ids of one decision's prompt; earlier turns among the messages are repeated as far as `history` says.

        Raises TrainError for other tools than the task's, a turn out of order or one that is not text, PromptTooLong.
        """
        if tools and list(tools) != self._tools:
            raise TrainError("tools: they are not the task's own, which the prompt form is made with")
        system, turns, user = self._split(messages)
        return self.joined(system, turns[-self.window :] if self.window else [], user)

    def joined(self, system: Sequence[Message], turns: Sequence[_Turn], user: Message) -> tuple[int, ...]:
        """The prompt for `user` after the given turns, the system messages before the first."""
        asked = [*(turn.user for turn in turns), user]
        ids = list(self.template.ids(self.template.text([asked[0]], system=system)))
        for turn, following in zip(turns, asked[1:], strict=True):
            ids += self._repeated(turn.answer)
            ids += self.template.ids(self.template.next_text(following))
        most = self._settings.max_prompt_tokens
        if len(ids) > most:
            raise PromptTooLong(
                f"a prompt takes {len(ids)} tokens, model.max_prompt_tokens is {most}; raise it, or let "
                "model.history repeat less"
            )
        return tuple(ids)

    def answer_ids(self, message: AssistantMessage) -> tuple[int, ...] | ParseFailure:
        """The ids of an answer, its end included, or why it cannot be said. Raises ConfigError as the template does."""
        calls = []
        for call in message.tool_calls:
            try:
                arguments = json.loads(call.arguments)
            except ValueError as error:
                return ParseFailure("bad_json", f"the arguments are not JSON: {error}")
            calls.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        # Templates differ on a missing content; an empty one is the same to all.
        wire: Message = {"role": "assistant", "content": message.content or ""}
        ids = self.template.ids(self.template.answer_text(wire | ({"tool_calls": calls} if calls else {})))
        most = self._settings.max_new_tokens
        if len(ids) > most:
            return ParseFailure("cut_off", f"the answer takes {len(ids)} tokens, model.max_new_tokens is {most}")
        return ids

    def message(self, ids: Sequence[int]) -> AssistantMessage:
        """What a sampled answer says; one without an end was cut."""
        ended = bool(ids) and ids[-1] in self.template.stops
        return read_answer(self.template.decode(ids[:-1] if ended else ids), cut=not ended)

    def _split(self, messages: Sequence[Message]) -> tuple[list[Message], list[_Turn], Message]:
        plain = [_text_only(message) for message in messages]
        system = [message for message in plain if message["role"] == "system"]
        spoken = plain[len(system) :]
        users, answers = spoken[::2], spoken[1::2]
        in_order = (
            plain[: len(system)] == system
            and len(users) == len(answers) + 1
            and all(message["role"] == "user" for message in users)
            and all(message["role"] == "assistant" for message in answers)
        )
        if not in_order:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TrainError(f"messages: system, then user and assistant in turn, user last, was expected; got {roles}")
        if not self.window:
            return system, [], users[-1]
        turns = []
        for user, answer in zip(users, answers, strict=False):
            ids = self.answer_ids(AssistantMessage.from_wire(answer))
            if isinstance(ids, ParseFailure):
                raise TrainError(f"messages: an earlier answer cannot be repeated ({ids.reason}: {ids.detail})")
            turns.append(_Turn(user, ids))
        return system, turns, users[-1]

    def _repeated(self, answer: tuple[int, ...]) -> tuple[int, ...]:
        """An earlier answer inside a prompt: as sampled, an end added where it was cut, thinking cut out if asked."""
        ended = bool(answer) and answer[-1] in self.template.stops
        body, end = (answer[:-1], answer[-1:]) if ended else (answer, (self.template.end_id,))
        if not self._settings.keep_thinking:
            text = self.template.decode(body)
            if "<think>" in text or "</think>" in text:
                body = self.template.ids(_without_thinking(text))
        return body + end


class ChatConversation(Conversation):
    """Prompts of running episodes, with the answers their history repeats. Keyed by turn, so that a decision asked
    again gives the same prompt."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._chat = renderer
        self._turns: dict[str, dict[int, _Turn]] = {}

    def prompts(self, requests: Sequence[DecisionRequest]) -> list[tuple[int, ...]]:
        prompts, outgrown = [], []
        problem = ""
        for request in requests:
            try:
                prompts.append(self._prompt(request))
            except PromptTooLong as error:
                if request.turn == 1:
                    raise  # no episode could ever be played
                outgrown.append(request.episode_id)
                problem = str(error)
        if outgrown:
            raise ContextOverflow(problem, frozenset(outgrown))
        return prompts

    def answered(self, request: DecisionRequest, ids: Sequence[int]) -> None:
        if self._chat.window:
            turns = self._turns.setdefault(request.episode_id, {})
            turns[request.turn] = _Turn(_text_only(request.messages[-1]), tuple(ids))
            turns.pop(request.turn - self._chat.window, None)

    def end(self, episode_id: str) -> None:
        self._turns.pop(episode_id, None)

    def _prompt(self, request: DecisionRequest) -> tuple[int, ...]:
        if not self._chat.window:
            return self._chat.prompt_ids(request.messages, request.tools)
        known = self._turns.get(request.episode_id, {})
        wanted = range(max(1, request.turn - self._chat.window), request.turn)
        missing = [turn for turn in wanted if turn not in known]
        if missing:
            raise TrainError(
                f"decision {request.turn} of episode {request.episode_id} needs the answer of decision {missing[0]} "
                "for its history, but that was not given here"
            )
        *system, user = (_text_only(message) for message in request.messages)
        return self._chat.joined(system, [known[turn] for turn in wanted], user)


def read_answer(text: str, *, cut: bool = False) -> AssistantMessage:
    """The message an answer's text stands for: text, and calls as `<tool_call>{json}</tool_call>` or bare JSON.

    A call that is not proper JSON is kept as it was said, for the task app to refuse.
    """
    spoken, content = _without_thinking(text), text
    bodies = []
    for match in _CALL.finditer(spoken):
        bodies.append(match[1])
        content = content.replace(match[0], "")
    if not bodies and _call_fields(spoken) is not None:
        bodies, content = [spoken], ""
    calls = tuple(_call(body, index) for index, body in enumerate(bodies))
    reason = "length" if cut else "tool_calls" if calls else "stop"
    return AssistantMessage(content=content.strip() or None, tool_calls=calls, finish_reason=reason)


def _call(body: str, index: int) -> ToolCall:
    fields = _call_fields(body)
    if fields is None:
        named = _NAME.search(body)
        return ToolCall(named[1] if named else "", body.strip(), f"call_{index}")
    name, arguments = fields
    return ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments), f"call_{index}")


def _call_fields(body: str) -> tuple[str, Any] | None:
    """Name and arguments of a call's JSON (`parameters` is Llama's word for them), None when it is no such JSON."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    return (value["name"], value[key]) if key else None


def _without_thinking(text: str) -> str:
    """What follows the last `</think>`; thinking that never ended leaves what stood before it."""
    if "</think>" in text:
        return text.rpartition("</think>")[2].lstrip("\n")
    return text.partition("<think>")[0]


def _text_only(message: Message) -> Message:
    """The message with its content as one text; an answer that is only a call has none."""
    return {**message, "content": "" if message.get("content") is None else message_text(message)}


def _window(history: str) -> int:
    """How many earlier decisions a prompt repeats."""
    if history == "full":
        return 10**9
    return int(history.partition(":")[2] or 0)
