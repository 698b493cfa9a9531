"""A toy world and a toy network, so that every test of the trainer takes milliseconds.

The toy: walk on a line. Answers hold one or two moves, so they differ in length, and the grammar forces
tokens at the front, in the middle and at the end of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from task_app.config import Config, load_config
from task_app.core.grammar import Grammar
from task_app.core.task import AgentFactory, Snapshot, TaskApp, TaskOptions, TaskSpec, TurnContext
from task_app.core.types import (
    AssistantMessage,
    DecisionRequest,
    Episode,
    ParseFailure,
    PastDecision,
    StepResult,
    StepRewardFlags,
    ToolCall,
)
from task_app.rollout import Limits, plan_groups, play
from task_app.train.embedded import EmbeddedNetwork as Network
from task_app.train.embedded import build_network
from task_app.train.policy import EmbeddedPolicy

MOVES = {"left": -1, "right": 1, "stay": 0}


class LineOptions(TaskOptions):
    """`width` is how far one may walk before falling off; `words` are added to every observation."""

    width: int = 3
    words: str = ""


@dataclass
class LineWorld:
    """Walk from 0; a step right to a place beyond 0 is an event, falling off either end is the end.

    An observation is (place, rightmost place so far).
    """

    width: int
    place: int = 0
    best: int = 0

    def reset(self, seed: int) -> tuple[int, int]:
        self.place, self.best = -(seed % 2), 0
        return self.place, self.best

    def step(self, action: str) -> StepResult:
        self.place += MOVES[action]
        events = (f"reached_{self.place}",) if 0 < self.place <= self.width and action == "right" else ()
        self.best = max(self.best, self.place if events else 0)
        over = abs(self.place) > self.width
        return StepResult((self.place, self.best), float(len(events)), over, False, events)

    def snapshot(self) -> Snapshot:
        return Snapshot("line", f"{self.place} {self.best}".encode())

    def restore(self, snapshot: Snapshot) -> tuple[int, int]:
        self.place, self.best = map(int, snapshot.payload.split())
        return self.place, self.best


@dataclass(frozen=True)
class Walker:
    """A teacher: two steps to the right at a time, and a stop at the last place before the end."""

    width: int

    def act(self, observation: tuple[int, int]) -> tuple[str, ...]:
        left = self.width - observation[0]
        return ("right", "right") if left > 1 else ("right",) if left else ("stay",)


class LineApp(TaskApp[LineOptions]):
    name, version, title, description = "line", "1", "Line", "Walk to the right."
    outcome_is_unique_events = True
    event_names = tuple(f"reached_{place}" for place in range(1, 10))
    action_names = tuple(MOVES)
    options_model = LineOptions
    renderer_version = "line/1"

    def make_env(self, options: LineOptions) -> LineWorld:
        return LineWorld(options.width)

    def tools(self, options: LineOptions) -> tuple[dict[str, Any], ...]:
        return ()

    def system_prompt(self, options: LineOptions) -> str:
        return "Walk to the right."

    def observe(
        self, observation: tuple[int, int], history: Sequence[PastDecision], context: TurnContext, options: LineOptions
    ) -> list[dict[str, Any]]:
        last = " ".join(f"last: {' '.join(past.actions)}" for past in history[-1:])
        return [{"type": "text", "text": f"place {observation[0]}, turn {context.turn}; {options.words}\n{last}"}]

    def parse(self, message: AssistantMessage, options: LineOptions) -> tuple[str, ...] | ParseFailure:
        return tuple(message.tool_calls[0].arguments.split())

    def say(self, actions: Sequence[str]) -> AssistantMessage:
        return AssistantMessage(tool_calls=(ToolCall("walk", " ".join(actions)),), finish_reason="tool_calls")

    def outcome(self, observation: tuple[int, int]) -> float:
        return float(observation[1])

    def status_fields(self, observation: tuple[int, int]) -> dict[str, Any]:
        return {}

    def baselines(self, options: LineOptions) -> Mapping[str, AgentFactory]:
        return {"walker": lambda seed: Walker(options.width)}

    def grammar(self, options: LineOptions) -> Grammar:
        moves = dict.fromkeys(MOVES, "moved")
        edges = {
            "call": {"walk": "first"},
            "first": moves,
            "moved": {"end": "over", "and": "link"},
            "link": {"then": "second"},
            "second": dict.fromkeys(MOVES, "close"),
            "close": {"end": "over"},
        }
        return Grammar("line", "call", "over", edges)

    def vocabulary(self, options: LineOptions) -> tuple[str, ...]:
        digits = [str(number) for number in range(10)]
        return ("walk", "and", "then", "end", *MOVES, "place", "turn", "last", "-", "pad", *digits)

    def words_to_message(self, words: Sequence[str]) -> AssistantMessage:
        return self.say([word for word in words if word in MOVES])

    def message_to_words(self, message: AssistantMessage, options: LineOptions) -> tuple[str, ...] | ParseFailure:
        moves = message.tool_calls[0].arguments.split() if message.tool_calls else []
        if not 1 <= len(moves) <= 2 or not set(moves) <= MOVES.keys():
            return ParseFailure("no_walk", "one or two moves were expected")
        return ("walk", moves[0], *(("and", "then", moves[1]) if moves[1:] else ()), "end")


def make_config(folder: Path, **changes: Any) -> Config:
    """A config of a run of seconds on the toy; `changes` are dotted keys, `__` for the dot."""
    settings: dict[str, Any] = {
        "model.hidden_size": 32,
        "model.heads": 2,
        "model.kv_heads": 1,
        "model.intermediate_size": 48,
        "model.max_positions": 64,
        "rollout.seeds": "0:100",
        "rollout.group_size": 8,
        "rollout.max_decisions": 3,
        "rollout.trace_db": str(folder / "traces.db"),
        "training.updates": 3,
        "training.groups_per_update": 2,
        "training.learning_rate": 0.01,
        "training.checkpoint_every": 3,
        "training.run_dir": str(folder / "run"),
        "eval.seeds": "1000000:1000006",
    }
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(None, settings)


@pytest.fixture(scope="session")
def line() -> TaskSpec:
    """The toy task."""
    return TaskSpec(LineApp(), LineOptions())


@pytest.fixture
def line_of() -> Callable[..., TaskSpec]:
    """Make the toy task of given options."""
    return lambda **options: TaskSpec(LineApp(), LineOptions(**options))


@pytest.fixture(scope="session")
def config_in() -> Callable[..., Config]:
    """Make a toy config in a folder."""
    return make_config


@pytest.fixture
def network(line: TaskSpec, tmp_path: Path) -> Network:
    """A toy network with initial weights large enough that its choices are far from even."""
    network = build_network(line, make_config(tmp_path).model, seed=7)
    for parameter in network.model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return network


@pytest.fixture
def request_for() -> Callable[..., DecisionRequest]:
    """Make a decision request from a text and a noise key."""

    def make(text: str, key: str = "0/1/2/3") -> DecisionRequest:
        messages = ({"role": "system", "content": "rules"}, {"role": "user", "content": text})
        return DecisionRequest(
            episode_id="e",
            turn=1,
            max_decisions=4,
            seed=0,
            member=0,
            noise_key=key,
            messages=messages,
            tools=(),
            observation=0,
        )

    return make


@pytest.fixture
def episodes(line: TaskSpec, network: Network) -> list[Episode]:
    """Two groups of four, played by the toy network."""
    policy = EmbeddedPolicy(network, temperature=0.8)
    plans = plan_groups(range(2), 4, run_id="run")
    return play(plans, line, policy, Limits(4), StepRewardFlags(), lambda episode: None)
