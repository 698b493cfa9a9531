"""Any OpenAI-compatible endpoint as a policy: one shared HTTP client, tool calling, bounded waits.

Keys are sent to the host they belong to and to no other; redirects are not followed. Whatever the
model says is passed on as it is; judging it is the task app's `parse`.

A model that refuses a parameter by name is asked without it from then on, but only where that keeps the distribution
that was asked for: `max_tokens` becomes `max_completion_tokens` or the reverse, `temperature` and `top_p` are left out
where they are 1 (what models do without them), and `tool_choice` falls back to the model's own choice. It is logged
once and stored with each episode (`details.asked_differently`). Anything else is refused, naming the setting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from task_app.core.errors import ConfigError, ContextOverflow, PolicyError
from task_app.core.types import Completion, DecisionRequest
from task_app.policies.chat_wire import (
    AnsweredError,
    is_about_context,
    read_answer,
    read_completion,
    unsupported_parameter,
)
from task_app.policies.endpoint import Endpoint, Fault, encode_json, read_json
from task_app.policies.http_client import HttpClient

__all__ = [
    "EPISODE_HEADER",
    "NOISE_KEY_HEADER",
    "ChatPolicy",
    "ChatSettings",
    "completions_url",
    "provider_key",
    "same_origin",
]

KEY_OF_HOST: Mapping[str, str] = {"api.openai.com": "OPENAI_API_KEY", "api.groq.com": "GROQ_API_KEY"}
"""The variable that holds a provider's key, by host."""

EPISODE_HEADER, NOISE_KEY_HEADER = "X-Task-App-Episode", "X-Task-App-Noise-Key"
"""Headers that tell a trainer's endpoint which decision is asked for; sent where `ChatSettings.identify` says so."""

_LIMITS = ("max_tokens", "max_completion_tokens")
_learned: WeakKeyDictionary[HttpClient, dict[tuple[str, str], tuple[str, ...]]] = WeakKeyDictionary()
"""Parameters that models refused, by client, address and model; policies of one client share what they learn."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How to ask. Times in seconds; `api_key` empty sends none.

    keep_reasoning  whether a model's reasoning, told apart from its text, stands before it in <think> tags
    identify        whether episode and noise key of each decision are sent as headers, for a trainer's endpoint
    """

    model: str
    inference_url: str
    api_key: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    timeout_s: float = 60.0
    deadline_s: float = 180.0
    tries: int = 3
    keep_reasoning: bool = False
    identify: bool = False


class _Unsupported(Exception):
    """The model does not take a parameter it was sent."""

    def __init__(self, parameter: str) -> None:
        super().__init__(parameter)
        self.parameter = parameter


class _Encoded:
    """Remembers the JSON of the last value: prompts of a task share their system message and their tools."""

    def __init__(self) -> None:
        self._last: tuple[Any, bytes] | None = None

    def __call__(self, value: Any) -> bytes:
        last = self._last
        if last is None or not (last[0] is value or last[0] == value):
            last = self._last = (value, encode_json(value))
        return last[1]


class ChatPolicy:
    """Asks `settings.model` for each decision. Safe to call from many threads; close it when done."""

    name = "chat"
    batched = False

    def __init__(self, settings: ChatSettings, client: HttpClient | None = None) -> None:
        self.version = settings.model
        self._settings = settings
        url = completions_url(settings.inference_url)
        self._url, self._host = str(url), url.host
        self._client = client or HttpClient()
        self._name = f"model endpoint {self._host}"
        self._endpoint = Endpoint(self._client, self._name, settings.api_key, settings.timeout_s, settings.tries)
        self._known = _learned.setdefault(self._client, {})
        self._place = (self._url, settings.model)
        self._system, self._tools, self._parameters = _Encoded(), _Encoded(), _Encoded()

    def close(self) -> None:
        """Close the kept connections."""
        self._client.close()

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """One completion per request.

        Raises PolicyError, already retried, naming host and cause; ContextOverflow for a prompt that does not fit.
        """
        return [self._decide(request) for request in requests]

    def end_episode(self, episode_id: str) -> None:
        """Nothing is kept per episode."""

    def _decide(self, request: DecisionRequest) -> Completion:
        settings, start = self._settings, time.monotonic()
        left_s = settings.deadline_s if request.time_left_s is None else request.time_left_s
        deadline = start + min(settings.deadline_s, left_s)

        def read(answer: bytes) -> Completion:
            value, latency_s = read_answer(answer), time.monotonic() - start
            return read_completion(value, settings.model, latency_s, keep_reasoning=settings.keep_reasoning)

        while True:
            refused = self._known.get(self._place, ())
            try:
                return self._ask(request, refused, read, deadline)
            except _Unsupported as error:
                self._leave_out(error.parameter, refused)
            finally:
                if learned := self._known.get(self._place):
                    request.note("asked_differently", _told(learned))

    def _ask(self, request: DecisionRequest, refused: tuple[str, ...], read: Any, deadline: float) -> Completion:
        settings, parameters = self._settings, self._parameters_of(request, refused)
        identity = {EPISODE_HEADER: request.episode_id, NOISE_KEY_HEADER: request.noise_key}
        try:
            return self._endpoint.ask(
                "POST",
                self._url,
                self._body(request, parameters),
                read,
                deadline=deadline,
                headers=identity if settings.identify else None,
                refused=partial(self._refusal, request, tuple(parameters)),
            )
        except AnsweredError as error:
            special = self._refusal(request, tuple(parameters), error.status, error.body)
            raise special or PolicyError(f"{self._name}: {error}", retryable=False) from error

    def _parameters_of(self, request: DecisionRequest, refused: tuple[str, ...]) -> dict[str, Any]:
        """What is sent besides model, messages and tools."""
        settings = self._settings
        limits = _LIMITS[::-1] if self._host == "api.openai.com" else _LIMITS
        limit = next((name for name in limits if name not in refused), limits[0])
        parameters: dict[str, Any] = {"top_p": settings.top_p, "temperature": settings.temperature}
        parameters[limit] = settings.max_tokens
        if request.tools:
            parameters["tool_choice"] = "required"
        return {name: value for name, value in parameters.items() if name not in refused}

    def _body(self, request: DecisionRequest, parameters: dict[str, Any]) -> bytes:
        """The request as JSON; what is the same in every one is encoded once."""
        first, *others = request.messages
        prompt = b",".join([self._system(first), *map(encode_json, others)])
        settings = self._parameters({"model": self._settings.model, **parameters})
        tools = b',"tools":' + self._tools(request.tools) if request.tools else b""
        return b"".join([settings[:-1], tools, b',"messages":[', prompt, b"]}"])

    def _refusal(self, request: DecisionRequest, sent: tuple[str, ...], status: int, answer: bytes) -> Exception | None:
        """What a refusal means, where it is more than a refusal."""
        try:
            body = read_json(answer)
        except Fault:
            return None
        if status in (0, 400, 413, 422) and is_about_context(body):
            sentence = f"{self._name}: HTTP {status}, the prompt does not fit the model's context"
            return ContextOverflow(sentence, frozenset({request.episode_id}))
        parameter = unsupported_parameter(body, sent) if status in (400, 422) else None
        return _Unsupported(parameter) if parameter else None

    def _leave_out(self, parameter: str, refused: tuple[str, ...]) -> None:
        """Ask without it from now on. Raises PolicyError where that would ask for something else."""
        value = getattr(self._settings, parameter, None)
        if parameter in ("temperature", "top_p") and value != 1:
            raise PolicyError(
                f"{self._name}: the model does not take {parameter} = {value:g}, only its own; "
                f"set policy.{parameter} to 1 to leave it to the model",
                retryable=False,
            )
        if parameter in _LIMITS and set(_LIMITS) & set(refused):
            raise PolicyError(f"{self._name}: the model takes neither {' nor '.join(_LIMITS)}", retryable=False)
        if parameter not in self._known.get(self._place, ()):
            self._known[self._place] = (*refused, parameter)
            _log.warning("%s refuses %s: asked %s", self._name, parameter, ", ".join(_told((parameter,))))


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
    own_key_envs: Collection[str],
    field: str = "policy.api_key_env",
) -> str:
    """The key for an endpoint: from the named variable, else by the provider's host over https, else none.

    Raises ConfigError about `field` when the named variable is unset or no key, or when it is a key of the app's own
    (those of the variables `own_key_envs`).
    """
    url = _url(inference_url)
    variable = api_key_env or (KEY_OF_HOST.get(url.host, "") if url.scheme == "https" else "")
    key = environ.get(variable, "").strip()
    own = [environ.get(name, "").strip() for name in own_key_envs]
    if variable and (variable in own_key_envs or (key and key in own)):
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


def _told(refused: Sequence[str]) -> list[str]:
    """What is asked otherwise than usual, as a person reads it."""
    swapped = dict(zip(_LIMITS, _LIMITS[::-1], strict=True))
    return [f"with {swapped[name]} for {name}" if name in swapped else f"without {name}" for name in refused]
