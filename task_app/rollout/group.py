"""Many episodes: plans of groups, and playing them.

A policy that batches (a model with a KV cache) gets the requests of all running episodes at once, in
lockstep; any other gets one at a time from a bounded pool of threads. Either way each episode is the
same as if it were played alone: noise is keyed per decision, worlds own their randomness.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from task_app.core.errors import ContextOverflow, PolicyError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Completion, DecisionRequest, Episode, StepRewardFlags
from task_app.rollout.episode import EpisodePlan, EpisodeRun, Limits

__all__ = ["Stop", "plan_groups", "play", "play_to_end"]

Sink = Callable[[Episode], None]


class Stop:
    """Asks running episodes to end at their next decision; the first `cause` given is the one they end with."""

    INTERRUPTED = "interrupted"
    """The cause where whoever plays ends."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.cause = self.INTERRUPTED

    def set(self, cause: str = INTERRUPTED) -> None:
        """Ask for the end. From any thread."""
        if not self._event.is_set():
            self.cause = cause
            self._event.set()

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()


def plan_groups(
    seeds: Iterable[int], group_size: int, *, run_id: str, noise_seed: int = 0, update: int | None = None
) -> list[EpisodePlan]:
    """One plan per member of each seed's group, in order. Group ids sort like their seeds."""
    prefix = "" if update is None else f"u{update:06d}-"
    return [
        EpisodePlan(
            run_id=run_id,
            group_id=f"{prefix}s{seed:010d}",
            member=member,
            seed=seed,
            noise_key=f"{noise_seed}/{'-' if update is None else update}/{seed}/{member}",
            update=update,
        )
        for seed in seeds
        for member in range(group_size)
    ]


@dataclass(frozen=True)
class _Setting:
    """What all episodes of one call share."""

    spec: TaskSpec
    policy: Policy
    limits: Limits
    flags: StepRewardFlags
    stop: Stop

    def start(self, plan: EpisodePlan) -> EpisodeRun:
        return EpisodeRun(plan, self.spec, self.limits, self.flags, self.policy.name, self.policy.version)


def play(
    plans: Sequence[EpisodePlan],
    spec: TaskSpec,
    policy: Policy,
    limits: Limits,
    flags: StepRewardFlags,
    sink: Sink,
    *,
    concurrency: int = 8,
) -> list[Episode]:
    """Play every plan and give each finished episode to `sink` (from one thread at a time).

    Returns the episodes in the order of the plans. Infrastructure faults end an episode, not the
    call; an error of `sink` (a full disk) or an interrupt stops all, after which running episodes
    are recorded as aborted where possible.
    """
    setting = _Setting(spec, policy, limits, flags, Stop())
    guard = threading.Lock()

    def store(run: EpisodeRun) -> Episode:
        policy.end_episode(run.episode_id)
        episode = run.episode()
        with guard:
            sink(episode)
        return episode

    if policy.batched:
        return _play_in_lockstep(plans, setting, store)
    return _play_in_threads(plans, setting, store, concurrency)


def play_to_end(run: EpisodeRun, policy: Policy, stop: Stop) -> None:
    """Play one episode in this thread until it is over; `stop` aborts it at its next decision."""
    while not run.over:
        run.abort_if_late()
        if stop.is_set():
            run.abort(stop.cause)
        if not run.over:
            _decide([run], policy)


def _play_in_threads(
    plans: Sequence[EpisodePlan], setting: _Setting, store: Callable[[EpisodeRun], Episode], concurrency: int
) -> list[Episode]:
    def work(plan: EpisodePlan) -> Episode | None:
        if setting.stop.is_set():
            return None
        run = setting.start(plan)
        play_to_end(run, setting.policy, setting.stop)
        return store(run)

    with ThreadPoolExecutor(max_workers=min(concurrency, max(1, len(plans)))) as pool:
        futures = [pool.submit(work, plan) for plan in plans]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            setting.stop.set()  # after an error or an interrupt the others end at their next decision
    return [episode for future in futures if (episode := future.result()) is not None]


def _play_in_lockstep(
    plans: Sequence[EpisodePlan], setting: _Setting, store: Callable[[EpisodeRun], Episode]
) -> list[Episode]:
    running = {index: setting.start(plan) for index, plan in enumerate(plans)}
    episodes: dict[int, Episode] = {}
    try:
        while running:
            for run in running.values():
                run.abort_if_late()
            _decide([run for run in running.values() if not run.over], setting.policy)
            for index in [index for index, run in running.items() if run.over]:
                episodes[index] = store(running.pop(index))
    except BaseException:
        for run in running.values():
            if not run.over:
                run.abort("interrupted")
            with suppress(Exception):  # the first error is the one to tell
                store(run)
        raise
    return [episodes[index] for index in range(len(plans))]


def _decide(runs: Sequence[EpisodeRun], policy: Policy) -> None:
    """One decision of each run; a policy that keeps failing ends them as infrastructure errors."""
    if not runs:
        return
    try:
        completions = _ask(policy, [run.request() for run in runs], runs[0].limits.infra_tries)
    except ContextOverflow as overflow:
        for run in runs:
            if run.episode_id in overflow.episode_ids:
                run.truncate("context")
        _decide([run for run in runs if not run.over], policy)
        return
    except PolicyError as error:
        for run in runs:
            run.abort_if_late()  # a call cut short by the episode's own limit is no fault of the endpoint
            if not run.over:
                run.fail(str(error))
        return
    for run, completion in zip(runs, completions, strict=True):
        run.apply(completion)


def _ask(policy: Policy, requests: Sequence[DecisionRequest], tries: int) -> list[Completion]:
    """The policy's answers; the decision is asked again, from memory, after a retryable fault."""
    attempt = 1
    while True:
        try:
            return policy.decide(requests)
        except PolicyError as error:
            if not error.retryable or attempt >= tries:
                raise
            attempt += 1
