"""A toy task app small enough to work out by hand, and a policy that says what a test tells it to.

The toy is a corridor. `right` moves on (reward 1, event `reach_N`), `left` back (reward -0.5), `die` ends
the world, and the world truncates itself after `length` steps. An answer is the words of its actions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from task_app.core.task import Snapshot, TaskApp, TaskOptions
from task_app.core.types import AssistantMessage, Completion, DecisionRequest, ParseFailure, StepResult


class ToyOptions(TaskOptions):
    length: int = 100
    parts: int = 1


@dataclass(frozen=True)
class ToyView:
    place: int
    reached: tuple[int, ...]
    draw: float


class ToyEnv:
    def __init__(self, app: ToyApp, length: int) -> None:
        self._app, self._length = app, length

    def reset(self, seed: int) -> ToyView:
        self._app.call("reset")
        self._random = random.Random(seed)
        self._steps, self._place, self._reached = 0, 0, ()
        return self._view()

    def step(self, action: str) -> StepResult:
        self._app.call("step")
        self._steps += 1
        self._place += {"right": 1, "left": -1}.get(action, 0)
        moved_on = action == "right"
        if moved_on:
            self._reached = (*self._reached, self._place)
        return StepResult(
            self._view(),
            {"right": 1.0, "left": -0.5}.get(action, 0.0),
            terminated=action == "die",
            truncated=self._steps >= self._length and action != "die",
            events=(f"reach_{self._place}",) if moved_on else (),
        )

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def restore(self, snapshot: Snapshot) -> ToyView:
        raise NotImplementedError

    def _view(self) -> ToyView:
        return ToyView(self._place, self._reached, self._random.random())


class ToyApp(TaskApp[ToyOptions]):
    """`faults` names the calls that fail, counted over all worlds: {"step": {3}} fails the third step once."""

    name, version, title, description = "toy", "1", "Toy", "A corridor."
    event_names = tuple(f"reach_{place}" for place in range(-9, 10))
    action_names = ("left", "right", "stay", "die")
    options_model = ToyOptions
    renderer_version = "toy/1"

    def __init__(self) -> None:
        self.faults: dict[str, Any] = {}
        self.calls: dict[str, int] = {"reset": 0, "step": 0}

    def call(self, what: str) -> None:
        self.calls[what] += 1
        if self.calls[what] in self.faults.get(what, ()):
            raise RuntimeError(f"{what} broke")

    def make_env(self, options: ToyOptions) -> ToyEnv:
        return ToyEnv(self, options.length)

    def tools(self, options: ToyOptions) -> tuple[dict[str, Any], ...]:
        return ()

    def system_prompt(self, options: ToyOptions) -> str:
        return "Walk."

    def observe(self, observation, history, context, options) -> list[dict[str, Any]]:
        past = [f"{past.turn}:{past.failure.reason if past.failure else ','.join(past.actions)}" for past in history]
        text = f"turn {context.turn} of {context.max_decisions} at {observation.place} after {past}"
        return [{"type": "text", "text": text}] * options.parts

    def parse(self, message: AssistantMessage, options: ToyOptions) -> tuple[str, ...] | ParseFailure:
        words = tuple((message.content or "").split())
        unknown = [word for word in words if word not in self.action_names]
        return ParseFailure("unknown_word", unknown[0]) if unknown else words

    def say(self, actions: Sequence[str]) -> AssistantMessage:
        return AssistantMessage(" ".join(actions))

    def outcome(self, observation: ToyView) -> float:
        return float(len(set(observation.reached)))

    def status_fields(self, observation: ToyView) -> dict[str, Any]:
        return {"place": observation.place}

    def baselines(self, options: ToyOptions) -> Mapping[str, Any]:
        return {}


@dataclass
class Speaker:
    """Says `lines[turn - 1]`, the last one for ever after; a mapping gives other lines by (seed, turn).

    `faults` maps (seed, turn) to the exceptions that its next tries raise; `during` runs in every try.
    """

    lines: Sequence[str]
    instead: Mapping[tuple[int, int], str] = field(default_factory=dict)
    faults: Mapping[tuple[int, int], list[BaseException]] = field(default_factory=dict)
    during: Callable[[DecisionRequest], None] = lambda request: None
    batched: bool = False
    name: str = "speaker"
    version: str = "1"
    requests: list[DecisionRequest] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    @property
    def asked(self) -> list[tuple[int, int]]:
        return [(request.seed, request.turn) for request in self.requests]

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def end_episode(self, episode_id: str) -> None:
        self.ended.append(episode_id)

    def _answer(self, request: DecisionRequest) -> Completion:
        self.requests.append(request)
        self.during(request)
        place = (request.seed, request.turn)
        if self.faults.get(place):
            raise self.faults[place].pop(0)
        line = self.instead.get(place, self.lines[min(request.turn, len(self.lines)) - 1])
        return Completion(AssistantMessage(line), f"c-{request.noise_key}")
