"""What a task app is: one object that says how to play, show, parse and score its world.

Adding a task app means exporting one `TaskApp` from `apps/<name>/`; nothing else is edited.
This module defines the contract only; it plays nothing.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from task_app.core.grammar import Grammar
from task_app.core.types import AssistantMessage, ParseFailure, PastDecision, StepResult, TaskRef

__all__ = [
    "Agent",
    "AgentFactory",
    "Environment",
    "Picture",
    "PlanningAgent",
    "Snapshot",
    "TaskApp",
    "TaskOptions",
    "TaskSpec",
    "TurnContext",
]


class TaskOptions(BaseModel):
    """Base of every app's options: frozen, strict, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An environment's whole state, restorable any number of times. `engine` names who can read it."""

    engine: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """What a person would see of a world at one moment, as a file a browser shows (image/png, image/svg+xml)."""

    media_type: str
    data: bytes


class Environment(Protocol):
    """One world. Randomness is owned by the instance; same seed and actions give the same bytes."""

    def reset(self, seed: int) -> Any:
        """Start the world named by `seed` (0 ≤ seed < 2**31 − 1) and return the first observation."""
        ...

    def step(self, action: str) -> StepResult:
        """Run one action. Raises EnvError for an unknown action, before reset, or after the end."""
        ...

    def snapshot(self) -> Snapshot:
        """The whole state, randomness included."""
        ...

    def restore(self, snapshot: Snapshot) -> Any:
        """Return to a snapshot and give its observation. Raises EnvError for a foreign one."""
        ...


class Agent(Protocol):
    """A scripted player of one episode; it may remember what it was shown."""

    def act(self, observation: Any) -> Sequence[str]:
        """The actions of the next decision, within the options' action limits."""
        ...


@runtime_checkable
class PlanningAgent(Protocol):
    """A scripted teacher that searches on snapshots of the running world, which it must not move.

    It may choose by what the world hides; what it says is only the actions.
    """

    def plan(self, env: Environment) -> Sequence[str]:
        """The actions of the next decision, within the options' action limits."""
        ...


AgentFactory = Callable[[int], Agent | PlanningAgent]
"""Makes the agent of one episode from a seed for its own randomness."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What an observation may say about the episode besides the world's state."""

    turn: int
    max_decisions: int
    event_counts: Mapping[str, int]


OptionsT = TypeVar("OptionsT", bound=TaskOptions)


class TaskApp(ABC, Generic[OptionsT]):
    """The contract of a task app. Class attributes are its metadata; methods are pure functions
    of their arguments, except that `make_env` makes a new world each call."""

    name: ClassVar[str]
    version: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    policy_aliases: ClassVar[Mapping[str, str]] = {}
    """Other names existing clients use for a policy, such as {"crafter-react": "chat"}."""
    outcome_is_unique_events: ClassVar[bool] = False
    """Whether the outcome is the number of different events of the episode, so that the two can be compared."""
    event_names: ClassVar[tuple[str, ...]]
    action_names: ClassVar[tuple[str, ...]]
    options_model: ClassVar[type[TaskOptions]]

    renderer_version: ClassVar[str]
    """Changes whenever the same state would be shown in other words; part of the prompt's hash."""

    @abstractmethod
    def make_env(self, options: OptionsT) -> Environment:
        """A new world; cheap, nothing is generated before `reset`."""

    @abstractmethod
    def tools(self, options: OptionsT) -> tuple[dict[str, Any], ...]:
        """The tools in OpenAI JSON-schema form; may be empty."""

    @abstractmethod
    def system_prompt(self, options: OptionsT) -> str:
        """The rules and the answer format, the same for every decision."""

    @abstractmethod
    def observe(
        self, observation: Any, history: Sequence[PastDecision], context: TurnContext, options: OptionsT
    ) -> list[dict[str, Any]]:
        """The user message of a decision as content parts (`{"type": "text", "text": …}`)."""

    @abstractmethod
    def parse(self, message: AssistantMessage, options: OptionsT) -> tuple[str, ...] | ParseFailure:
        """The actions an answer asks for, or why it is not a legal answer. Invents nothing."""

    @abstractmethod
    def say(self, actions: Sequence[str]) -> AssistantMessage:
        """The canonical answer that `parse` reads back as `actions`."""

    @abstractmethod
    def outcome(self, observation: Any) -> float:
        """The episode's one number, read from its final state."""

    @abstractmethod
    def status_fields(self, observation: Any) -> dict[str, Any]:
        """What a hosted response shows of the state (`inventory`, `achievements_status`, …)."""

    @abstractmethod
    def baselines(self, options: OptionsT) -> Mapping[str, AgentFactory]:
        """Scripted players by name; `random` is always among them."""

    def installation(self) -> dict[str, str]:
        """How this app runs on this machine (which engine, and why), for `task-app info`."""
        return {}

    def seed_info(self, seed: int, options: OptionsT) -> dict[str, Any]:
        """Facts of one seed's world, for `/task_info`; made of the world itself, never a constant."""
        return {}

    def picture(self, env: Environment) -> Picture | None:
        """The world as a person would see it now, or None where there is nothing to draw. Does not move it."""
        return None

    def grammar(self, options: OptionsT) -> Grammar | None:
        """The legal answers as words, or None where answers are free text."""
        return None

    def vocabulary(self, options: OptionsT) -> tuple[str, ...]:
        """Every word that observation texts and answers are made of (for word-level tokenizers)."""
        return ()

    def words_to_message(self, words: Sequence[str]) -> AssistantMessage:
        """The assistant message that a full walk through the grammar stands for."""
        raise NotImplementedError(f"task app {self.name} has no grammar")

    def message_to_words(self, message: AssistantMessage, options: OptionsT) -> tuple[str, ...] | ParseFailure:
        """The walk through the grammar that says what a legal answer says; inverse of `words_to_message`.

        Text beside a call is left out: the grammar has no words for it.
        """
        raise NotImplementedError(f"task app {self.name} has no grammar")


@dataclass(frozen=True)
class TaskSpec:
    """A task app with its options: a task without its seed."""

    app: TaskApp[Any]
    options: TaskOptions

    def ref(self, seed: int) -> TaskRef:
        """The task of one seed, as stored with an episode."""
        return TaskRef(self.app.name, self.app.version, self.options.model_dump(mode="json"), seed)

    @property
    def prompt_hash(self) -> str:
        """Sixteen hex digits over all that shapes a prompt: system prompt, tools, options, renderer.

        SFT data, training and evaluation must agree on it.
        """
        parts = [
            self.app.name,
            self.app.renderer_version,
            self.app.system_prompt(self.options),
            self.app.tools(self.options),
            self.options.model_dump(mode="json"),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
