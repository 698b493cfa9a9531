"""The values that travel between layers, and the glossary. Frozen; they do nothing but hold data.

observation   what the policy sees of the world at one decision
action        one environment action, by name
step          one `env.step`; `StepRecord` is what is kept of it
decision      one policy call (one tool call) and the steps it triggers; `turn` is its 1-based number
episode       reset to terminated (the world ended it) or truncated (a limit ended it)
rollout       making an episode with a named policy version
group         G episodes of one task and seed; `member` is 0-based inside it
event         a named thing that happened at a step, such as an achievement
decision rewards  {turn, ach_delta, unique_delta, all, unique} of one decision
reward vector r   one number per decision (per step in `env_sparse`)
return        the sum of r; return-to-go is the sum from one decision on
outcome       the one number an episode earns, read from its final state by the task app
advantage     what training credits a decision with
run           one command's episodes; `task` is app + options + seed
status        ok | truncated | infra_error | aborted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Literal

__all__ = [
    "AssistantMessage",
    "Completion",
    "Decision",
    "DecisionRequest",
    "DecisionRewards",
    "Episode",
    "EventRewardsKind",
    "Horizon",
    "Message",
    "ParseFailure",
    "PastDecision",
    "Status",
    "StepRecord",
    "StepResult",
    "StepRewardFlags",
    "StepRewardsMode",
    "TaskRef",
    "TokenTrace",
    "ToolCall",
]

Message = dict[str, Any]
"""One chat message in the OpenAI wire form: role, content, and tool_calls or tool_call_id."""

Status = Literal["ok", "truncated", "infra_error", "aborted"]
StepRewardsMode = Literal["off", "decision_stepwise", "env_sparse"]
EventRewardsKind = Literal["unique", "absolute"]
Horizon = Literal["configured", "episode"]


@dataclass(frozen=True, slots=True)
class StepRewardFlags:
    """The step-reward flags in force, resolved: `enabled = false` has become mode `off`.

    See docs/event_rewards.md for the formulas. `beta` and `indicator_lambda` are rewards per
    decision (per remaining decision for beta).
    """

    mode: StepRewardsMode = "decision_stepwise"
    kind: EventRewardsKind = "unique"
    indicator_lambda: float = 0.0
    beta: float = 0.0
    horizon: Horizon = "configured"


@dataclass(frozen=True, slots=True)
class TaskRef:
    """Which task an episode plays: the app, its version, its options as plain JSON, and the seed."""

    app: str
    version: str
    options: Mapping[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call exactly as the model said it; `arguments` is the raw string, valid or not."""

    name: str
    arguments: str
    id: str = "call_0"


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the policy said: text and tool calls, and why it stopped (`stop`, `tool_calls`, `length`)."""

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"

    def to_wire(self) -> Message:
        """The message in the OpenAI wire form."""
        wire: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            wire["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return wire

    @classmethod
    def from_wire(cls, wire: Message, finish_reason: str = "stop") -> AssistantMessage:
        """Inverse of `to_wire`; a call without a function keeps empty name and arguments."""
        calls = tuple(
            ToolCall(
                name=str((call.get("function") or {}).get("name") or ""),
                arguments=str((call.get("function") or {}).get("arguments") or ""),
                id=str(call.get("id") or f"call_{index}"),
            )
            for index, call in enumerate(wire.get("tool_calls") or ())
        )
        return cls(content=wire.get("content"), tool_calls=calls, finish_reason=finish_reason)


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """The policy's answer was not a legal tool call. `reason` is one of the app's fixed codes."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The tokens behind one completion, as sampled; nothing is ever re-encoded from text.

    prompt_ids       (P,) token ids of the prompt; the first `prefix_length` are shared by the run
    completion_ids   (C,) token ids the policy produced, forced ones included
    logprobs         (C,) log-probability of each under the masked, temperature-scaled policy; 0 if forced
    mask             (C,) 1 where the policy had a choice, 0 where the grammar forced the token
    """

    prompt_ids: tuple[int, ...]
    prefix_length: int
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    temperature: float
    grammar_hash: str
    renderer_hash: str

    def __post_init__(self) -> None:
        lengths = {len(self.completion_ids), len(self.logprobs), len(self.mask)}
        if len(lengths) != 1:
            raise ValueError(
                "completion_ids, logprobs and mask must have one length, got "
                f"{len(self.completion_ids)}, {len(self.logprobs)}, {len(self.mask)}"
            )
        if not 0 <= self.prefix_length <= len(self.prompt_ids):
            raise ValueError(f"prefix_length {self.prefix_length} is outside 0..{len(self.prompt_ids)}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a policy. Token counts are None where the policy has no tokens."""

    message: AssistantMessage
    completion_id: str
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float = 0.0
    tokens: TokenTrace | None = None


@dataclass(frozen=True, slots=True)
class PastDecision:
    """One earlier decision as the observation text recalls it: what ran and what came of it.

    `before` and `after` are the app's structured observations around it; `failure` is set when the
    answer did not parse, and then nothing ran.
    """

    turn: int
    actions: tuple[str, ...]
    events: tuple[str, ...]
    before: Any
    after: Any
    failure: ParseFailure | None = None


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """Everything a policy may use for one decision.

    `noise_key` names the sampling noise: (seed, update, group, member, turn) as text, so that a
    resumed or retried decision draws the same numbers whatever else is in the batch.
    `observation` is the app's structured view (scripted policies read it; models read `messages`).
    `time_left_s` is what remains of the episode's time limit, None without one. `environment` is the
    running world, for scripted teachers that search on snapshots of it; no model ever sees it.
    `note(name, value)` stores a fact with the episode, in its details: what a policy had to do otherwise
    than it was told.
    """

    episode_id: str
    turn: int
    max_decisions: int
    seed: int
    member: int
    noise_key: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    observation: Any
    time_left_s: float | None = None
    environment: Any = None
    note: Callable[[str, Any], object] = lambda name, value: None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one `env.step` returns.

    `reward` is the step's own reward, never a running total. `events` names every event counter
    that rose in the step, sorted, once per unit of the rise.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One stored step. `step` is its 0-based index in the episode."""

    step: int
    action: str
    reward: float
    terminated: bool
    truncated: bool
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecisionRewards:
    """The event-level reward record of one decision; `all` and `unique` are sorted, no duplicates."""

    turn: int
    ach_delta: int
    unique_delta: int
    all: tuple[str, ...]
    unique: tuple[str, ...]

    def to_wire(self) -> dict[str, Any]:
        """The five-key record clients read at `info.meta.decision_rewards`."""
        return {
            "turn": self.turn,
            "ach_delta": self.ach_delta,
            "unique_delta": self.unique_delta,
            "all": list(self.all),
            "unique": list(self.unique),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision as stored: prompt, what was said, what ran, what it earned.

    `rewards` is None when the flags in force record none (modes `off` and `env_sparse`).
    """

    turn: int
    messages: tuple[Message, ...]
    completion: Completion
    failure: ParseFailure | None
    steps: tuple[StepRecord, ...]
    rewards: DecisionRewards | None
    started_at: float = 0.0
    env_s: float = 0.0

    @property
    def events(self) -> tuple[str, ...]:
        """Event names of all steps of the decision, in order, with repeats."""
        return tuple(name for step in self.steps for name in step.events)


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode, the record that writer, reader, collector, export and page share.

    `outcome` is None exactly when the status carries no reward (`infra_error`, `aborted`).
    """

    episode_id: str
    run_id: str
    group_id: str
    member: int
    task: TaskRef
    policy: str
    policy_version: str
    prompt_hash: str
    flags: StepRewardFlags
    max_decisions: int
    status: Status
    cause: str
    terminated: bool
    truncated: bool
    outcome: float | None
    decisions: tuple[Decision, ...]
    tools: tuple[dict[str, Any], ...] = ()
    update: int | None = None
    started_at: float = 0.0
    finished_at: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """All steps in order."""
        return tuple(step for decision in self.decisions for step in decision.steps)

    @property
    def environment_return(self) -> float:
        """The sum of the steps' own rewards."""
        return fsum(step.reward for step in self.steps)

    @property
    def event_counts(self) -> Counter[str]:
        """How often each event happened."""
        return Counter(name for decision in self.decisions for name in decision.events)

    @property
    def rewarded(self) -> bool:
        """Whether the status carries a reward at all."""
        return self.status in ("ok", "truncated")
