"""Any OpenAI-compatible endpoint as a policy: one pooled HTTP client, tool calling, bounded waits.

Keys are sent to the host they belong to and to no other; redirects are not followed. Whatever the
model says is passed on as it is; judging it is the task app's `parse`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from task_app.core.errors import ConfigError
from task_app.core.types import AssistantMessage, Completion, DecisionRequest, ToolCall
from task_app.policies.endpoint import Endpoint, Fault, read_json

__all__ = ["ChatPolicy", "ChatSettings", "completions_url", "provider_key", "same_origin"]

KEY_OF_HOST: Mapping[str, str] = {"api.openai.com": "OPENAI_API_KEY", "api.groq.com": "GROQ_API_KEY"}
"""The variable that holds a provider's key, by host."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How to ask. Times in seconds; `api_key` empty sends none."""

    model: str
    inference_url: str
    api_key: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    timeout_s: float = 60.0
    deadline_s: float = 180.0
    tries: int = 3


class ChatPolicy:
    """Asks `settings.model` for each decision. Safe to call from many threads; close it when done."""

    name = "chat"
    batched = False

    def __init__(self, settings: ChatSettings, client: httpx.Client | None = None) -> None:
        self.version = settings.model
        self._settings = settings
        self._url = completions_url(settings.inference_url)
        self._client = client or httpx.Client(follow_redirects=False)
        self._endpoint = Endpoint(
            self._client,
            f"model endpoint {self._url.host}",
            api_key=settings.api_key,
            timeout_s=settings.timeout_s,
            tries=settings.tries,
        )

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """One completion per request. Raises PolicyError, already retried, naming host and cause."""
        return [self._decide(request) for request in requests]

    def end_episode(self, episode_id: str) -> None:
        """Nothing is kept per episode."""

    def _decide(self, request: DecisionRequest) -> Completion:
        settings, start = self._settings, time.monotonic()
        left_s = settings.deadline_s if request.time_left_s is None else request.time_left_s
        deadline = start + min(settings.deadline_s, left_s)

        def read(answer: bytes) -> Completion:
            return self._completion(read_json(answer), time.monotonic() - start)

        return self._endpoint.ask("POST", self._url, self._body(request), read, deadline=deadline)

    def _body(self, request: DecisionRequest) -> dict[str, Any]:
        settings = self._settings
        limit = "max_completion_tokens" if self._url.host == "api.openai.com" else "max_tokens"
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": list(request.messages),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            limit: settings.max_tokens,
        }
        if request.tools:
            body |= {"tools": list(request.tools), "tool_choice": "required"}
        return body

    def _completion(self, answer: Any, latency_s: float) -> Completion:
        try:
            choice, usage = answer["choices"][0], answer.get("usage") or {}
            return Completion(
                message=_message(choice["message"], _text(choice.get("finish_reason")) or "stop"),
                completion_id=_text(answer.get("id")) or "",
                model=_text(answer.get("model")) or self._settings.model,
                prompt_tokens=_count(usage.get("prompt_tokens")),
                completion_tokens=_count(usage.get("completion_tokens")),
                latency_s=latency_s,
            )
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise Fault("the answer is no chat completion") from error


def completions_url(base: str) -> httpx.URL:
    """The chat-completions address under a base URL; path and query are kept, `/v1` is added to a bare host.

    Raises ConfigError for anything that is not an http(s) URL with a host.
    """
    url = _url(base)
    path, mark, query = url.raw_path.partition(b"?")
    path = path.rstrip(b"/") or b"/v1"
    if not path.endswith(b"/chat/completions"):
        path += b"/chat/completions"
    return url.copy_with(raw_path=path + mark + query)


def same_origin(first: str, second: str) -> bool:
    """Whether two URLs name one scheme, host and port. Raises ConfigError for anything that is no URL."""
    one, other = _url(first), _url(second)
    ports = {"http": 80, "https": 443}
    return (one.scheme, one.host, one.port or ports[one.scheme]) == (
        other.scheme,
        other.host,
        other.port or ports[other.scheme],
    )


def provider_key(
    inference_url: str,
    api_key_env: str,
    environ: Mapping[str, str],
    *,
    own_key_env: str,
    field: str = "policy.api_key_env",
) -> str:
    """The key for an endpoint: from the named variable, else by the provider's host over https, else none.

    Raises ConfigError about `field` when the named variable is unset or no key, or when it is the app's own key.
    """
    url = _url(inference_url)
    variable = api_key_env or (KEY_OF_HOST.get(url.host, "") if url.scheme == "https" else "")
    key = environ.get(variable, "").strip()
    if variable and (variable == own_key_env or (key and key == environ.get(own_key_env, "").strip())):
        raise ConfigError(f"{variable} holds the task app's own key, which is never sent out", field=field)
    if api_key_env and not key:
        raise ConfigError(f"variable {api_key_env} is not set", field=field)
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"variable {variable} holds something that is no key", field=field)
    return key


def _url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
        if url.scheme in ("http", "https") and url.host:
            return url
    except (httpx.InvalidURL, ValueError):  # ValueError: a host that is no legal name
        pass
    allowed = "an http:// or https:// URL with a host is needed"
    raise ConfigError(f"inference_url: {allowed}, got {text!r}", field="policy.inference_url", public=allowed)


def _message(wire: Mapping[str, Any], finish_reason: str) -> AssistantMessage:
    calls = tuple(_tool_call(call, index) for index, call in enumerate(wire.get("tool_calls") or ()))
    content = wire.get("content")
    if isinstance(content, list):  # some endpoints send text as parts
        content = "".join(part.get("text") or "" for part in content)
    return AssistantMessage(_text(content), calls, finish_reason)


def _tool_call(call: Mapping[str, Any], index: int) -> ToolCall:
    function = call["function"]
    arguments = function.get("arguments")
    said = arguments if isinstance(arguments, str | None) else json.dumps(arguments)
    return ToolCall(_text(function.get("name")) or "", _text(said) or "", _text(call.get("id")) or f"call_{index}")


def _text(value: Any) -> str | None:
    """`value` as text that can be stored: half a surrogate pair, which JSON lets through, becomes `?`."""
    return None if value is None else str(value).encode("utf-8", "replace").decode()


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None
