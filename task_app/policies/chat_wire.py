"""Chat completions as their many servers really answer: how an answer and a refusal are read. Asks nobody.

What the model says is passed on, never mended and never replaced. The forms relied on, besides OpenAI's own:

    content       text, null, or a list of parts; {"type": "thinking"} parts are reasoning (Mistral)
    tool_calls    arguments as text or as an object (Ollama), ids that are missing; the older function_call
    refusal       what a model says instead of content (OpenAI): it becomes the text
    reasoning     reasoning_content (DeepSeek, vLLM, SGLang) or reasoning (Groq, OpenRouter, newer vLLM)
    error         HTTP 200 with an error object in place of choices or in one, finish_reason "error" (OpenRouter)
    data: {...}   a stream of chunks although none was asked for (some proxies); it is put together
    refusals      400 with error.code unsupported_parameter or unsupported_value and error.param (OpenAI), or words to
                  that effect ("does not support this tool_choice", DeepSeek; "cannot both be specified", Anthropic)
    context       error.code context_length_exceeded (OpenAI, Groq), exceed_context_size_error (llama.cpp), or words:
                  "maximum context length", "longer than the maximum model length" (vLLM), "prompt is too long"
                  (Anthropic)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from task_app.core.types import AssistantMessage, Completion, ToolCall
from task_app.policies.endpoint import Fault, is_worth_another_try, read_json

__all__ = ["AnsweredError", "is_about_context", "read_answer", "read_completion", "unsupported_parameter"]

_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT_WORDS = re.compile(
    r"maximum context length|longer than the maximum model length|prompt is too long|too long to fit into the model"
    r"|context (length|window|size) (is |was )?exceed|exceeds? the (available |maximum |model'?s )?context"
    r"|reduce the length of the messages",
    re.IGNORECASE,
)
_UNSUPPORTED_WORDS = re.compile(
    r"unsupported|not support|n't support|not allowed|not permitted|unknown|unrecognized|unexpected|cannot both",
    re.IGNORECASE,
)


class AnsweredError(Exception):
    """HTTP 200 whose answer is an error that another try does not mend; `status` is what it says of itself."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP 200 with error {status}")
        self.status, self.body = status, body


def read_answer(answer: bytes) -> Any:
    """The completion an answer holds, streamed or not, as JSON values.

    Raises Fault for what is not JSON or an error worth another try, AnsweredError for any other error.
    """
    if answer[:64].lstrip().startswith((b"data:", b":", b"event:", b"id:")):
        value = _put_together(answer)
    else:
        value = read_json(answer)
    error = _error_in(value)
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        status = code if type(code) is int else 0
        if (400 <= status < 500 and not is_worth_another_try(status)) or is_about_context({"error": error}):
            raise AnsweredError(status, json.dumps({"error": error}).encode())
        raise Fault(f"HTTP 200, but with an error{f' {status}' if status else ''} in place of an answer")
    return value


def read_completion(answer: Any, model: str, latency_s: float, *, keep_reasoning: bool = False) -> Completion:
    """The first choice of an answer. Raises Fault when it is no chat completion."""
    try:
        choice, usage = answer["choices"][0], answer.get("usage") or {}
        reason = _text(choice.get("finish_reason")) or "stop"
        return Completion(
            message=_message(choice["message"], reason, keep_reasoning),
            completion_id=_text(answer.get("id")) or "",
            model=_text(answer.get("model")) or model,
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            latency_s=latency_s,
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Fault("the answer is no chat completion") from error


# -- refusals -------------------------------------------------------------------------------------


def is_about_context(body: Any) -> bool:
    """Whether a refusal, as JSON values, says that the prompt does not fit the model."""
    refusal = _Refusal.of(body)
    return bool(_CONTEXT_CODES & {refusal.code, refusal.kind} or _CONTEXT_WORDS.search(refusal.message))


def unsupported_parameter(body: Any, sent: Sequence[str]) -> str | None:
    """Which of the parameters that were sent a refusal, as JSON values, says the model does not take."""
    refusal = _Refusal.of(body)
    coded = refusal.code in ("unsupported_parameter", "unsupported_value")
    if not (coded or _UNSUPPORTED_WORDS.search(refusal.message)):
        return None
    if refusal.parameter in sent:
        return refusal.parameter
    named = [name for name in sent if re.search(rf"\b{name}\b", refusal.message)]
    return named[0] if named else None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The parts of an error body that servers fill in, as text; "" where they do not."""

    message: str
    code: str
    kind: str
    parameter: str

    @classmethod
    def of(cls, body: Any) -> _Refusal:
        found = body.get("error", body) if isinstance(body, dict) else body
        if not isinstance(found, dict):
            return cls(str(found)[:10_000], "", "", "")
        message = found.get("message", found.get("detail", ""))
        return cls(str(message)[:10_000], *(str(found.get(name) or "") for name in ("code", "type", "param")))


# -- inside an answer -----------------------------------------------------------------------------


def _error_in(answer: Any) -> Any:
    """The error an answer holds instead of a choice, or in its first one; None where there is none."""
    if not isinstance(answer, dict):
        return None
    if answer.get("error") and not answer.get("choices"):
        return answer["error"]
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return None
    gave_up = first.get("finish_reason") in ("error", "abort")
    return first.get("error") or ({} if gave_up else None)


def _message(wire: Mapping[str, Any], finish_reason: str, keep_reasoning: bool) -> AssistantMessage:
    called = wire.get("tool_calls") or ()
    if not called and wire.get("function_call"):
        called = [{"function": wire["function_call"]}]
    calls = tuple(_tool_call(call, index) for index, call in enumerate(called))
    content, thought = _said(wire.get("content"))
    if not content and wire.get("refusal"):
        content = wire["refusal"]
    reasoning = wire.get("reasoning_content") or wire.get("reasoning") or thought
    if keep_reasoning and reasoning and isinstance(reasoning, str):
        content = f"<think>\n{reasoning}\n</think>\n\n{content or ''}"
    return AssistantMessage(_text(content), calls, finish_reason)


def _said(content: Any) -> tuple[Any, str]:
    """Text, and reasoning among it, of a message's content."""
    if not isinstance(content, list):
        return content, ""
    text, thought = "", ""
    for part in content:
        if isinstance(part, str):
            text += part
        elif part.get("type") == "thinking":
            inner = part.get("thinking")
            thought += _said(inner)[0] if isinstance(inner, list) else inner or ""
        else:
            text += part.get("text") or ""
    return text, thought


def _tool_call(call: Mapping[str, Any], index: int) -> ToolCall:
    function = call["function"]
    arguments = function.get("arguments")
    said = arguments if isinstance(arguments, str | None) else json.dumps(arguments)
    return ToolCall(_text(function.get("name")) or "", _text(said) or "", _text(call.get("id")) or f"call_{index}")


def _text(value: Any) -> str | None:
    """`value` as text that can be stored: half a surrogate pair, which JSON lets through, becomes `?`."""
    return None if value is None else str(value).encode("utf-8", "replace").decode()


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


# -- streams --------------------------------------------------------------------------------------


def _put_together(answer: bytes) -> dict[str, Any]:
    """A stream of chunks as one completion. Raises Fault for one that breaks off, or holds no chunks."""
    whole: dict[str, Any] = {}
    message: dict[str, Any] = {}
    finish_reason = None
    try:
        for chunk in _chunks(answer):
            whole |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
            for choice in chunk.get("choices") or ():
                if choice.get("index", 0) == 0:
                    _add(message, choice.get("delta") or {})
                    finish_reason = choice.get("finish_reason") or finish_reason
    except (LookupError, TypeError, AttributeError) as error:
        raise Fault("the answer is a stream of something else") from error
    if whole.get("error"):
        return whole
    if finish_reason is None:
        raise Fault("the answer is a stream that broke off")
    return whole | {"choices": [{"message": message, "finish_reason": finish_reason}]}


def _chunks(answer: bytes) -> list[dict[str, Any]]:
    lines = (line[5:].strip() for line in answer.splitlines() if line.startswith(b"data:"))
    return [read_json(line) for line in lines if line and line != b"[DONE]"]


def _add(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add what one chunk says to a message; calls go by their index."""
    for name in ("content", "refusal", "reasoning", "reasoning_content"):
        if delta.get(name):
            message[name] = message.get(name, "") + delta[name]
    for part in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        index = part.get("index", len(calls))
        while len(calls) <= index < 64:
            calls.append({"id": None, "function": {"name": "", "arguments": ""}})
        call, function = calls[index], part.get("function") or {}
        call["id"] = call["id"] or part.get("id")
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
