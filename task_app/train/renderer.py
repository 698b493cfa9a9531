"""Messages ↔ token ids of the embedded policy: its template, its context policy, and answers as grammar words.

Template: `<begin>`, the words of the observation, `<answer>`. Context policy `history = none`: only
the last user message is read. The constant system prompt is dropped, since a model trained from
scratch on one task learns nothing from it; what earlier calls did is part of the observation itself.
SFT, training and evaluation share this renderer; its hash travels with every stored decision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.core.types import AssistantMessage, Message, ParseFailure
from task_app.train.tokenizer import ANSWER, BEGIN, SPLIT_RULE, WordTokenizer

__all__ = ["CONTEXT_POLICY", "Renderer", "message_text"]

TEMPLATE = "begin words answer/1"
CONTEXT_POLICY = "history=none"


class Renderer:
    """Builds prompts and answers of a task; the same words give the same ids in every process."""

    prefix_length = 1
    """Leading ids that all prompts share: the begin marker."""

    def __init__(self, tokenizer: WordTokenizer, spec: TaskSpec) -> None:
        self.tokenizer, self._spec = tokenizer, spec
        self._begin, self._answer = tokenizer.id(BEGIN), tokenizer.id(ANSWER)
        canonical = json.dumps([TEMPLATE, CONTEXT_POLICY, SPLIT_RULE, tokenizer.words])
        self.hash = hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[dict] = ()) -> tuple[int, ...]:
        """The ids of one decision's prompt. Raises TrainError without a text-only user message."""
        user = next((message for message in reversed(messages) if message.get("role") == "user"), None)
        if user is None:
            raise TrainError("a decision's messages hold no user message to read")
        return (self._begin, *self.tokenizer.encode(message_text(user)), self._answer)

    def answer_ids(self, message: AssistantMessage) -> tuple[int, ...] | ParseFailure:
        """The ids of an answer as a walk through the task's grammar, or why it is not a legal one."""
        words = self._spec.app.message_to_words(message, self._spec.options)
        return words if isinstance(words, ParseFailure) else tuple(self.tokenizer.id(word) for word in words)

    def message(self, ids: Sequence[int]) -> AssistantMessage:
        """What a whole walk through the grammar says."""
        return self._spec.app.words_to_message([self.tokenizer.words[token] for token in ids])


def message_text(message: Message) -> str:
    """The text of a message whose content is text or text parts. Raises TrainError for anything else."""
    content = message["content"]
    if isinstance(content, str):
        return content
    kinds = {part.get("type") for part in content}
    if kinds - {"text"}:
        raise TrainError(f"the embedded policy reads text only, the observation holds {', '.join(sorted(kinds))}")
    return "\n".join(part["text"] for part in content)
