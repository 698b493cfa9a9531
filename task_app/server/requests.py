"""What clients may send to `/rollout`. Every field of the existing contract is known; no other is accepted.

Fields without effect here are accepted and named in `details.ignored` of the answer: `ignored_fields`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["AGENT_OPS", "ENV_OPS", "RolloutRequest", "ignored_fields"]

Name = Field(default=None, min_length=1, max_length=200)
AGENT_OPS = ("agent", "policy", "model")
ENV_OPS = ("env", "environment", "step")


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class EnvParams(_Body):
    """Parameters of the world."""

    max_steps_per_episode: int | None = Field(default=None, ge=1, le=10_000)


class EnvConfig(_Body):
    """How the world is played. `options` are the task app's own options; the rest is the contract's."""

    options: dict[str, Any] = Field(default_factory=dict)
    step_rewards: dict[str, Any] | None = None
    env_params: EnvParams | None = None
    difficulty: str | None = None
    training_session_id: str | None = None


class EnvSpec(_Body):
    """Which world. Without `env_name` it is the app that is served."""

    env_name: str | None = Name
    seed: int = Field(ge=0, lt=2**31 - 1)
    config: EnvConfig = EnvConfig()
    env_id: str | None = None


class PolicyConfig(_Body):
    """Settings of the `chat` policy, and the turn limit `max_llm_calls`."""

    model: str | None = Name
    inference_url: str | None = Field(default=None, max_length=2_000)
    provider: str | None = Name
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=131_072)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=131_072)
    max_llm_calls: int | None = Field(default=None, ge=1)
    step_rewards: dict[str, Any] | None = None
    trace_correlation_id: str | None = Name
    api_key: str | None = None
    use_tools: bool | None = None
    thinking_mode: str | None = None
    thinking_budget: int | None = None


class PolicySpec(_Body):
    """Who plays: a scripted player of the app, or `chat` (any name with an inference_url in an alias list)."""

    policy_name: str | None = Name
    config: PolicyConfig = PolicyConfig()
    policy_id: str | None = None


class RecordSpec(_Body):
    """What the answer holds. `trace_format` full gives the whole episode record."""

    trajectories: bool = True
    logprobs: bool = False
    return_trace: bool = False
    trace_format: Literal["compact", "full"] = "compact"
    value: bool | None = None


class SafetySpec(_Body):
    """Limits of one rollout: operations, and seconds."""

    max_ops: int | None = Field(default=None, ge=1)
    max_time_s: float | None = Field(default=None, gt=0)


class RolloutRequest(_Body):
    """One episode to play. `group_id` and `member` place it in a group; alone it is its own group."""

    run_id: str = Field(min_length=1, max_length=200)
    env: EnvSpec
    policy: PolicySpec = PolicySpec()
    ops: list[str | dict[str, Any]] = Field(default_factory=list, max_length=20_000)
    record: RecordSpec = RecordSpec()
    safety: SafetySpec = SafetySpec()
    group_id: str | None = Name
    member: int = Field(default=0, ge=0, lt=2**31)
    noise_seed: int = Field(default=0, ge=0, lt=2**31)
    on_done: Literal["terminate", "reset"] = "terminate"
    mode: str | None = Name
    training_session_id: str | None = Name
    synth_base_url: str | None = None


_WITHOUT_EFFECT = (
    "env.env_id",
    "env.config.difficulty",
    "env.config.training_session_id",
    "policy.policy_id",
    "policy.config.api_key",
    "policy.config.use_tools",
    "policy.config.thinking_mode",
    "policy.config.thinking_budget",
    "record.value",
    "synth_base_url",
)


def ignored_fields(request: RolloutRequest) -> list[str]:
    """The fields the request sets that have no effect here."""
    ignored = [path for path in _WITHOUT_EFFECT if _value_at(request, path) is not None]
    return [*ignored, "on_done"] if request.on_done == "reset" else ignored


def _value_at(body: BaseModel, path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = getattr(value, name)
    return value
