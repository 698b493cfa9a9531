"""A rollout request → one episode, played in the calling thread and stored.

Knows no HTTP: `Rollouts` takes a checked request body and gives the finished run, or raises what
went wrong. The server's config fills in whatever the request leaves out.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from task_app.config import Config, describe_validation_error
from task_app.config.step_rewards import StepRewardSettings, from_request, merge_sections, resolve
from task_app.core.errors import ConfigError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.rollout import EpisodePlan, EpisodeRun, Limits, play_to_end
from task_app.server.requests import AGENT_OPS, ENV_OPS, RolloutRequest
from task_app.store import TraceStore
from task_app.wiring import make_policy, make_spec

__all__ = ["FinishedRollout", "Rollouts"]


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A played episode: its record, the app's task, and the structured state after each decision."""

    episode: Episode
    spec: TaskSpec
    states: tuple[Any, ...]


class Rollouts:
    """Plays requests one after another or from many threads; all write to one store."""

    def __init__(self, config: Config, store: TraceStore, environ: Mapping[str, str]) -> None:
        self._config = config
        self._store = store
        self._environ = environ
        self._stop = threading.Event()
        self._client = httpx.Client(follow_redirects=False)

    def stop(self) -> None:
        """Abort what is running at its next decision."""
        self._stop.set()

    def close(self) -> None:
        """Close the pooled connections to model endpoints."""
        self._client.close()

    def play(self, request: RolloutRequest) -> FinishedRollout:
        """Play and store one episode. Raises ConfigError for a bad request, StoreError for the store."""
        spec = self._spec(request)
        flags = self._flags(request)
        limits = self._limits(request)
        policy = self._policy(request, spec)
        episode_id = uuid.uuid4().hex
        plan = EpisodePlan(
            run_id=request.run_id,
            group_id=request.group_id or f"alone-{episode_id}",
            member=request.member,
            seed=request.env.seed,
            noise_key=f"{request.noise_seed}/-/{request.env.seed}/{request.member}",
            details=_client_details(request),
        )
        run = EpisodeRun(plan, spec, limits, flags, policy.name, policy.version, episode_id)
        try:
            play_to_end(run, policy, self._stop)
        finally:
            policy.end_episode(episode_id)
        episode = run.episode()
        self._store.write_episode(episode)
        return FinishedRollout(episode, spec, tuple(past.after for past in run.history))

    # -- request and config combined -----------------------------------------------------------

    def _spec(self, request: RolloutRequest) -> TaskSpec:
        served = make_spec(self._config.task.app, self._config.task.options)
        name = request.env.env_name
        if name is not None and name not in (served.app.name, *served.app.aliases):
            allowed = f"this server plays {served.app.name!r}"
            raise ConfigError(allowed, field="env.env_name", public=allowed)
        options = {**self._config.task.options, **request.env.config.options}
        params = request.env.config.env_params
        if params is not None and params.max_steps_per_episode is not None:
            options["max_steps"] = params.max_steps_per_episode
        return make_spec(served.app.name, options, field="env.config.options")

    def _flags(self, request: RolloutRequest) -> StepRewardFlags:
        """The flags of the request, from either place; without any, the server's own."""
        sent = [
            (field, body)
            for field, body in (
                ("env.config.step_rewards", request.env.config.step_rewards),
                ("policy.config.step_rewards", request.policy.config.step_rewards),
            )
            if body is not None
        ]
        if not sent:
            return self._config.step_rewards
        settings = [_step_reward_settings(body, field) for field, body in sent]
        return resolve(merge_sections(settings[0], settings[-1]), field=sent[0][0])

    def _limits(self, request: RolloutRequest) -> Limits:
        """The turn limit is the smallest of max_llm_calls, the agent operations and safety.max_ops."""
        server, rollout = self._config.server, self._config.rollout
        asked = request.policy.config.max_llm_calls
        agent_ops = _agent_ops(request.ops)
        max_ops = request.safety.max_ops
        wanted = [count for count in (asked, agent_ops, None if max_ops is None else max_ops // 2) if count]
        decisions = min(wanted) if wanted else rollout.max_decisions
        if decisions > server.max_decisions:
            allowed = f"at most {server.max_decisions} decisions per rollout"
            raise ConfigError(allowed, field="policy.config.max_llm_calls" if asked else "ops", public=allowed)
        max_time_s = request.safety.max_time_s
        if max_time_s is not None and max_time_s > server.max_time_s:
            allowed = f"at most {server.max_time_s:g} seconds per rollout"
            raise ConfigError(allowed, field="safety.max_time_s", public=allowed)
        return Limits(decisions, rollout.max_parse_failures, rollout.infra_tries, max_time_s or server.max_time_s)

    def _policy(self, request: RolloutRequest, spec: TaskSpec) -> Policy:
        """The policy of the request over the server's.

        The key variable of the server's config belongs to the host named there; a request that names
        another host falls back to the key of a known provider.
        """
        own, asked = self._config.policy, request.policy
        sent = asked.config.model_dump(include={"model", "inference_url", "temperature", "top_p"}, exclude_none=True)
        tokens = asked.config.max_completion_tokens or asked.config.max_tokens
        sent |= {"max_tokens": tokens} if tokens else {}
        sent |= {"name": asked.policy_name} if asked.policy_name else {}
        if sent.get("inference_url", own.inference_url) != own.inference_url:
            sent["api_key_env"] = ""
        return make_policy(
            own.model_copy(update=sent),
            spec,
            client=self._client,
            environ=self._environ,
            own_key_env=self._config.server.api_key_env,
        )


def _step_reward_settings(body: Mapping[str, Any], field: str) -> StepRewardSettings:
    try:
        return StepRewardSettings.model_validate(from_request(body, field=field))
    except ValidationError as error:
        where, sentence = describe_validation_error(error, StepRewardSettings, prefix=field)
        public = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ConfigError(sentence, field=where, public=public) from error


def _agent_ops(ops: list[str | dict[str, Any]]) -> int:
    """How many decisions the operations ask for. Raises ConfigError naming the first unknown one."""
    allowed = f"operations: {', '.join((*AGENT_OPS, *ENV_OPS))}"
    count = 0
    for index, op in enumerate(ops):
        name = op if isinstance(op, str) else op.get("type", op.get("op"))
        if name in AGENT_OPS:
            count += 1
        elif name not in ENV_OPS:
            raise ConfigError(f"unknown operation; {allowed}", field=f"ops.{index}", public=allowed)
    if ops and not count:
        needed = "ops must hold at least one agent operation"
        raise ConfigError(needed, field="ops", public=needed)
    return count


def _client_details(request: RolloutRequest) -> dict[str, Any]:
    """What a client said of itself, stored with the episode."""
    said = {
        "mode": request.mode,
        "training_session_id": request.training_session_id,
        "trace_correlation_id": request.policy.config.trace_correlation_id,
        "provider": request.policy.config.provider,
    }
    return {key: value for key, value in said.items() if value is not None}
