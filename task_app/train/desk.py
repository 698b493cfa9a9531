"""Where decisions asked for from elsewhere are gathered, sampled together and kept until their episodes come back.

Decisions of all rollouts that are being played are sampled in one batch, in the order of the plans, just as in one
process. One that others do not catch up with in time is sampled with those that are there; what it says does not depend
on it, its log-probabilities only by rounding. Knows no HTTP.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from task_app.core.errors import ContextOverflow, PolicyError, TrainError
from task_app.core.policy import Policy
from task_app.core.types import Completion, Decision, DecisionRequest, Episode, Message
from task_app.rollout import EpisodePlan

__all__ = ["Desk", "NotAsked"]


class NotAsked(Exception):
    """Nobody is playing what is asked for: another policy version, or a rollout that is over or never was."""


@dataclass(slots=True)
class _Asked:
    """A decision that is waiting, since a time of `time.monotonic`."""

    place: tuple[int, int]
    request: DecisionRequest
    since: float
    answer: Future[Completion] = field(default_factory=Future)


class Desk:
    """One call's decisions: `policy` answers for the rollouts of `plans`, `at_once` of which are played at a time.

    Use as a context manager: it ends the thread that samples, and what then still waits is answered with NotAsked.
    """

    def __init__(self, policy: Policy, plans: Sequence[EpisodePlan], at_once: int, wait_s: float) -> None:
        self.model = f"{policy.name}-{policy.version}"
        self._policy, self._at_once, self._wait_s = policy, at_once, wait_s
        self._plans = {plan.noise_key: (index, plan) for index, plan in enumerate(plans)}
        self._left = len(plans)
        self._waiting: dict[tuple[str, str], _Asked] = {}
        self._answered: dict[tuple[str, str], Completion] = {}
        self._prompts: dict[str, tuple[tuple[str, str], tuple[Message, ...]]] = {}
        self._changed = threading.Condition()
        self._closed, self.asked = False, 0
        self.broken: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="policy-desk", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Sample nothing more; what waits is answered with NotAsked."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._give_up(NotAsked("the rollouts are over"))

    @property
    def over(self) -> bool:
        """Whether nothing is sampled any more."""
        return self._closed or self.broken is not None

    @property
    def orphans(self) -> int:
        """Completions that no episode holds: of rollouts that broke, and of decisions asked twice."""
        return len(self._prompts)

    # -- asking ----------------------------------------------------------------------------------

    def ask(
        self, model: str, episode_id: str, noise_key: str, messages: tuple[Message, ...], tools: tuple[Any, ...]
    ) -> Future[Completion]:
        """The completion to come of one decision; the same one when it is asked again. Raises NotAsked."""
        rollout, _, turn = noise_key.rpartition("/")
        if model != self.model:
            raise NotAsked(f"the policy being played is {self.model}")
        if rollout not in self._plans or not turn.isdecimal():
            raise NotAsked("no rollout with this noise key is being played")
        index, plan = self._plans[rollout]
        request = DecisionRequest(
            episode_id=episode_id,
            turn=int(turn),
            max_decisions=0,
            seed=plan.seed,
            member=plan.member,
            noise_key=noise_key,
            messages=messages,
            tools=tools,
            observation=None,
        )
        identity = (episode_id, noise_key)
        with self._changed:
            self.asked += 1
            if self.over:
                raise NotAsked("the rollouts are over")
            if (known := self._answered.get(identity)) is not None:
                again: Future[Completion] = Future()
                again.set_result(known)
                return again
            asked = self._waiting.setdefault(identity, _Asked((index, int(turn)), request, time.monotonic()))
            self._changed.notify_all()
            return asked.answer

    # -- episodes --------------------------------------------------------------------------------

    def joined(self, episode: Episode) -> Episode:
        """The episode with the completions as they were sampled, by the ids it holds.

        Raises PolicyError for a decision that was not made here, or was made of another prompt or otherwise than it was
        played.
        """
        return replace(episode, decisions=tuple(self._join(decision) for decision in episode.decisions))

    def ended(self, episode_id: str) -> None:
        """A rollout is over for good: the others no longer wait for it."""
        self._policy.end_episode(episode_id)
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def _join(self, decision: Decision) -> Decision:
        told = decision.completion
        with self._changed:
            identity, prompt = self._prompts.pop(told.completion_id, (("", ""), ()))
            completion = self._answered.pop(identity, None)
        if completion is None:
            raise PolicyError(
                f"decision {decision.turn} holds completion {told.completion_id!r}, which was not made here"
            )
        if prompt != decision.messages or completion.message != told.message:
            what = "prompt" if prompt != decision.messages else "answer"
            raise PolicyError(f"decision {decision.turn} was stored with another {what} than was sampled")
        return replace(decision, completion=completion)

    # -- sampling --------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._answer(batch)
            except BaseException as error:  # told to the thread that plays, which raises it
                with self._changed:
                    self.broken = error
                    self._waiting.update(
                        {(asked.request.episode_id, asked.request.noise_key): asked for asked in batch}
                    )
                self._give_up(NotAsked("the rollouts are over"))
                return

    def _next(self) -> list[_Asked]:
        """What to sample next: everybody's decisions, or those that have waited long enough; nothing at the end."""
        with self._changed:
            while not self._closed:
                everybody = min(self._at_once, self._left)
                left_s = self._wait_s
                if self._waiting:
                    oldest = next(iter(self._waiting.values())).since
                    left_s = oldest + self._wait_s - time.monotonic()
                    if len(self._waiting) >= everybody or left_s <= 0 or not self._policy.batched:
                        batch = sorted(self._waiting.values(), key=lambda asked: asked.place)
                        self._waiting.clear()
                        return batch
                self._changed.wait(left_s if self._waiting else None)
            return []

    def _answer(self, batch: list[_Asked]) -> None:
        while batch:
            try:
                completions = self._policy.decide([asked.request for asked in batch])
            except ContextOverflow as overflow:
                for asked in batch:
                    if asked.request.episode_id in overflow.episode_ids:
                        _fail(asked, overflow)
                batch = [asked for asked in batch if asked.request.episode_id not in overflow.episode_ids]
            except PolicyError as error:
                if len(batch) == 1:
                    _fail(batch[0], error)
                else:  # one that cannot be sampled must not cost the others their rollouts
                    for asked in batch:
                        self._answer([asked])
                return
            else:
                self._keep(batch, completions)
                return

    def _keep(self, batch: list[_Asked], completions: Sequence[Completion]) -> None:
        for asked, completion in zip(batch, completions, strict=True):
            identity = (asked.request.episode_id, asked.request.noise_key)
            with self._changed:
                self._answered[identity] = completion
                self._prompts[completion.completion_id] = (identity, asked.request.messages)
            with suppress(Exception):  # whoever asked may have gone
                asked.answer.set_result(completion)

    def _give_up(self, error: Exception) -> None:
        with self._changed:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for asked in waiting:
            _fail(asked, error)

    def check(self) -> None:
        """Raise what ended the sampling, if something did."""
        if self.broken is not None:
            raise self.broken if isinstance(self.broken, Exception) else TrainError("the run ends") from self.broken


def _fail(asked: _Asked, error: Exception) -> None:
    with suppress(Exception):
        asked.answer.set_exception(error)
