"""Playing a run's episodes on a task app elsewhere: it asks the policy here, and its records come back with answers.

Each completion has an id that the app stores with its decision; token ids and log-probabilities never leave this
process and are joined by that id. What comes back is checked against what was asked for, and stored here as if it had
been played here. A rollout that breaks there, or whose answer is lost, is tried again as often as
`rollout.infra_tries` says; then it is an episode without a reward, and its group is dropped. The run ends when the app
does not say how it is either.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol, Self

from task_app.config.models import Config
from task_app.core.errors import ConfigError, PolicyError, TrainError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.rollout import EpisodePlan, Limits, play
from task_app.rollout.client import UNANSWERED, HostedTaskApp
from task_app.train.desk import Desk
from task_app.train.policy_endpoint import PolicyEndpoint
from task_app.train.ranks import current

__all__ = ["HostedRollouts", "OwnRollouts", "Rollouts", "make_rollouts"]

_log = logging.getLogger(__name__)

_PAUSE_S = 0.5
"""After an answer that was lost, times the number of the try: what took it away may take a moment to come back."""


class Rollouts(Protocol):
    """Where episodes are played. `orphans`: completions so far that no episode holds."""

    orphans: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def play(
        self,
        plans: Sequence[EpisodePlan],
        spec: TaskSpec,
        policy: Policy,
        limits: Limits,
        flags: StepRewardFlags,
        sink: Callable[[Episode], None],
        *,
        concurrency: int = 8,
    ) -> list[Episode]:
        """Like `rollout.play`."""
        ...


class OwnRollouts:
    """Episodes played in this process."""

    orphans = 0
    play = staticmethod(play)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing is held."""


def make_rollouts(config: Config, spec: TaskSpec, environ: Mapping[str, str] = os.environ) -> Rollouts:
    """What plays the run's episodes: this process, or the app at `rollout.task_url`. Raises ConfigError."""
    if not config.rollout.task_url:
        return OwnRollouts()
    if not current().alone:
        raise ConfigError(
            "rollout.task_url cannot be used with several processes: decisions that come over HTTP would have to be "
            "spread over all of them; train in one",
            field="rollout.task_url",
        )
    return HostedRollouts(config, spec, environ.get(config.server.api_key_env, ""))


class HostedRollouts:
    """Plays on the app at `rollout.task_url`. Entering it starts the policy's endpoint and looks whether the app is
    there, takes the key and plays the same task: raises ConfigError, PolicyError or TrainError."""

    def __init__(self, config: Config, spec: TaskSpec, api_key: str) -> None:
        rollout = config.rollout
        self.orphans = 0
        self._spec, self._rollout = spec, rollout
        self._app = HostedTaskApp(rollout.task_url, api_key=api_key, timeout_s=rollout.task_timeout_s)
        self._endpoint = PolicyEndpoint(rollout.policy_host, rollout.policy_port, rollout.policy_url)
        self._most_at_once = rollout.concurrency
        self._one_call = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._app)
            self._check_app()
            stack.enter_context(self._endpoint)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def play(
        self,
        plans: Sequence[EpisodePlan],
        spec: TaskSpec,
        policy: Policy,
        limits: Limits,
        flags: StepRewardFlags,
        sink: Callable[[Episode], None],
        *,
        concurrency: int = 8,
    ) -> list[Episode]:
        """Like `rollout.play`, at the app. Raises PolicyError when it cannot be used at all, TrainError when it plays
        something else than it is asked for, and what sampling raises."""
        at_once = max(1, min(concurrency, self._most_at_once, len(plans)))
        with self._one_call, Desk(policy, plans, at_once, self._rollout.policy_wait_s) as desk:
            call = _Call(
                self._app, spec, policy, limits, flags, desk, self._endpoint.serve(desk), self._rollout.task_url
            )
            guard = threading.Lock()

            def one(plan: EpisodePlan) -> Episode:
                episode = call.episode(plan)
                with guard:
                    sink(episode)
                return episode

            with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="hosted-rollout") as pool:
                try:
                    episodes = list(pool.map(one, plans))
                except BaseException:
                    desk.stop()  # the other rollouts break at their next decision
                    desk.check()  # the app was only told that it is over, not why
                    raise
            self._count(desk.orphans)
        return episodes

    def _count(self, orphans: int) -> None:
        self.orphans += orphans
        if orphans:
            _log.warning("%d completions belong to no episode and are dropped", orphans)

    def _check_app(self) -> None:
        """Look at what is served. Raises PolicyError when nobody answers, ConfigError when it is another task."""
        said = self._app.task_info()
        task, own = said.get("task"), self._spec.app
        found = (task.get("name"), task.get("version")) if isinstance(task, dict) else None
        if found != (own.name, own.version):
            raise ConfigError(
                f"rollout.task_url {self._rollout.task_url} serves {found}, this run trains on "
                f"{(own.name, own.version)}",
                field="rollout.task_url",
            )
        told = said.get("limits", {}).get("max_concurrent_rollouts")
        if isinstance(told, int) and told > 0:
            self._most_at_once = min(self._most_at_once, told)


class _Call:
    """What the rollouts of one call share."""

    def __init__(
        self,
        app: HostedTaskApp,
        spec: TaskSpec,
        policy: Policy,
        limits: Limits,
        flags: StepRewardFlags,
        desk: Desk,
        address: str,
        task_url: str,
    ) -> None:
        self._app, self._spec, self._limits, self._flags, self._desk = app, spec, limits, flags, desk
        self._name, self._version, self._task_url = policy.name, policy.version, task_url
        self._policy = {"policy_name": "chat", "config": {"model": desk.model, "inference_url": address}}

    def episode(self, plan: EpisodePlan) -> Episode:
        """One plan's episode, of the last try."""
        for attempt in range(1, self._limits.infra_tries + 1):
            self._desk.check()
            episode = self._once(plan, attempt)
            self._desk.check()
            if episode.rewarded:
                break
            if self._desk.over:
                raise TrainError("the rollouts are over")
            unanswered = bool(episode.details.get(UNANSWERED))
            if not self._desk.asked and not unanswered:
                raise TrainError(
                    f"task app {self._task_url} played, but nobody asked the policy; it must reach the address of "
                    f"rollout.policy_url, or of policy_host and policy_port: {episode.cause}"
                )
            _log.warning("seed %d, member %d broke in try %d: %s", plan.seed, plan.member, attempt, episode.cause)
            if unanswered and attempt < self._limits.infra_tries:
                time.sleep(attempt * _PAUSE_S)
        self._desk.ended(episode.episode_id)
        return episode

    def _once(self, plan: EpisodePlan, attempt: int) -> Episode:
        limits = self._limits
        played = self._app.play_one(
            plan,
            self._spec,
            self._policy,
            self._flags,
            limits.max_decisions,
            {
                "noise_key": plan.noise_key,
                "max_parse_failures": limits.max_parse_failures,
                **self._grammar(),
                **({"max_env_steps": limits.max_env_steps} if limits.max_env_steps else {}),
            },
        )
        details = {**played.details, **plan.details, "played_at": self._task_url, "tries": attempt}
        episode = replace(
            played,
            run_id=plan.run_id,
            policy=self._name,
            policy_version=self._version,
            update=plan.update,
            details=details,
        )
        if not episode.rewarded:
            return replace(episode, decisions=())  # what was sampled for it is dropped and counted
        self._check(plan, played)
        try:
            return self._desk.joined(episode)
        except PolicyError as error:
            cause = f"task app {self._task_url}: {error}"
            return replace(
                episode,
                status="infra_error",
                cause=cause,
                terminated=False,
                truncated=False,
                outcome=None,
                decisions=(),
            )

    def _grammar(self) -> dict[str, Any]:
        grammar = self._spec.app.grammar(self._spec.options)
        return {"grammar_hash": grammar.hash} if grammar else {}

    def _check(self, plan: EpisodePlan, played: Episode) -> None:
        """Whether the app played what it was asked for, under the flags it was asked for. Raises TrainError."""
        asked = {
            "task": self._spec.ref(plan.seed),
            "prompt_hash": self._spec.prompt_hash,
            "flags": self._flags,
            "max_decisions": self._limits.max_decisions,
            "group_id": plan.group_id,
            "member": plan.member,
        }
        for name, value in asked.items():
            if getattr(played, name) != value:
                raise TrainError(
                    f"task app {self._task_url} answered with {name} {getattr(played, name)!r}, asked was {value!r}; "
                    "trainer and app must be of one version"
                )
