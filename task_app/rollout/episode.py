"""One episode, the only loop: show the state, take an answer, run its actions, record what came of it.

A state machine, so that the same code serves one episode in a thread and hundreds in lockstep:
`request()` gives what a policy needs, `apply(completion)` plays the answer, until `over`.
It calls no policy and writes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from task_app.core.errors import EnvError
from task_app.core.rewards import decision_rewards
from task_app.core.task import Environment, TaskSpec, TurnContext
from task_app.core.types import (
    Completion,
    Decision,
    DecisionRequest,
    Episode,
    Message,
    ParseFailure,
    PastDecision,
    Status,
    StepRecord,
    StepRewardFlags,
)

__all__ = ["EpisodePlan", "EpisodeRun", "Limits", "prompt_messages", "run_actions", "system_message"]

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Which episode to make: world seed, place in its group, and the key of its sampling noise.

    `details` are facts of the caller's, stored with the episode as they are.
    """

    run_id: str
    group_id: str
    member: int
    seed: int
    noise_key: str
    update: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends an episode besides the world. Times in seconds; 0 is no limit.

    max_env_steps  the decision that would go beyond is cut where the budget ends
    """

    max_decisions: int
    max_parse_failures: int = 0
    infra_tries: int = 3
    max_time_s: float | None = None
    max_env_steps: int = 0


def system_message(spec: TaskSpec) -> Message:
    """The first message of every prompt of the task."""
    return {"role": "system", "content": spec.app.system_prompt(spec.options)}


def prompt_messages(
    spec: TaskSpec, system: Message, observation: Any, history: Sequence[PastDecision], context: TurnContext
) -> tuple[Message, ...]:
    """The prompt of one decision; a single text part is said as plain text, several stay parts."""
    parts = spec.app.observe(observation, history, context, spec.options)
    text_only = len(parts) == 1 and parts[0].get("type") == "text"
    return system, {"role": "user", "content": parts[0]["text"] if text_only else parts}


def run_actions(env: Environment, actions: Sequence[str], first: int) -> Iterator[tuple[StepRecord, Any]]:
    """Run the actions up to the one that ends the world: each step's record and the observation after it.

    `first` is the index of the first step in its episode. Raises whatever the environment does.
    """
    for index, action in enumerate(actions, start=first):
        result = env.step(action)
        yield (
            StepRecord(index, action, result.reward, result.terminated, result.truncated, result.events),
            result.observation,
        )
        if result.terminated or result.truncated:
            return


@dataclass(slots=True)
class _Timing:
    """Seconds spent where; kept in the episode's details."""

    reset_s: float = 0.0
    text_s: float = 0.0
    env_s: float = 0.0


@dataclass
class EpisodeRun:
    """One running episode; it has already failed when its world cannot be made."""

    plan: EpisodePlan
    spec: TaskSpec
    limits: Limits
    flags: StepRewardFlags
    policy: str
    policy_version: str
    episode_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        app, options = self.spec.app, self.spec.options
        self._timing = _Timing()
        self._started_at = time.time()
        limit_s = self.limits.max_time_s
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._tools = app.tools(options)
        self._system = system_message(self.spec)
        self._decisions: list[Decision] = []
        self._history: list[PastDecision] = []
        self._counts: Counter[str] = Counter()
        self._noted: dict[str, Any] = {}
        self._failures_in_a_row = 0
        self._status: Status | None = None
        self._cause = ""
        self._terminated = False
        self._observation: Any = None
        self._messages: tuple[Message, ...] = ()
        try:
            self._env, self._observation = self._retried(self._fresh_world)
            self._messages = self._render()
        except EnvError as error:
            self.fail(str(error))

    # -- the loop ----------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the episode has ended, however it did."""
        return self._status is not None

    @property
    def turn(self) -> int:
        """The 1-based number of the decision to be made."""
        return len(self._decisions) + 1

    @property
    def decisions(self) -> Sequence[Decision]:
        """The decisions made so far, as they are stored in the end."""
        return self._decisions

    @property
    def history(self) -> Sequence[PastDecision]:
        """The decisions made so far, with the structured observations around them."""
        return self._history

    def request(self) -> DecisionRequest:
        """What the policy gets for the decision to be made."""
        return DecisionRequest(
            episode_id=self.episode_id,
            turn=self.turn,
            max_decisions=self.limits.max_decisions,
            seed=self.plan.seed,
            member=self.plan.member,
            noise_key=f"{self.plan.noise_key}/{self.turn}",
            messages=self._messages,
            tools=self._tools,
            observation=self._observation,
            environment=self._env,
            time_left_s=None if self._deadline is None else max(0.0, self._deadline - time.monotonic()),
            note=self._noted.__setitem__,
        )

    def apply(self, completion: Completion) -> None:
        """Play the policy's answer: parse it, run its actions, record the decision."""
        started_at, before = time.time(), self._observation
        parsed = self.spec.app.parse(completion.message, self.spec.options)
        failure = parsed if isinstance(parsed, ParseFailure) else None
        try:
            steps, env_s = self._run(() if failure else parsed)  # type: ignore[arg-type]
        except EnvError as error:
            self.fail(str(error))
            return
        counts = self._counts + Counter(name for step in steps for name in step.events)
        recorded = self.flags.mode == "decision_stepwise"
        decision = Decision(
            turn=self.turn,
            messages=self._messages,
            completion=completion,
            failure=failure,
            steps=steps,
            rewards=decision_rewards(self.turn, self._counts, counts) if recorded else None,
            started_at=started_at,
            env_s=env_s,
        )
        self._counts = counts
        self._decisions.append(decision)
        actions = tuple(step.action for step in steps)
        past = PastDecision(decision.turn, actions, decision.events, before, self._observation, failure)
        self._history.append(past)
        self._failures_in_a_row = self._failures_in_a_row + 1 if failure else 0
        self._end_if_due(steps)
        if not self.over:
            self._messages = self._render()

    def fail(self, cause: str) -> None:
        """End as an infrastructure error: stored with its cause, without any reward."""
        self._status, self._cause = "infra_error", cause

    def truncate(self, cause: str) -> None:
        """End because a limit of the policy's was reached; what was earned so far counts."""
        self._status, self._cause = "truncated", cause

    def abort(self, cause: str) -> None:
        """End because a person or a limit of the server stopped it; no reward either."""
        self._status, self._cause = "aborted", cause

    def abort_if_late(self) -> None:
        """Abort when the episode's time is up; checked before each decision."""
        if not self.over and self._deadline is not None and time.monotonic() >= self._deadline:
            self.abort(f"took longer than {self.limits.max_time_s:g} s")

    def episode(self) -> Episode:
        """The record of the episode. Raises ValueError while it still runs."""
        if self._status is None:
            raise ValueError(f"episode {self.episode_id} is still running")
        rewarded = self._status in ("ok", "truncated")
        return Episode(
            episode_id=self.episode_id,
            run_id=self.plan.run_id,
            group_id=self.plan.group_id,
            member=self.plan.member,
            task=self.spec.ref(self.plan.seed),
            policy=self.policy,
            policy_version=self.policy_version,
            prompt_hash=self.spec.prompt_hash,
            flags=self.flags,
            max_decisions=self.limits.max_decisions,
            status=self._status,
            cause=self._cause,
            terminated=self._terminated,
            truncated=self._status == "truncated",
            outcome=self.spec.app.outcome(self._observation) if rewarded else None,
            decisions=tuple(self._decisions),
            tools=self._tools,
            update=self.plan.update,
            started_at=self._started_at,
            finished_at=time.time(),
            details={
                "reset_s": self._timing.reset_s,
                "text_s": self._timing.text_s,
                "env_s": self._timing.env_s,
                "noise_key": self.plan.noise_key,
                **({"max_env_steps": self.limits.max_env_steps} if self.limits.max_env_steps else {}),
                **self._noted,
                **self.plan.details,
            },
        )

    # -- inside ------------------------------------------------------------------------------

    def _fresh_world(self) -> tuple[Environment, Any]:
        start = time.perf_counter()
        env = self.spec.app.make_env(self.spec.options)
        observation = env.reset(self.plan.seed)
        self._timing.reset_s += time.perf_counter() - start
        return env, observation

    def _run(self, actions: tuple[str, ...]) -> tuple[tuple[StepRecord, ...], float]:
        """Run the actions; after a crash rebuild the world by replaying what ran so far, and try again.

        Replaying from seed and actions is exact, so an episode resumes at its last decision instead
        of starting over (which would favour short episodes).
        """
        start = time.perf_counter()
        rebuild = False

        def attempt() -> list[StepRecord]:
            nonlocal rebuild
            if rebuild:
                self._env, self._observation = self._rebuilt_world()
            rebuild = True
            return self._step_through(actions)

        steps = self._retried(attempt)
        env_s = time.perf_counter() - start
        self._timing.env_s += env_s
        return tuple(steps), env_s

    def _retried(self, attempt: Callable[[], ResultT]) -> ResultT:
        """`attempt`, tried `infra_tries` times. Raises EnvError with the last cause."""
        for left in reversed(range(self.limits.infra_tries)):
            try:
                return attempt()
            except Exception as error:  # any crash of an environment is an infrastructure fault
                if not left:
                    tries = self.limits.infra_tries
                    raise EnvError(f"environment failed {tries} times: {type(error).__name__}: {error}") from error
        raise EnvError("infra_tries must be at least 1")

    def _step_through(self, actions: tuple[str, ...]) -> list[StepRecord]:
        first = sum(len(decision.steps) for decision in self._decisions)
        if self.limits.max_env_steps:
            actions = actions[: self.limits.max_env_steps - first]
        steps: list[StepRecord] = []
        for record, observation in run_actions(self._env, actions, first):
            self._observation = observation
            steps.append(record)
        return steps

    def _rebuilt_world(self) -> tuple[Environment, Any]:
        env, observation = self._fresh_world()
        for decision in self._decisions:
            for step in decision.steps:
                observation = env.step(step.action).observation
        return env, observation

    def _end_if_due(self, steps: tuple[StepRecord, ...]) -> None:
        if self.over:
            return  # aborted from another thread while the actions ran: that stands
        last = steps[-1] if steps else None
        limit = self.limits.max_parse_failures
        if last and last.terminated:
            self._terminated, self._status, self._cause = True, "ok", "terminated"
        elif last and last.truncated:
            self._status, self._cause = "truncated", "max_steps"
        elif last and last.step + 1 == self.limits.max_env_steps:
            self._status, self._cause = "truncated", "max_env_steps"
        elif limit and self._failures_in_a_row >= limit:
            self._status, self._cause = "truncated", "max_parse_failures"
        elif len(self._decisions) >= self.limits.max_decisions:
            self._status, self._cause = "truncated", "max_decisions"

    def _render(self) -> tuple[Message, ...]:
        start = time.perf_counter()
        context = TurnContext(self.turn, self.limits.max_decisions, self._counts)
        messages = prompt_messages(self.spec, self._system, self._observation, self._history, context)
        self._timing.text_s += time.perf_counter() - start
        return messages
