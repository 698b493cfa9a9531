"""The same rollouts on a hosted task app: plans go out as `/rollout` requests, episodes come back whole.

Every wait has a deadline. A rollout that breaks there, or whose answer is lost on the way while the app is still up,
comes back as an `infra_error` episode, never as a reward of 0; what it decided is in the app's own database.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Self

import httpx
import stamina
from pydantic import ValidationError

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.core.wire import episode_from_json
from task_app.rollout.episode import EpisodePlan
from task_app.rollout.redirects import RedirectRefused, followed

__all__ = ["UNANSWERED", "HostedTaskApp"]

UNANSWERED = "unanswered"
"""In the details of an `infra_error` episode: the app gave no answer of its own, so it may never have begun."""

_LOOK_S = 10.0
"""How long `/health` may take to answer when an answer was lost."""
_LOST = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""What happens to a connection after it is made."""


class _Busy(PolicyError):
    """The app has as much to do as it accepts."""


class _Unreachable(PolicyError):
    """Nobody answers at the address."""


class _Broken(PolicyError):
    """A rollout broke there; `episode_id` names what is kept of it."""

    def __init__(self, message: str, episode_id: str) -> None:
        super().__init__(message, retryable=False)
        self.episode_id = episode_id


class _Lost(PolicyError):
    """The call may have begun, and there is no answer of the app to it: a broken connection, a time-out, a 5xx."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class HostedTaskApp:
    """A task app at `base_url`. Use as a context manager, or call `close`.

    `timeout_s` bounds one call, waiting while the app is busy included; `tries` is how often a connection
    is tried. Raises ConfigError for a `base_url` that is no http(s) URL.
    """

    def __init__(self, base_url: str, *, api_key: str = "", timeout_s: float = 660.0, tries: int = 5) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}", field="base_url")
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._tries = tries
        headers = {"X-API-Key": api_key.strip()} if api_key.strip() else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.Client(base_url=self._base_url, headers=headers, limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()

    def health(self) -> dict[str, Any]:
        """What `/health` says. Raises PolicyError when the app cannot be reached."""
        return self._call("GET", "/health")

    def is_up(self) -> bool:
        """Whether `/health` answers as a task app's, ready or not; one that starts again is waited for some seconds."""
        try:
            for attempt in stamina.retry_context(
                on=(httpx.HTTPError, ValueError),
                attempts=self._tries,
                timeout=_LOOK_S,
                wait_initial=0.2,
                wait_max=2.0,
                wait_jitter=0.2,
            ):
                with attempt:
                    if "healthy" not in self._client.get("/health", timeout=_LOOK_S).json():
                        raise ValueError("something else answers")
        except (httpx.HTTPError, ValueError, TypeError):
            return False
        return True

    def task_info(self, *seeds: int) -> dict[str, Any]:
        """What `/task_info` says. Raises PolicyError, for a wrong key too."""
        return self._call("GET", "/task_info", params={"seed": list(seeds)})

    def rollout(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One `/rollout` request as it is. Raises PolicyError naming status, message and field."""
        return self._call("POST", "/rollout", json=dict(body))

    def play(
        self,
        plans: Sequence[EpisodePlan],
        spec: TaskSpec,
        policy: Mapping[str, Any],
        flags: StepRewardFlags,
        max_decisions: int,
        sink: Callable[[Episode], None],
        *,
        noise_seed: int = 0,
        concurrency: int = 8,
    ) -> list[Episode]:
        """Play every plan there and give each episode to `sink`, from one thread at a time.

        `policy` is the request's policy object (`policy_name`, `config`). Returns the episodes in the
        order of the plans. Raises PolicyError when the app cannot be used at all: unreachable, another key,
        a setting it refuses, an answer lost and no answer of `/health` either; rollouts under way end first,
        others are not begun.
        """
        guard = threading.Lock()

        def one(plan: EpisodePlan) -> Episode:
            episode = self.play_one(plan, spec, policy, flags, max_decisions, {"noise_seed": noise_seed})
            with guard:
                sink(episode)
            return episode

        with ThreadPoolExecutor(max_workers=max(1, min(concurrency, len(plans)))) as pool:
            return list(pool.map(one, plans))

    def play_one(
        self,
        plan: EpisodePlan,
        spec: TaskSpec,
        policy: Mapping[str, Any],
        flags: StepRewardFlags,
        max_decisions: int,
        more: Mapping[str, Any],
    ) -> Episode:
        """One plan's episode, in the thread of the caller; `more` is added to the request. Raises like `play`.

        An answer that is lost while the app is up is an `infra_error` episode with UNANSWERED in its details.
        """
        started_at, name = time.time(), str(policy.get("policy_name", ""))
        try:
            return self._episode(self.rollout({**_body(plan, spec, policy, flags, max_decisions), **more}))
        except _Broken as error:
            return _broken_episode(plan, spec, name, flags, max_decisions, started_at, str(error), error.episode_id)
        except _Lost as error:
            if not self.is_up():
                raise PolicyError(f"{error}; nor does its /health answer", retryable=False) from error
            lost = _broken_episode(plan, spec, name, flags, max_decisions, started_at, str(error), uuid.uuid4().hex)
            return replace(lost, details={UNANSWERED: True})

    def _episode(self, answer: Mapping[str, Any]) -> Episode:
        try:
            return episode_from_json(answer["trace"]["episode"])
        except (KeyError, TypeError, ValidationError) as error:
            raise self._error("the answer holds no episode record") from error

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """One call, asked again while the app is busy or not up yet; never once it may have begun, nor in the last
        tenth of its time, when what it began would be lost."""
        deadline = time.monotonic() + self._timeout_s
        refused: list[Exception] = []

        def too_late() -> bool:
            return deadline - time.monotonic() < self._timeout_s / 10

        def worth_another_try(error: Exception) -> bool:
            refused.append(error)
            again = isinstance(error, _Busy) or (isinstance(error, _Unreachable) and attempt.num < self._tries)
            return again and not too_late()

        for attempt in stamina.retry_context(
            on=worth_another_try, attempts=None, timeout=self._timeout_s, wait_initial=0.2, wait_max=2.0
        ):
            with attempt:
                if refused and too_late():  # after the wait
                    raise refused[-1]
                return self._call_once(method, path, timeout=deadline - time.monotonic(), **arguments)
        raise AssertionError("stamina makes at least one attempt")

    def _call_once(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        response = self._response(method, path, **arguments)
        if response.status_code == 429:
            raise _Busy(self._say("HTTP 429, it is busy"))
        try:
            body = response.json()
        except ValueError as error:
            sentence = f"HTTP {response.status_code}, and the answer is not JSON"
            raise (_Lost(self._say(sentence)) if response.is_server_error else self._error(sentence)) from error
        if response.status_code == 200 and isinstance(body, dict):
            return body
        raise self._refused(response.status_code, body)

    def _response(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """The answer, wherever on this server it is to be fetched. Raises _Unreachable only for what has not begun."""
        deadline = time.monotonic() + arguments["timeout"]
        begun = False
        try:
            response = self._client.request(method, path, **arguments)
            begun = response.status_code == 303
            response = followed(self._client, response, deadline)
        except RedirectRefused as error:
            raise self._error(str(error)) from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if begun:
                raise _Lost(self._say("it began, and cannot be reached any more")) from error
            raise _Unreachable(self._say("it cannot be reached; is it being served?")) from error
        except httpx.TimeoutException as error:
            raise _Lost(self._say(f"no answer within {self._timeout_s:g} s")) from error
        except _LOST as error:
            raise _Lost(self._say(f"the call failed ({type(error).__name__}: {error})")) from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._error(f"the call failed ({type(error).__name__}: {error})") from error
        if begun and response.status_code == 429:
            raise _Lost(self._say("HTTP 429 where its answer was to be fetched"))
        return response

    def _refused(self, status: int, body: Any) -> PolicyError:
        said = body.get("error") if isinstance(body, dict) else None
        if not isinstance(said, dict):
            sentence = f"HTTP {status}, and the answer is not a task app's"
            return _Lost(self._say(sentence)) if status >= 500 else self._error(sentence)
        where = f" ({said['field']})" if said.get("field") else ""
        sentence = f"HTTP {status}: {said.get('message', '')}{where}"
        if said.get("episode_id"):
            return _Broken(self._say(sentence), str(said["episode_id"]))
        return _Lost(self._say(sentence)) if status >= 500 else self._error(sentence)

    def _error(self, sentence: str) -> PolicyError:
        return PolicyError(self._say(sentence), retryable=False)

    def _say(self, sentence: str) -> str:
        return f"task app {self._base_url}: {sentence}"


def _body(
    plan: EpisodePlan,
    spec: TaskSpec,
    policy: Mapping[str, Any],
    flags: StepRewardFlags,
    max_decisions: int,
) -> dict[str, Any]:
    """The request of one plan, with the flags in force and the whole record asked for."""
    step_rewards = {("step_beta" if key == "beta" else key): value for key, value in asdict(flags).items()}
    return {
        "run_id": plan.run_id,
        "group_id": plan.group_id,
        "member": plan.member,
        "env": {
            "env_name": spec.app.name,
            "seed": plan.seed,
            "config": {"options": spec.ref(plan.seed).options, "step_rewards": step_rewards},
        },
        "policy": {**policy, "config": {**policy.get("config", {}), "max_llm_calls": max_decisions}},
        "record": {"trajectories": False, "return_trace": True, "trace_format": "full"},
    }


def _broken_episode(
    plan: EpisodePlan,
    spec: TaskSpec,
    policy: str,
    flags: StepRewardFlags,
    max_decisions: int,
    started_at: float,
    cause: str,
    episode_id: str,
) -> Episode:
    """What is known here of a rollout that broke there: its place, its cause, no decisions, no reward."""
    return Episode(
        episode_id=episode_id,
        run_id=plan.run_id,
        group_id=plan.group_id,
        member=plan.member,
        task=spec.ref(plan.seed),
        policy=policy,
        policy_version="",
        prompt_hash=spec.prompt_hash,
        flags=flags,
        max_decisions=max_decisions,
        status="infra_error",
        cause=cause,
        terminated=False,
        truncated=False,
        outcome=None,
        decisions=(),
        started_at=started_at,
        finished_at=time.time(),
    )
