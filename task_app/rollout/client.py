"""The same rollouts on a hosted task app: plans go out as `/rollout` requests, episodes come back whole.

Every wait has a deadline. A broken rollout comes back as an error, never as a reward of 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import httpx
import stamina
from pydantic import ValidationError

from task_app.core.errors import PolicyError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.core.wire import episode_from_json
from task_app.rollout.episode import EpisodePlan

__all__ = ["HostedTaskApp"]

_RETRYABLE_STATUS = frozenset({429, 502, 504})


class _NotYet(Exception):
    """The app is busy or out of reach; worth another try."""


class HostedTaskApp:
    """A task app at `base_url`. Use as a context manager, or call `close`. Times in seconds."""

    def __init__(self, base_url: str, *, api_key: str = "", timeout_s: float = 660.0, tries: int = 5) -> None:
        headers = {"X-API-Key": api_key} if api_key else {}
        self._client = httpx.Client(base_url=base_url.rstrip("/"), headers=headers, timeout=timeout_s)
        self._base_url = base_url
        self._tries = tries

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

    def task_info(self, seed: int | None = None) -> dict[str, Any]:
        """What `/task_info` says. Raises PolicyError, for a wrong key too."""
        return self._call("GET", "/task_info", params={} if seed is None else {"seed": seed})

    def rollout(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One `/rollout` request as it is. Raises PolicyError naming status and message."""
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
        order of the plans. Raises PolicyError for the first rollout that broke; others end first.
        """
        guard = threading.Lock()

        def one(plan: EpisodePlan) -> Episode:
            answer = self.rollout(_body(plan, spec, policy, flags, max_decisions, noise_seed))
            try:
                episode = episode_from_json(answer["trace"]["episode"])
            except (KeyError, TypeError, ValidationError) as error:
                raise PolicyError(f"task app {self._base_url}: the answer holds no episode record") from error
            with guard:
                sink(episode)
            return episode

        with ThreadPoolExecutor(max_workers=max(1, min(concurrency, len(plans)))) as pool:
            return list(pool.map(one, plans))

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        attempts = stamina.retry_context(
            on=_NotYet, attempts=self._tries, timeout=60.0, wait_initial=0.2, wait_max=5.0
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._call_once(method, path, **arguments)
        except _NotYet as error:
            raise PolicyError(f"task app {self._base_url}: {error}") from error
        raise PolicyError(f"task app {self._base_url}: no try was made")

    def _call_once(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.ConnectError as error:
            raise _NotYet("cannot be reached; is it being served?") from error
        except httpx.HTTPError as error:
            raise PolicyError(f"task app {self._base_url}: {type(error).__name__}: {error}") from error
        if response.status_code in _RETRYABLE_STATUS:
            raise _NotYet(f"HTTP {response.status_code}")
        try:
            body = response.json()
        except ValueError as error:
            raise PolicyError(f"task app {self._base_url}: HTTP {response.status_code}, not JSON") from error
        if response.status_code != 200:
            said = body.get("error") or {}
            where = f" ({said['field']})" if said.get("field") else ""
            raise PolicyError(
                f"task app {self._base_url}: HTTP {response.status_code}: {said.get('message', '')}{where}"
            )
        return body


def _body(
    plan: EpisodePlan,
    spec: TaskSpec,
    policy: Mapping[str, Any],
    flags: StepRewardFlags,
    max_decisions: int,
    noise_seed: int,
) -> dict[str, Any]:
    """The request of one plan, with the flags in force and the whole record asked for."""
    step_rewards: dict[str, Any] = {
        "enabled": flags.mode != "off",
        "mode": flags.mode,
        "kind": flags.kind,
        "indicator_lambda": flags.indicator_lambda,
        "step_beta": flags.beta,
        "horizon": flags.horizon,
    }
    return {
        "run_id": plan.run_id,
        "group_id": plan.group_id,
        "member": plan.member,
        "noise_seed": noise_seed,
        "env": {
            "env_name": spec.app.name,
            "seed": plan.seed,
            "config": {"options": spec.ref(plan.seed).options, "step_rewards": step_rewards},
        },
        "policy": {**policy, "config": {**policy.get("config", {}), "max_llm_calls": max_decisions}},
        "record": {"trajectories": False, "return_trace": True, "trace_format": "full"},
    }
