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
import stamina

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.types import AssistantMessage, Completion, DecisionRequest, ToolCall

__all__ = ["ChatPolicy", "ChatSettings", "completions_url", "provider_key"]

KEY_OF_HOST: Mapping[str, str] = {"api.openai.com": "OPENAI_API_KEY", "api.groq.com": "GROQ_API_KEY"}
"""The variable that holds a provider's key, by host."""

RETRYABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


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


class _Fault(Exception):
    """A fault worth another try."""


class ChatPolicy:
    """Asks `settings.model` for each decision. Safe to call from many threads; close it when done."""

    name = "chat"
    batched = False

    def __init__(self, settings: ChatSettings, client: httpx.Client | None = None) -> None:
        self.version = settings.model
        self._settings = settings
        self._url = completions_url(settings.inference_url)
        self._host = self._url.host
        self._client = client or httpx.Client(follow_redirects=False)

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
        left_s = request.time_left_s
        budget = settings.deadline_s if left_s is None else min(settings.deadline_s, max(left_s, 0.01))
        attempts = stamina.retry_context(
            on=_Fault, attempts=settings.tries, timeout=budget, wait_initial=0.1, wait_max=5.0
        )
        try:
            for attempt in attempts:
                with attempt:
                    left = budget - (time.monotonic() - start)
                    body = self._post(self._body(request), min(settings.timeout_s, max(left, 0.01)))
                    return self._completion(body, time.monotonic() - start)
        except _Fault as error:
            raise PolicyError(f"model endpoint {self._host}: {error}", retryable=False) from error
        raise PolicyError(f"model endpoint {self._host}: no try was made", retryable=False)

    def _body(self, request: DecisionRequest) -> dict[str, Any]:
        settings = self._settings
        limit = "max_completion_tokens" if self._host == "api.openai.com" else "max_tokens"
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

    def _post(self, body: dict[str, Any], timeout_s: float) -> Any:
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            response = self._client.post(self._url, json=body, headers=headers, timeout=timeout_s)
        except httpx.TimeoutException as error:
            raise _Fault(f"no answer within {timeout_s:.0f} s") from error
        except httpx.HTTPError as error:
            raise _Fault(f"{type(error).__name__}: {error}") from error
        if response.status_code in RETRYABLE_STATUS:
            raise _Fault(f"HTTP {response.status_code}")
        if response.status_code != 200:
            raise PolicyError(f"model endpoint {self._host}: HTTP {response.status_code}", retryable=False)
        try:
            return response.json()
        except ValueError as error:
            raise _Fault("the answer is not JSON") from error

    def _completion(self, body: Any, latency_s: float) -> Completion:
        try:
            choice = body["choices"][0]
            message = _message(choice["message"], str(choice.get("finish_reason") or "stop"))
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise _Fault("the answer is no chat completion") from error
        usage = body.get("usage") or {}
        return Completion(
            message=message,
            completion_id=str(body.get("id") or ""),
            model=str(body.get("model") or self._settings.model),
            prompt_tokens=_count(usage, "prompt_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
            latency_s=latency_s,
        )


def completions_url(base: str) -> httpx.URL:
    """The chat-completions address under a base URL; path and query are kept, `/v1` is added to a bare host.

    Raises ConfigError for anything that is not an http(s) URL with a host.
    """
    try:
        url = httpx.URL(base)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError("inference_url is not a URL", field="policy.inference_url") from error
    if url.scheme not in ("http", "https") or not url.host:
        allowed = "inference_url must be an http:// or https:// URL"
        raise ConfigError(f"{allowed}, got {base!r}", field="policy.inference_url", public=allowed)
    path = url.path.rstrip("/") or "/v1"
    return url.copy_with(path=path if path.endswith("/chat/completions") else f"{path}/chat/completions")


def provider_key(inference_url: str, api_key_env: str, environ: Mapping[str, str], *, own_key_env: str) -> str:
    """The key for an endpoint: from the named variable, else by the provider's host, else none.

    Raises ConfigError when the named variable is unset or is the one that holds the app's own key.
    """
    if api_key_env == own_key_env:
        raise ConfigError(f"{own_key_env} is the task app's own key and is never sent out", field="policy.api_key_env")
    if api_key_env:
        if not environ.get(api_key_env):
            raise ConfigError(f"variable {api_key_env} is not set", field="policy.api_key_env")
        return environ[api_key_env]
    variable = KEY_OF_HOST.get(completions_url(inference_url).host, "")
    return environ.get(variable, "")


def _message(wire: Mapping[str, Any], finish_reason: str) -> AssistantMessage:
    calls = []
    for index, call in enumerate(wire.get("tool_calls") or ()):
        function = call["function"]
        said = function.get("arguments")
        arguments = said if isinstance(said, str) else json.dumps(said)
        calls.append(ToolCall(str(function.get("name") or ""), arguments, str(call.get("id") or f"call_{index}")))
    return AssistantMessage(_text(wire.get("content")), tuple(calls), finish_reason)


def _text(content: Any) -> str | None:
    """The text of a content field, which some endpoints send as parts."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _count(usage: Mapping[str, Any], key: str) -> int | None:
    value = usage.get(key)
    return value if isinstance(value, int) else None
