"""A tokenizer and its chat template: messages → text → ids, and how the template ends and continues a turn.

Everything that depends on a template is found by probing it once with made-up turns; a template that does not
behave is refused by name. It reads no answers and keeps no episode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from task_app.core.errors import ConfigError
from task_app.core.types import Message

__all__ = ["ChatTemplate"]

_USER, _ANSWER = "probe alpha", "probe beta"


class ChatTemplate:
    """Renders for one system prompt and one list of tools.

    end_id   the token that ends an assistant's turn
    stops    every token that ends an answer: `end_id` and what the model itself calls an end
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        name: str,
        ends: Sequence[int] = (),
    ) -> None:
        """`name` is the model's, for messages; `ends` are its own end tokens.

        Raises ConfigError for a tokenizer without a template, one that ignores tools, or one that ends no turn.
        """
        self._tokenizer, self._options, self._name = tokenizer, dict(options), name
        self._tools = [dict(tool) for tool in tools]
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        try:
            self.source = str(tokenizer.get_chat_template(None, self._tools or None))
        except ValueError as error:
            raise self._error("its tokenizer has no chat template, so there is no agreed form of a prompt") from error
        if self._tools and self.text([]) == self._render([], True, tools=False):
            raise self._error("its chat template leaves out the tools, so the model cannot know how to act")
        self.end_id = self._find_end()
        own_end = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]  # type: ignore[arg-type]
        self.stops = frozenset({self.end_id, *own_end, *ends})

    # -- rendering -------------------------------------------------------------------------------

    def text(self, turns: Sequence[Message], *, system: Sequence[Message] | None = None) -> str:
        """The conversation as text, up to where the next answer begins."""
        return self._render(turns, True, system=system)

    def answer_text(self, answer: Message) -> str:
        """An answer as the template writes it, its end included. Raises ConfigError where it cannot be told apart."""
        user: Message = {"role": "user", "content": _USER}
        before, whole = self.text([user]), self._render([user, answer], False)
        end = whole.rfind(self._end_text)
        if not whole.startswith(before) or end < len(before):
            raise self._error("its chat template writes an answer otherwise than it asks for one", before=before)
        answered = whole[len(before) : end + len(self._end_text)]
        if self.ids(before + answered) != self.ids(before) + self.ids(answered):
            raise self._error("its tokenizer joins an answer's first token with the prompt before it", before=before)
        return answered

    def next_text(self, user: Message) -> str:
        """What stands between an ended answer and the next one, the user's message inside it.

        Raises ConfigError when the template rewrites earlier turns so that nothing can be appended.
        """
        first: list[Message] = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}]
        whole = self.text([*first, user])
        said = _ANSWER + self._end_text
        if whole.count(said) != 1 or not whole.startswith(self._render(first[:1], False)):
            raise self._error("its chat template rewrites earlier turns", field="model.history")
        return whole[whole.index(said) + len(said) :]

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of text that holds its markers already."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, markers such as the end of a turn left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    # -- identity --------------------------------------------------------------------------------

    @cached_property
    def identity(self) -> list[Any]:
        """Plain values that differ between two templates or tokenizers that would give other ids."""
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        spelled = [self.ids(text) for text in (self.source, "Zoë  said:\n\t'1234567'", self.text([]))]
        return [self.source, self._options, self._tools, sorted(self.stops), _digest([vocabulary, spelled])]

    @cached_property
    def shared_prefix(self) -> int:
        """How many leading ids all prompts share: up to the last marker before the first user's text."""
        prompts = [self.ids(self.text([{"role": "user", "content": text}])) for text in ("alpha", "7\n")]
        same = 0
        while same < min(map(len, prompts)) and prompts[0][same] == prompts[1][same]:
            same += 1
        # Beyond a marker the first letters of the text may join the token before them.
        return max((index + 1 for index in range(same) if prompts[0][index] in self._markers), default=0)

    # -- inside ----------------------------------------------------------------------------------

    def _render(
        self,
        turns: Sequence[Message],
        asking: bool,
        *,
        tools: bool = True,
        system: Sequence[Message] | None = None,
    ) -> str:
        messages = [*(self._system if system is None else system), *turns]
        if not any(message["role"] == "user" for message in messages):  # some templates insist on one
            messages = [*messages, {"role": "user", "content": _USER}]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=self._tools if tools and self._tools else None,  # type: ignore[arg-type]
                    add_generation_prompt=asking,
                    tokenize=False,
                    **self._options,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise self._error(f"its chat template cannot write this conversation: {error}") from error

    @cached_property
    def _markers(self) -> frozenset[int]:
        tokenizer: Any = self._tokenizer
        return frozenset([*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()])

    @cached_property
    def _end_text(self) -> str:
        return str(self._tokenizer.decode([self.end_id], skip_special_tokens=False))

    def _find_end(self) -> int:
        turns: list[Message] = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}]
        text = self._render(turns, False)
        after = self.ids(text[text.rfind(_ANSWER) + len(_ANSWER) :]) if _ANSWER in text else ()
        if not after or after[0] not in self._markers:
            raise self._error("its chat template ends an answer by no token of its own")
        return after[0]

    def _error(self, problem: str, *, field: str = "model.path", before: str = "") -> ConfigError:
        shown = f" (the prompt ends in {before[-40:]!r})" if before else ""
        return ConfigError(f"model {self._name!r} cannot be used: {problem}{shown}", field=field)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
