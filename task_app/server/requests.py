"""What clients may send. Every field of the existing contract is known; no other is accepted.

Fields without effect here are accepted and named in `details.ignored` of the answer: `ignored_fields`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from task_app.core.types import Episode
from task_app.http.bodies import Body

__all__ = [
    "AGENT_OPS",
    "ENV_OPS",
    "AbortRequest",
    "Name",
    "RolloutRequest",
    "Seed",
    "TaskInfoQuery",
    "ignored_fields",
    "ignored_settings",
]

AGENT_OPS = ("agent", "policy", "model")
ENV_OPS = ("env", "environment", "step")

Seed = Annotated[int, Field(ge=0, lt=2**31 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class EnvParams(Body):
    """Parameters of the world."""

    max_steps_per_episode: int | None = Field(default=None, ge=1, le=10_000)


class EnvConfig(Body):
    """How the world is played: the task app's own `options`, and the contract's settings."""

    options: dict[str, Any] = Field(default_factory=dict)
    step_rewards: dict[str, Any] | None = None
    env_params: EnvParams | None = None
    difficulty: str | None = None
    training_session_id: str | None = None


class EnvSpec(Body):
    """Which world. Without `env_name` it is the app that is served."""

    env_name: Name | None = None
    seed: Seed
    config: EnvConfig = EnvConfig()
    env_id: str | None = None


class PolicyConfig(Body):
    """Settings of the `chat` policy, and the turn limit `max_llm_calls`."""

    model: Name | None = None
    inference_url: str | None = Field(default=None, max_length=2_000)
    provider: Name | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=131_072)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=131_072)
    max_llm_calls: int | None = Field(default=None, ge=1)
    step_rewards: dict[str, Any] | None = None
    trace_correlation_id: Name | None = None
    api_key: str | None = None
    use_tools: bool | None = None
    thinking_mode: str | None = None
    thinking_budget: int | None = None


class PolicySpec(Body):
    """Who plays: a scripted player of the app, or `chat`; without a name, the server's own policy."""

    policy_name: Name | None = None
    config: PolicyConfig = PolicyConfig()
    policy_id: str | None = None


class RecordSpec(Body):
    """What the answer holds. `trace_format` full gives the whole episode record."""

    trajectories: bool = True
    logprobs: bool = False
    return_trace: bool = False
    trace_format: Literal["compact", "full"] = "compact"
    value: bool | None = None


class SafetySpec(Body):
    """Upper limits of one rollout: operations (two a decision), and seconds; the server's own still hold."""

    max_ops: int | None = Field(default=None, ge=2, le=1_000_000)
    max_time_s: float | None = Field(default=None, gt=0, le=86_400)


class RolloutRequest(Body):
    """One episode to play. `group_id` and `member` place it in a group; alone it is its own group.

    A trainer elsewhere also says by which `noise_key` its decisions are sampled, which its model endpoint is then told
    with each, the `grammar_hash` they are sampled under, and its own limits.
    """

    run_id: Name
    env: EnvSpec
    policy: PolicySpec = PolicySpec()
    ops: list[Any] = Field(default_factory=list, max_length=20_000)
    record: RecordSpec = RecordSpec()
    safety: SafetySpec = SafetySpec()
    group_id: Name | None = None
    member: int = Field(default=0, ge=0, lt=2**31)
    noise_seed: int = Field(default=0, ge=0, lt=2**31)
    noise_key: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")] | None = None
    grammar_hash: Name | None = None
    max_parse_failures: int | None = Field(default=None, ge=0, le=10_000)
    max_env_steps: int | None = Field(default=None, ge=0, le=10_000)
    on_done: Literal["terminate", "reset"] = "terminate"
    mode: Name | None = None
    training_session_id: Name | None = None
    synth_base_url: str | None = None


class AbortRequest(Body):
    """Which run is to end."""

    run_id: Name


class TaskInfoQuery(BaseModel):
    """`/task_info?seed=1&seed=2`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: list[Seed] = Field(default_factory=list, max_length=64)


_NEVER_USED = (
    "env.env_id",
    "env.config.difficulty",
    "env.config.training_session_id",
    "policy.policy_id",
    "policy.config.api_key",
    "policy.config.thinking_mode",
    "policy.config.thinking_budget",
    "record.value",
    "synth_base_url",
)
_USED_BY_CHAT = tuple(
    f"policy.config.{name}"
    for name in ("model", "inference_url", "temperature", "top_p", "max_tokens", "max_completion_tokens")
)


def ignored_fields(request: RolloutRequest, episode: Episode) -> list[str]:
    """The fields the request sets that had no effect on its episode or its answer."""
    ignored = ignored_settings(request, episode.policy)
    if request.record.logprobs and all(decision.completion.tokens is None for decision in episode.decisions):
        ignored.append("record.logprobs")
    if request.on_done == "reset":
        ignored.append("on_done")
    return ignored


def ignored_settings(request: RolloutRequest, policy: str) -> list[str]:
    """The settings of task and policy in the request that have no effect when `policy` plays."""
    candidates = _NEVER_USED if policy == "chat" else _NEVER_USED + _USED_BY_CHAT
    ignored = [path for path in candidates if _value_at(request, path) is not None]
    return [*ignored, "policy.config.use_tools"] if request.policy.config.use_tools is False else ignored


def _value_at(body: BaseModel, path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = getattr(value, name)
    return value
