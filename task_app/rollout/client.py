"""The same rollouts on a hosted task app: plans go out as `/rollout` requests, episodes come back whole.

Every wait has a deadline. A rollout that breaks there comes back as an `infra_error` episode, never as a
reward of 0; what it decided is in the app's own database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Self

import httpx
import stamina
from pydantic import ValidationError

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.core.wire import episode_from_json
from task_app.rollout.episode import EpisodePlan

__all__ = ["HostedTaskApp"]


class _Busy(PolicyError):
    """The app has as much to do as it accepts."""


class _Unreachable(PolicyError):
    """Nobody answers at the address."""


class _Broken(PolicyError):
    """A rollout broke there; `episode_id` names what is kept of it."""

    def __init__(self, message: str, episode_id: str) -> None:
        super().__init__(message, retryable=False)
        self.episode_id = episode_id


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
        order of the plans. Raises PolicyError when the app cannot be used at all: unreachable, another
        key, a setting it refuses; rollouts under way end first, others are not begun.
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
        """One plan's episode, in the thread of the caller; `more` is added to the request. Raises like `play`."""
        started_at = time.time()
        try:
            return self._episode(self.rollout({**_body(plan, spec, policy, flags, max_decisions), **more}))
        except _Broken as error:
            name = str(policy.get("policy_name", ""))
            return _broken_episode(plan, spec, name, flags, max_decisions, started_at, error)

    def _episode(self, answer: Mapping[str, Any]) -> Episode:
        try:
            return episode_from_json(answer["trace"]["episode"])
        except (KeyError, TypeError, ValidationError) as error:
            raise self._error("the answer holds no episode record") from error

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """One call, asked again while the app is busy or not up yet; never once it may have begun."""
        deadline = time.monotonic() + self._timeout_s

        def worth_another_try(error: Exception) -> bool:
            return isinstance(error, _Busy) or (isinstance(error, _Unreachable) and attempt.num < self._tries)

        for attempt in stamina.retry_context(
            on=worth_another_try, attempts=None, timeout=self._timeout_s, wait_initial=0.2, wait_max=2.0
        ):
            with attempt:
                left_s = max(0.001, deadline - time.monotonic())
                return self._call_once(method, path, timeout=left_s, **arguments)
        raise AssertionError("stamina makes at least one attempt")

    def _call_once(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **arguments)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Unreachable(self._say("it cannot be reached; is it being served?")) from error
        except httpx.TimeoutException as error:
            raise self._error(f"no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise self._error(f"the call failed ({type(error).__name__}: {error})") from error
        if response.status_code == 429:
            raise _Busy(self._say("HTTP 429, it is busy"))
        try:
            body = response.json()
        except ValueError as error:
            raise self._error(f"HTTP {response.status_code}, and the answer is not JSON") from error
        if response.status_code == 200 and isinstance(body, dict):
            return body
        raise self._refused(response.status_code, body)

    def _refused(self, status: int, body: Any) -> PolicyError:
        said = body.get("error") if isinstance(body, dict) else None
        if not isinstance(said, dict):
            return self._error(f"HTTP {status}, and the answer is not a task app's")
        where = f" ({said['field']})" if said.get("field") else ""
        sentence = f"HTTP {status}: {said.get('message', '')}{where}"
        if said.get("episode_id"):
            return _Broken(self._say(sentence), str(said["episode_id"]))
        return self._error(sentence)

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
    error: _Broken,
) -> Episode:
    """What is known here of a rollout that broke there: its place, its cause, no decisions, no reward."""
    return Episode(
        episode_id=error.episode_id,
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
        cause=str(error),
        terminated=False,
        truncated=False,
        outcome=None,
        decisions=(),
        started_at=started_at,
        finished_at=time.time(),
    )
