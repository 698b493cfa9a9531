"""What a vLLM server is asked and how its answers are read: the wire, every field of it checked. Samples nothing.

`vllm` runs in an environment of its own and is never imported. The facts relied on, from its documentation and
request models (0.30 and later; the routes outside /v1 exist only with VLLM_SERVER_DEV_MODE=1):

    GET  /health                empty, 200 when it is up
    GET  /v1/models             data: id; root (path); parent (None for the base model); max_model_len (base)
    GET  /server_info?config_format=json   vllm_config.model_config.logprobs_mode. Only `processed_logprobs` are
                                those of the distribution sampled from; the default, raw_logprobs, ignores temperature
    POST /v1/completions        prompt is a list of token ids; with return_token_ids a choice holds prompt_token_ids
                                and token_ids, the token that ended it included; with logprobs = 0
                                logprobs.token_logprobs has the chosen tokens' alone. seed is a signed 64-bit number,
                                of one sequence where n = 1. top_k = 0 and min_p = 0 cut nothing. A field left out may
                                take a default from the model's generation_config.json, so each that changes the
                                distribution is sent. finish_reason: stop | length | abort | error. cache_salt keeps
                                cached prompts of different salts apart. model is the name asked for
    POST /collective_rpc        {method: reload_weights, kwargs: {weights_path}}: loads a folder of safetensors into
                                the running model
    POST /v1/load_lora_adapter  {lora_name, lora_path}, /v1/unload_lora_adapter {lora_name}: need --enable-lora and
                                VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; a name in use is refused. The cache of prompts
                                knows an adapter by its name alone, so a name is never used for two
    POST /reset_prefix_cache    cached prompts are of earlier weights; {success: false} while requests run (older
                                servers answer nothing)
    POST /update_weight_version {new_version}; GET /weight_info: weight_version, "default" after a start
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from task_app.config.training import SamplerSection
from task_app.core.errors import PolicyError, TrainError
from task_app.policies.endpoint import Endpoint, read_json
from task_app.policies.http_client import HttpClient
from task_app.train.sampler import Answer

__all__ = ["PROCESSED", "Expected", "ServedModel", "VllmServer", "read_completion"]

PROCESSED = "processed_logprobs"
_TRIES = 5
_RESET_EVERY_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One line of the server's model list; `parent` is "" for the base model, `longest` None where it is not told."""

    name: str
    root: str
    parent: str
    longest: int | None


@dataclass(frozen=True, slots=True)
class Expected:
    """What an answer must agree with: the name asked for, the prompt's ids, end tokens, most tokens, vocabulary."""

    model: str
    prompt: tuple[int, ...]
    stops: frozenset[int]
    most: int
    vocabulary: int


class VllmServer:
    """Speaks to one server; safe to use from many threads. Every call raises PolicyError when the server fails, and
    TrainError when its answer is not what the wire says."""

    def __init__(self, settings: SamplerSection, *, api_key: str = "") -> None:
        self._settings = settings
        self._client = HttpClient(proxies=False)
        self._root = str(httpx.URL(settings.base_url)).rstrip("/")
        self._answers, self._control = (
            Endpoint(self._client, f"vLLM server {self._root}", api_key, timeout_s, _TRIES, quoting=True)
            for timeout_s in (settings.timeout_s, settings.handover_timeout_s)
        )

    def close(self) -> None:
        """Close the kept connections."""
        self._client.close()

    # -- answers ---------------------------------------------------------------------------------

    def complete(self, request: Mapping[str, Any]) -> Any:
        """The answer to a completion request, as JSON values, within `sampler.timeout_s` for all tries together."""
        deadline = time.monotonic() + self._settings.timeout_s
        return self._answers.ask(
            "POST", self._url("/v1/completions"), dict(request), read_json, deadline=deadline, retry=True
        )

    # -- what it is ------------------------------------------------------------------------------

    def check_health(self) -> None:
        """Whether it is up."""
        self._ask("GET", "/health", read=_nothing)

    def models(self) -> list[ServedModel]:
        """The base model and the adapters loaded."""
        answer = self._ask("GET", "/v1/models")
        return [
            ServedModel(
                name=_field(card, "id", str, f"data.{index}."),
                root=str(card.get("root") or ""),
                parent=str(card.get("parent") or ""),
                longest=card.get("max_model_len") if isinstance(card.get("max_model_len"), int) else None,
            )
            for index, card in enumerate(_field(answer, "data", list))
        ]

    def logprobs_mode(self) -> str:
        """Of which distribution the log-probabilities are."""
        config = _field(self._ask("GET", "/server_info?config_format=json"), "vllm_config", dict)
        model = _field(config, "model_config", dict, "vllm_config.")
        return _field(model, "logprobs_mode", str, "vllm_config.model_config.")

    # -- weights ---------------------------------------------------------------------------------

    def reload(self, folder: Path) -> None:
        """Load whole weights from a folder."""
        self._ask("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter under a new name."""
        self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, read=_nothing)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter."""
        self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, read=_nothing)

    def reset_prefix_cache(self) -> None:
        """Forget prompts computed with earlier weights, once no request runs any more."""
        deadline = time.monotonic() + self._settings.handover_timeout_s

        def is_done(answer: bytes) -> bool:
            return not answer or _field(read_json(answer), "success", bool)

        while not self._ask("POST", "/reset_prefix_cache", read=is_done):
            if time.monotonic() > deadline:
                raise PolicyError("the prefix cache could not be reset: requests of earlier weights are still running")
            time.sleep(_RESET_EVERY_S)

    def set_version(self, version: str) -> None:
        """Name the whole weights it now has."""
        self._ask("POST", "/update_weight_version", {"new_version": version}, read=_nothing)

    def version(self) -> str:
        """What its whole weights are called."""
        return _field(self._ask("GET", "/weight_info"), "weight_version", str)

    # -- inside ----------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None, *, read: Callable[[bytes], T] = read_json) -> T:
        deadline = time.monotonic() + self._settings.handover_timeout_s
        return self._control.ask(method, self._url(path), body, read, deadline=deadline, retry=True)

    def _url(self, path: str) -> str:
        return self._root + path


def read_completion(answer: Any, expected: Expected) -> Answer:
    """The one answer of a completion: ids and log-probabilities of the chosen tokens, all of them choices.

    Raises TrainError naming the field that is missing or not as expected, PolicyError when the server gave up on it.
    """
    choices = _field(answer, "choices", list)
    _agree("model", _field(answer, "model", str), expected.model)
    _agree("number of choices", len(choices), 1)
    choice = choices[0]
    reason = _field(choice, "finish_reason", str, "choices.0.")
    if reason in ("abort", "error"):
        raise PolicyError(f"the vLLM server ended an answer with finish_reason {reason!r}")
    _agree("choices.0.prompt_token_ids", tuple(_ids(choice, "prompt_token_ids", expected)), expected.prompt)
    ids = _ids(choice, "token_ids", expected)
    logprobs = _logprobs(choice)
    _agree("length of choices.0.logprobs.token_logprobs", len(logprobs), len(ids))
    _check_end(reason, ids, expected)
    return Answer(ids, logprobs, [1] * len(ids))


def _check_end(reason: str, ids: Sequence[int], expected: Expected) -> None:
    """An answer ends with its only end token, or is cut at the most tokens it may have."""
    ended = bool(ids) and ids[-1] in expected.stops
    whole = {"stop": ended, "length": len(ids) == expected.most and not ended}.get(reason)
    if whole is None:
        raise _wrong("choices.0.finish_reason", reason, "stop or length")
    if not whole or expected.stops & set(ids[:-1]) or len(ids) > expected.most:
        raise _wrong(
            "choices.0.token_ids",
            f"{len(ids)} tokens ending in {list(ids[-1:])} with finish_reason {reason!r}",
            f"an end at the first of {sorted(expected.stops)}, or a cut at {expected.most} tokens",
        )


def _ids(choice: Any, name: str, expected: Expected) -> list[int]:
    ids = _field(choice, name, list, "choices.0.")
    if not all(type(token) is int and 0 <= token < expected.vocabulary for token in ids):
        raise _wrong(f"choices.0.{name}", ids[:8], f"token ids from 0 to {expected.vocabulary - 1}")
    return ids


def _logprobs(choice: Any) -> list[float]:
    where = "choices.0.logprobs."
    values = _field(_field(choice, "logprobs", dict, "choices.0."), "token_logprobs", list, where)
    for value in values:
        if type(value) not in (float, int) or not math.isfinite(value) or value > 0:
            raise _wrong(f"{where}token_logprobs", value, "finite numbers of at most 0")
    return [float(value) for value in values]


def _field(values: Any, name: str, kind: type[T], where: str = "") -> T:
    """A field of an answer. Raises TrainError where it is missing or of another kind."""
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, kind):
        raise _wrong(f"{where}{name}", value, f"a value of type {kind.__name__}")
    return value


def _agree(field: str, value: Any, expected: Any) -> None:
    if value != expected:
        raise _wrong(field, value, repr(expected))


def _wrong(field: str, value: Any, expected: str) -> TrainError:
    return TrainError(f"the vLLM server's answer: {field} is {value!r:.200}, expected was {expected:.200}")


def _nothing(answer: bytes) -> None:
    """An answer whose status says all."""
    del answer
