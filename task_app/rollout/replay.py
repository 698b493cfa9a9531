"""A stored episode played again from its seed and executed actions: its world at any step, or all of it.

Frames and states are never stored; this module makes them again. It asks no policy, judges nothing
(`rollout/verify.py` does) and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from task_app.core.errors import EnvError
from task_app.core.task import Environment, TaskSpec, TurnContext
from task_app.core.types import Decision, Episode, Message, PastDecision, StepRecord
from task_app.rollout.episode import prompt_messages, run_actions, system_message

__all__ = ["ReplayedDecision", "replay", "world_after"]


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """What one decision is when it is played again.

    messages     the prompt as the policy would be shown it now; () when texts were not asked for
    steps        the steps its stored actions make; fewer than stored when the world ended or refused one
    observation  the app's structured observation after them
    fault        why the world ran no further, "" unless it raised
    """

    turn: int
    messages: tuple[Message, ...]
    steps: tuple[StepRecord, ...]
    observation: Any
    fault: str = ""

    @property
    def ended(self) -> bool:
        """Whether the world is over after this decision."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)


def world_after(spec: TaskSpec, episode: Episode, steps: int) -> Environment:
    """The world after the first `steps` executed actions of the episode; 0 is the world after reset.

    Raises ValueError for `steps` outside 0..number of stored steps, and EnvError naming the step where
    the replay departs: the world is over too soon, or refuses the action.
    """
    stored = episode.steps
    if not 0 <= steps <= len(stored):
        raise ValueError(f"steps must be 0 to {len(stored)} for episode {episode.episode_id}, got {steps}")
    env, _ = _fresh_world(spec, episode)
    for position, record in enumerate(stored[:steps]):
        try:
            result = env.step(record.action)
        except Exception as error:  # any crash of an environment is its failure to replay
            raise EnvError(f"step {record.step} ({record.action}) cannot be replayed: {error}") from error
        if (result.terminated or result.truncated) and position + 1 < steps:
            raise EnvError(
                f"step {stored[position + 1].step} cannot be replayed: the world was over after step {record.step}"
            )
    return env


def replay(spec: TaskSpec, episode: Episode, *, texts: bool = True) -> Iterator[ReplayedDecision]:
    """Play the stored actions again, a decision at a time, and render the prompts exactly as when it was made.

    Ends early, after the decision in question, when the world ends or raises before the stored actions
    do. Without `texts` no prompt is rendered. Raises EnvError when the world cannot be made at all.
    """
    system = system_message(spec) if texts else {}
    env, observation = _fresh_world(spec, episode)
    history: list[PastDecision] = []
    counts: Counter[str] = Counter()
    first = 0
    for decision in episode.decisions:
        context = TurnContext(decision.turn, episode.max_decisions, counts)
        messages = prompt_messages(spec, system, observation, history, context) if texts else ()
        before = observation
        steps, observation, fault = _play(env, decision, first, observation)
        replayed = ReplayedDecision(decision.turn, messages, steps, observation, fault)
        yield replayed
        if fault or replayed.ended or len(steps) < len(decision.steps):
            return
        events = tuple(name for step in steps for name in step.events)
        actions = tuple(step.action for step in steps)
        history.append(PastDecision(decision.turn, actions, events, before, observation, decision.failure))
        counts.update(events)
        first += len(steps)


def _play(
    env: Environment, decision: Decision, first: int, observation: Any
) -> tuple[tuple[StepRecord, ...], Any, str]:
    steps: list[StepRecord] = []
    try:
        for record, seen in run_actions(env, [step.action for step in decision.steps], first):
            observation = seen
            steps.append(record)
    except Exception as error:  # what a world raises is a finding, not the end of the check
        return tuple(steps), observation, f"{type(error).__name__}: {error}"
    return tuple(steps), observation, ""


def _fresh_world(spec: TaskSpec, episode: Episode) -> tuple[Environment, Any]:
    try:
        env = spec.app.make_env(spec.options)
        return env, env.reset(episode.task.seed)
    except Exception as error:
        raise EnvError(f"the world of seed {episode.task.seed} cannot be made: {error}") from error
