"""What travels on OpenEnv's wire, as the package `openenv` 0.10 has it. Models only.

Over `/ws` a client sends `{"type": "reset" | "step" | "state" | "close" | "mcp", "data": {…}}`, `step` with the action
as its data and `state` and `close` without any. Each but `close` is answered by `{"type": "observation" | "state" |
"mcp" | "error", "data": {…}}`. An observation's data are `{observation, reward, done, metadata}`; an error's are
`{message, code}` with one of the codes below. Over HTTP `/reset` and `/step` answer an observation's data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ErrorCode",
    "Metadata",
    "ObservationData",
    "ResetData",
    "Schemas",
    "State",
    "StepRequest",
    "TaskAction",
    "TaskObservation",
    "error",
]

ErrorCode = Literal[
    "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"
]

Seed = Annotated[int, Field(ge=0, lt=2**31 - 1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TaskAction(_Model):
    """One decision; exactly one of the first three. `actions` and `tool_calls` are refused when the task cannot read
    them; `message` is what a model said, recorded whatever it is."""

    actions: list[str] | None = Field(default=None, max_length=1_000)
    tool_calls: list[dict[str, Any]] | None = Field(default=None, max_length=100)
    message: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Part of the protocol; not looked at."""

    @property
    def form(self) -> str:
        """Which of the three was sent."""
        return next((name for name in ("message", "tool_calls", "actions") if getattr(self, name)), "actions")


class ResetData(_Model):
    """How an episode begins; without a seed, in a world drawn at random. The rest is as in `/rollout`."""

    seed: Seed | None = None
    episode_id: str | None = Field(default=None, max_length=255)
    """The client's own name of the episode; stored beside ours."""
    options: dict[str, Any] = Field(default_factory=dict)
    step_rewards: dict[str, Any] | None = None
    max_decisions: int | None = Field(default=None, ge=1)


class StepRequest(_Model):
    """`POST /step`: every request is alone in a world of its own, so it says which (`seed`)."""

    action: dict[str, Any]
    timeout_s: float | None = Field(default=None, gt=0)
    request_id: str | None = Field(default=None, max_length=255)
    seed: Seed | None = None


class TaskObservation(_Model):
    """What a client sees: the prompt of the next decision as a model would get it, and the state as fields."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    state: dict[str, Any]
    metadata: dict[str, Any] = Field(default_factory=dict)


class ObservationData(_Model):
    """An observation on the wire. `reward` is r of the last decision; null where there is none, or none yet."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None


class State(BaseModel):
    """Where a connection's episode stands; `step_count` counts decisions."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: int = Field(default=0, ge=0)


class Schemas(_Model):
    """JSON schemas of what a client sends and gets."""

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]


class Metadata(_Model):
    """What this environment is."""

    name: str
    description: str
    readme_content: str | None = None
    version: str | None = None
    author: str | None = None
    documentation_url: str | None = None


def error(code: ErrorCode, message: str, **details: Any) -> dict[str, Any]:
    """An error as `/ws` says it."""
    return {"type": "error", "data": {"message": message, "code": code, **details}}
