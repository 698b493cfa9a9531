"""Any OpenAI-compatible endpoint as a policy: one pooled HTTP client, tool calling, bounded waits.

Keys are sent to the host they belong to and to no other; redirects are not followed. Whatever the
model says is passed on as it is; judging it is the task app's `parse`.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import stamina

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.types import AssistantMessage, Completion, DecisionRequest, ToolCall

__all__ = ["ChatPolicy", "ChatSettings", "completions_url", "provider_key", "same_origin"]

KEY_OF_HOST: Mapping[str, str] = {"api.openai.com": "OPENAI_API_KEY", "api.groq.com": "GROQ_API_KEY"}
"""The variable that holds a provider's key, by host."""

MAX_ANSWER_BYTES = 8_000_000
_RETRIED = frozenset({408, 409, 425, 429})
_WHY = {401: "it refused the key", 403: "it refused the key", 404: "it knows no such address or model"}

# Retries are announced where logging is set up, and not on a bare terminal.
logging.getLogger("stamina").addHandler(logging.NullHandler())


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
    """A fault worth another try, after `wait_s` where the endpoint asked for a pause."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class ChatPolicy:
    """Asks `settings.model` for each decision. Safe to call from many threads; close it when done."""

    name = "chat"
    batched = False

    def __init__(self, settings: ChatSettings, client: httpx.Client | None = None) -> None:
        self.version = settings.model
        self._settings = settings
        self._url = completions_url(settings.inference_url)
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
        left_s = settings.deadline_s if request.time_left_s is None else request.time_left_s
        deadline = start + min(settings.deadline_s, left_s)
        tries = 0

        def wait_before_next(error: Exception) -> float | bool:
            """Seconds to wait, growing with each try; False when another is not worth it or comes too late."""
            if not isinstance(error, _Fault):
                return False
            wait_s = max(error.wait_s, 0.1 * 2**tries * random.uniform(0.5, 1.0))
            return wait_s if time.monotonic() + wait_s < deadline else False

        try:
            for attempt in stamina.retry_context(on=wait_before_next, attempts=settings.tries, timeout=None):
                tries += 1
                with attempt:
                    answer = self._post(self._body(request), deadline)
                    return self._completion(answer, time.monotonic() - start)
        except _Fault as error:
            times = "once" if tries == 1 else f"{tries} times"
            raise PolicyError(f"model endpoint {self._url.host}: {error} (tried {times})", retryable=False) from error
        raise AssertionError("stamina makes at least one attempt")

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

    def _post(self, body: dict[str, Any], deadline: float) -> Any:
        """The endpoint's answer as JSON values, whole within `timeout_s` and before the deadline."""
        key = self._settings.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout_s = max(0.001, min(self._settings.timeout_s, deadline - time.monotonic()))
        end = time.monotonic() + timeout_s
        late = f"no whole answer within {timeout_s:.3g} s"
        try:
            with self._client.stream("POST", self._url, json=body, headers=headers, timeout=timeout_s) as response:
                self._check_status(response)
                answer = bytearray()
                for part in response.iter_bytes():
                    answer += part
                    if time.monotonic() > end:
                        raise _Fault(late)
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise _Fault(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            return json.loads(answer)
        except httpx.TimeoutException as error:
            raise _Fault(late) from error
        except httpx.ConnectError as error:
            raise _Fault("it cannot be reached") from error
        except httpx.HTTPError as error:
            raise _Fault(f"the connection broke ({type(error).__name__})") from error
        except (ValueError, RecursionError) as error:
            raise _Fault("the answer is not JSON") from error

    def _check_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status >= 500 or status in _RETRIED:
            raise _Fault(f"HTTP {status}", _seconds(response.headers.get("retry-after", "")))
        if status != 200:
            why = _WHY.get(status, "it refused the request")
            raise PolicyError(f"model endpoint {self._url.host}: HTTP {status}, {why}", retryable=False)

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
            raise _Fault("the answer is no chat completion") from error


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


def provider_key(inference_url: str, api_key_env: str, environ: Mapping[str, str], *, own_key_env: str) -> str:
    """The key for an endpoint: from the named variable, else by the provider's host over https, else none.

    Raises ConfigError when the named variable is unset or no key, or when it is the app's own key.
    """
    url = _url(inference_url)
    variable = api_key_env or (KEY_OF_HOST.get(url.host, "") if url.scheme == "https" else "")
    key = environ.get(variable, "").strip()
    if variable and (variable == own_key_env or (key and key == environ.get(own_key_env, "").strip())):
        raise ConfigError(
            f"{variable} holds the task app's own key, which is never sent out", field="policy.api_key_env"
        )
    if api_key_env and not key:
        raise ConfigError(f"variable {api_key_env} is not set", field="policy.api_key_env")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"variable {variable} holds something that is no key", field="policy.api_key_env")
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


def _seconds(retry_after: str) -> float:
    """The pause a `Retry-After` header asks for; 0 where it names a date or nothing."""
    return float(retry_after) if retry_after.isdecimal() else 0.0
