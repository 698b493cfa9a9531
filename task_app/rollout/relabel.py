"""What a scripted teacher would do in the states a policy reached: rows to imitate, the played episode untouched.

A policy that imitates recorded play meets states the teacher never visits; asking the teacher there is the cure
(DAgger, Ross, Gordon and Bagnell 2011). The teacher sees every observation of an episode in order, so it remembers,
and a planning one gets the world. Executed actions stay the policy's. Writes no file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from task_app.core.errors import ConfigError, EnvError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import AssistantMessage, Completion, DecisionRequest, Episode, ParseFailure
from task_app.policies import ScriptedPolicy
from task_app.rollout.episode import EpisodePlan, EpisodeRun, Limits

__all__ = ["Relabelling", "make_teacher", "relabel_episode"]

SCHEMA = 1
"""Version of the row form, as in the SFT export."""


def make_teacher(spec: TaskSpec, name: str, *, field: str = "relabel") -> ScriptedPolicy:
    """The task app's scripted player `name`. Raises ConfigError for `field`, naming those there are."""
    baselines = spec.app.baselines(spec.options)
    if name not in baselines:
        known = ", ".join(sorted(baselines)) or "none"
        raise ConfigError(
            f"{name!r} cannot teach {spec.app.name}: a teacher is one of its scripted players ({known})",
            field=field,
        )
    return ScriptedPolicy(spec.app, name, baselines[name])


class Relabelling:
    """A policy with a teacher that listens: what it answers is the policy's own answer.

    asked, agreed  decisions whose rows were taken, and those in which policy and teacher chose the same actions
    """

    def __init__(self, policy: Policy, spec: TaskSpec, teacher: ScriptedPolicy) -> None:
        self.name, self.version, self.batched = policy.name, policy.version, policy.batched
        self._policy, self._spec, self._teacher = policy, spec, teacher
        self._answers: dict[str, dict[int, AssistantMessage]] = {}
        self.asked = self.agreed = 0

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """The policy's completions; the teacher is asked only once they are there, so a retry asks it once."""
        completions = self._policy.decide(requests)
        for request in requests:
            self._listen(request)
        return completions

    def end_episode(self, episode_id: str) -> None:
        """Forget what the policy and the teacher kept; the teacher's answers stay until `take`."""
        self._policy.end_episode(episode_id)
        self._teacher.end_episode(episode_id)

    def take(self, episode: Episode) -> list[dict[str, Any]]:
        """The rows of a finished episode, one per decision, in order; its answers are then forgotten."""
        answers = self._answers.pop(episode.episode_id, {})
        rows = _rows(episode, answers, self._spec, self._teacher.name)
        self.asked += len(rows)
        self.agreed += sum(row["metadata"]["agreed"] for row in rows)
        return rows

    def _listen(self, request: DecisionRequest) -> None:
        (answer,) = self._teacher.decide([request])
        self._answers.setdefault(request.episode_id, {})[request.turn] = answer.message


def relabel_episode(episode: Episode, spec: TaskSpec, teacher: ScriptedPolicy) -> list[dict[str, Any]]:
    """The rows of a stored episode, whose world is made again from its seed and executed actions.

    Equal to what relabelling it while it was played would have given. Raises EnvError naming the turn at which the
    replayed episode is not the stored one.
    """
    run = EpisodeRun(
        plan=EpisodePlan(
            run_id=episode.run_id,
            group_id=episode.group_id,
            member=episode.member,
            seed=episode.task.seed,
            noise_key=str(episode.details.get("noise_key", episode.episode_id)),
        ),
        spec=spec,
        limits=Limits(episode.max_decisions, max_env_steps=int(episode.details.get("max_env_steps", 0))),
        flags=episode.flags,
        policy=episode.policy,
        policy_version=episode.policy_version,
        episode_id=episode.episode_id,
    )
    answers: dict[int, AssistantMessage] = {}
    try:
        for decision in episode.decisions:
            if run.over:
                raise EnvError(f"{_place(episode, decision.turn)} was never reached: {run.episode().cause}")
            request = run.request()
            if request.messages != decision.messages:
                raise EnvError(f"{_place(episode, decision.turn)} shows another prompt than is stored")
            (answer,) = teacher.decide([request])
            answers[decision.turn] = answer.message
            run.apply(decision.completion)
            replayed = run.history[-1] if len(run.history) == decision.turn else None
            if replayed is None or replayed.actions != tuple(step.action for step in decision.steps):
                raise EnvError(f"{_place(episode, decision.turn)} runs other actions than are stored")
    finally:
        teacher.end_episode(episode.episode_id)
    return _rows(episode, answers, spec, teacher.name)


def _place(episode: Episode, turn: int) -> str:
    return f"episode {episode.episode_id} cannot be played again: turn {turn}"


def _rows(episode: Episode, answers: dict[int, AssistantMessage], spec: TaskSpec, teacher: str) -> list[dict[str, Any]]:
    """The export's row form: prompt as the policy saw it, the teacher's canonical answer, where it is from."""
    tools = json.loads(json.dumps(list(episode.tools)))
    shared = {
        "schema": SCHEMA,
        "app": episode.task.app,
        "app_version": episode.task.version,
        "seed": episode.task.seed,
        "run_id": episode.run_id,
        "episode_id": episode.episode_id,
        "policy": episode.policy,
        "policy_version": episode.policy_version,
        "prompt_hash": episode.prompt_hash,
        "relabelled_by": teacher,
    }
    rows = []
    for decision in episode.decisions:
        answer, said = answers[decision.turn], decision.completion
        actions = spec.app.parse(answer, spec.options)
        if isinstance(actions, ParseFailure):
            raise EnvError(f"{teacher}'s answer at {decision.turn} of {episode.episode_id} is not legal: {actions}")
        rows.append(
            {
                "messages": [*decision.messages, answer.to_wire()],
                "tools": tools,
                "metadata": {
                    **shared,
                    "turn": decision.turn,
                    "model": said.model,
                    "agreed": spec.app.parse(said.message, spec.options) == actions,
                },
            }
        )
    return rows
