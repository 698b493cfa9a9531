"""What clients of the step-wise routes may send. Every field that existing clients send is known; no other is
accepted. Those without effect here are named in the answer's `ignored`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import Field

from task_app.http.bodies import Body
from task_app.server.requests import EnvConfig, EnvSpec, Name, PolicyConfig, PolicySpec, RolloutRequest, Seed

__all__ = ["InitializeBody", "PolicyBody", "PolicyStepBody", "StepBody", "TerminateBody"]


class _Body(Body):
    def set_of(self, *names: str) -> list[str]:
        """Those of the fields that the client sent."""
        return [name for name in names if getattr(self, name) is not None]


class InitializeBody(_Body):
    """One episode to begin; `policy.config` may hold the turn limit `max_llm_calls` and `step_rewards`."""

    seed: Seed
    config: EnvConfig = EnvConfig()
    policy: PolicySpec = PolicySpec()
    run_id: Name | None = None
    group_id: Name | None = None
    member: int = Field(default=0, ge=0, lt=2**31)
    noise_seed: int = Field(default=0, ge=0, lt=2**31)
    rl_run_id: Name | None = None
    """What existing clients call `run_id`."""
    env_name: Name | None = None
    parent_env_id: Name | None = None

    def as_rollout(self, env_name: str, run_id: str) -> RolloutRequest:
        """The same as a rollout's request; no key of the client's is kept."""
        config = self.policy.config.model_copy(update={"api_key": None})
        return RolloutRequest(
            run_id=self.run_id or self.rl_run_id or run_id,
            env=EnvSpec(env_name=env_name, seed=self.seed, config=self.config),
            policy=self.policy.model_copy(update={"config": config}),
            group_id=self.group_id,
            member=self.member,
            noise_seed=self.noise_seed,
        )


class StepBody(_Body):
    """One decision, in one of three forms.

    `action` and `tool_calls` are refused, and nothing is executed, when the task cannot read them. `message` is what
    a model said: it is recorded whatever it is, and an unreadable one is a decision without actions, as in a rollout.
    With a `request_id`, the same request sent again gets the same answer and is played once.
    """

    env_id: Name
    action: str | list[Any] | dict[str, Any] | None = None
    tool_calls: list[dict[str, Any]] | None = Field(default=None, max_length=100)
    message: dict[str, Any] | None = None
    request_id: Name | None = None

    @property
    def request(self) -> tuple[str, str] | None:
        """The client's id of the request and a hash of the decision in it; None without an id."""
        if self.request_id is None:
            return None
        said = json.dumps([self.action, self.tool_calls, self.message], sort_keys=True)
        return self.request_id, hashlib.sha256(said.encode()).hexdigest()

    @property
    def form(self) -> str:
        """Which of the three fields was sent."""
        return next((name for name in ("message", "tool_calls", "action") if getattr(self, name)), "action")


class TerminateBody(_Body):
    """A session to end."""

    env_id: Name


class PolicyBody(_Body):
    """One of the app's own policies; its settings are those of a rollout's `policy`."""

    policy_name: Name | None = None
    config: PolicyConfig = PolicyConfig()
    bound_env_id: Name | None = None
    rl_run_id: Name | None = None
    parent_policy_id: Name | None = None
    mode: Name | None = None

    def as_policy(self) -> PolicySpec:
        """The same as a rollout's policy; no key of the client's is kept."""
        config = self.config.model_copy(update={"api_key": None})
        return PolicySpec(policy_name=self.policy_name, config=config)


class PolicyStepBody(_Body):
    """Ask a policy for the decision that a session is to make; without `env_id`, the one it is bound to.

    It decides on the session itself: an `observation` sent along is not looked at.
    """

    policy_id: Name
    env_id: Name | None = None
    observation: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    dry_run: bool | None = None
