"""A request over the server's config: which task, flags, limits and policy a rollout is played with.

Whatever the request leaves out comes from the config. Raises ConfigError naming the request's field;
plays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from task_app.config import Config, describe_validation_error
from task_app.config.step_rewards import SHORT_NAMES, StepRewardSettings, from_request, resolve
from task_app.core.errors import ConfigError, refusal
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import StepRewardFlags
from task_app.policies.chat import provider_key, same_origin
from task_app.policies.http_client import HttpClient
from task_app.rollout import Limits
from task_app.server.requests import AGENT_OPS, ENV_OPS, RolloutRequest
from task_app.wiring import make_policy, make_spec

__all__ = ["ResolvedRequest", "check_endpoint", "resolve_policy", "resolve_request", "resolve_task"]

_FIELD_OF_SETTING = {
    "policy.name": "policy.policy_name",
    "policy.model": "policy.config.model",
    "policy.inference_url": "policy.config.inference_url",
}
"""Where a request sets what `[policy]` of the TOML sets."""


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """Everything one rollout is played with."""

    request: RolloutRequest
    spec: TaskSpec
    flags: StepRewardFlags
    limits: Limits
    policy: Policy


def check_endpoint(config: Config, environ: Mapping[str, str]) -> None:
    """Raise ConfigError when the config's own model endpoint is no URL or its key is missing."""
    policy = config.policy
    if policy.inference_url:
        provider_key(policy.inference_url, policy.api_key_env, environ, own_key_envs=config.server.key_envs)


def resolve_request(
    request: RolloutRequest, config: Config, *, client: HttpClient, environ: Mapping[str, str]
) -> ResolvedRequest:
    """The request with the config's settings where it says nothing. `client` is shared by chat policies."""
    spec, flags, limits = resolve_task(request, config)
    _check_grammar(request, spec)
    return ResolvedRequest(request, spec, flags, limits, resolve_policy(request, config, spec, client, environ))


def resolve_task(request: RolloutRequest, config: Config) -> tuple[TaskSpec, StepRewardFlags, Limits]:
    """Which task, flags and limits an episode is played with, whoever decides. Raises ConfigError."""
    return _spec(request, config), _flags(request, config), _limits(request, config)


def _spec(request: RolloutRequest, config: Config) -> TaskSpec:
    served = make_spec(config.task.app, config.task.options).app
    if request.env.env_name not in (None, served.name, *served.aliases):
        raise refusal("env.env_name", f"this server plays {served.name!r}")
    options = {**config.task.options, **request.env.config.options}
    params = request.env.config.env_params
    if params is not None and params.max_steps_per_episode is not None:
        options["max_steps"] = params.max_steps_per_episode
    return make_spec(served.name, options, field="env.config.options")


def _check_grammar(request: RolloutRequest, spec: TaskSpec) -> None:
    """Refuse a trainer that samples under another grammar than the task's own."""
    if request.grammar_hash is None:
        return
    grammar = spec.app.grammar(spec.options)
    if request.grammar_hash != (grammar.hash if grammar else ""):
        raise refusal("grammar_hash", "the task's grammar here is another one; trainer and app must be of one version")


def _flags(request: RolloutRequest, config: Config) -> StepRewardFlags:
    """The flags of the request, from either place or both; the server's own when it has none."""
    places = {
        "env.config.step_rewards": request.env.config.step_rewards,
        "policy.config.step_rewards": request.policy.config.step_rewards,
    }
    written: dict[str, Any] = {}
    for place, body in places.items():
        for key, value in _written(body or {}, place).items():
            if written.setdefault(key, value) != value:
                raise refusal(_as_sent(key, body or {}, place), "env.config and policy.config set it differently")
    if not written:
        return config.step_rewards
    try:
        return resolve(written)
    except ConfigError as error:
        useless = "lambda and beta have no effect in this mode; set them to 0 or use mode 'decision_stepwise'"
        place, body = next((place, body) for place, body in places.items() if body)
        raise ConfigError(str(error), field=_as_sent(error.field, body, place), public=useless) from error


def _written(body: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The keys that one `step_rewards{…}` sets, by their long names."""
    try:
        return StepRewardSettings.model_validate(from_request(body, field=place)).written()
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        public = "unknown field" if problem["type"] == "extra_forbidden" else problem["msg"]
        sentence = describe_validation_error(error, StepRewardSettings, prefix=place)[1]
        raise ConfigError(sentence, field=_as_sent(str(problem["loc"][0]), body, place), public=public) from error


def _as_sent(key: str, body: Mapping[str, Any], place: str) -> str:
    """The full name of a flag as the client wrote it, by its short name or its long one."""
    long = key.rpartition(".")[2]
    short = next((short for short, name in SHORT_NAMES.items() if name == long), long)
    return f"{place}.{short if short in body else long}"


def _limits(request: RolloutRequest, config: Config) -> Limits:
    """The turn limit asked for by `max_llm_calls` or the agent operations, never above `safety.max_ops`."""
    server, rollout, safety = config.server, config.rollout, request.safety
    asked = {"policy.config.max_llm_calls": request.policy.config.max_llm_calls, "ops": _agent_ops(request.ops)}
    wanted = [rollout.max_decisions] if not any(asked.values()) else []
    for field, decisions in asked.items():
        if decisions:
            if decisions > server.max_decisions:
                raise refusal(field, f"at most {server.max_decisions} decisions in a rollout")
            wanted.append(decisions)
    if safety.max_ops is not None:
        wanted.append(safety.max_ops // 2)
    return Limits(
        max_decisions=min(wanted),
        max_parse_failures=_or_else(request.max_parse_failures, rollout.max_parse_failures),
        max_env_steps=request.max_env_steps or 0,
        infra_tries=rollout.infra_tries,
        max_time_s=min(safety.max_time_s or server.max_time_s, server.max_time_s),
    )


def _agent_ops(ops: list[Any]) -> int:
    """How many decisions the operations ask for; 0 without any operations."""
    count = 0
    for index, op in enumerate(ops):
        name = op.get("type", op.get("op")) if isinstance(op, dict) else op
        if name in AGENT_OPS:
            count += 1
        elif name not in ENV_OPS:
            raise refusal(f"ops.{index}", f"an operation is one of {', '.join((*AGENT_OPS, *ENV_OPS))}")
    if ops and not count:
        raise refusal("ops", "at least one agent operation is needed")
    return count


def resolve_policy(
    request: RolloutRequest, config: Config, spec: TaskSpec, client: HttpClient, environ: Mapping[str, str]
) -> Policy:
    """The request's policy settings over the server's.

    The key variable of the config belongs to the host named beside it; a request that names another
    host falls back to the key of a known provider.
    """
    own, asked = config.policy, request.policy
    sent = asked.config.model_dump(include={"model", "inference_url", "temperature", "top_p"}, exclude_none=True)
    tokens = asked.config.max_completion_tokens or asked.config.max_tokens
    sent |= {"max_tokens": tokens} if tokens else {}
    sent |= {"name": asked.policy_name} if asked.policy_name else {}
    try:
        if "inference_url" in sent and not (
            own.inference_url and same_origin(sent["inference_url"], own.inference_url)
        ):
            sent["api_key_env"] = ""
        settings = own.model_copy(update=sent)
        own, identify = config.server.key_envs, request.noise_key is not None
        return make_policy(settings, spec, client=client, environ=environ, own_key_envs=own, identify=identify)
    except ConfigError as error:
        field = _FIELD_OF_SETTING.get(error.field, error.field)
        raise ConfigError(str(error), field=field, public=error.public) from error


def _or_else(asked: int | None, own: int) -> int:
    return own if asked is None else asked
