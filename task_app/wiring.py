"""Config → the objects it names: task, policy, limits. Checks names and combinations; does no I/O
besides opening a replay database.

A torch policy is handed in by the caller as `embedded`; nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from task_app.apps import get_app
from task_app.config import Config, describe_validation_error
from task_app.config.models import PolicySection, ServerSection
from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean
from task_app.core.policy import Policy
from task_app.core.task import TaskApp, TaskSpec
from task_app.policies import ChatPolicy, ChatSettings, ReplayPolicy, ScriptedPolicy
from task_app.policies.chat import provider_key
from task_app.policies.http_client import HttpClient
from task_app.rollout import Limits
from task_app.store import TraceStore

__all__ = ["EmbeddedFactory", "check", "make_limits", "make_policy", "make_spec", "make_step_limits", "policy_names"]

EmbeddedFactory = Callable[[TaskSpec, Path | None], Policy]
OTHER_POLICIES = ("chat", "embedded", "replay")


def make_spec(app_name: str, options: Mapping[str, Any], *, field: str = "task.options") -> TaskSpec:
    """The task app called `app_name` with its options checked. Raises ConfigError."""
    app = get_app(app_name)
    try:
        return TaskSpec(app, app.options_model.model_validate(dict(options)))
    except ValidationError as error:
        where, sentence = describe_validation_error(error, app.options_model, prefix=field)
        public = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ConfigError(sentence, field=where, public=public) from error


def make_limits(config: Config) -> Limits:
    """The limits of the config's rollouts."""
    rollout = config.rollout
    return Limits(rollout.max_decisions, rollout.max_parse_failures, rollout.infra_tries)


def make_step_limits(config: Config) -> Limits | None:
    """The limits of the second evaluation, whose budget is `eval.env_steps`; None where none is asked for.

    Its turn limit is the budget itself unless set, so that no policy gains by how many actions its decisions hold.
    """
    held_out = config.eval
    if not held_out.env_steps:
        return None
    decisions = held_out.env_steps_max_decisions or held_out.env_steps
    return replace(make_limits(config), max_decisions=decisions, max_env_steps=held_out.env_steps)


def policy_names(app: TaskApp[Any]) -> list[str]:
    """Every policy that can play the app."""
    return sorted({*OTHER_POLICIES, *app.baselines(app.options_model())})


def make_policy(
    settings: PolicySection,
    spec: TaskSpec,
    *,
    embedded: EmbeddedFactory | None = None,
    client: HttpClient | None = None,
    environ: Mapping[str, str] = os.environ,
    own_key_envs: Collection[str] = ServerSection().key_envs,
    identify: bool = False,
) -> Policy:
    """The policy called `settings.name`. Raises ConfigError for an unknown name or missing settings.

    `client` is a pooled HTTP client to share among chat policies; without one each has its own. `identify` makes
    a chat policy tell its endpoint which decision it asks for.
    """
    name = spec.app.policy_aliases.get(settings.name, settings.name)
    baselines = spec.app.baselines(spec.options)
    if name in baselines:
        return ScriptedPolicy(spec.app, name, baselines[name])
    if name == "chat":
        return _chat(settings, environ, own_key_envs, client, identify)
    if name == "replay":
        return _replay(settings)
    if name == "embedded":
        if embedded is None:
            allowed = "the embedded policy cannot be played here"
            raise ConfigError(allowed, field="policy.name", public=allowed)
        return embedded(spec, settings.checkpoint)
    known = policy_names(spec.app)
    hint = did_you_mean(name, known)
    allowed = f"policies: {', '.join(known)}"
    raise ConfigError(f"unknown policy {name!r}{hint} ({allowed})", field="policy.name", public=allowed)


def check(config: Config) -> TaskSpec:
    """The task of a config whose flags are legal, before any I/O. Raises ConfigError."""
    _ = config.step_rewards
    return make_spec(config.task.app, config.task.options)


def _chat(
    settings: PolicySection,
    environ: Mapping[str, str],
    own_key_envs: Collection[str],
    client: HttpClient | None,
    identify: bool,
) -> ChatPolicy:
    for key in ("model", "inference_url"):
        if not getattr(settings, key):
            needed = f"policy 'chat' needs {key}"
            raise ConfigError(needed, field=f"policy.{key}", public=needed)
    return ChatPolicy(
        ChatSettings(
            model=settings.model,
            inference_url=settings.inference_url,
            api_key=provider_key(settings.inference_url, settings.api_key_env, environ, own_key_envs=own_key_envs),
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            timeout_s=settings.timeout_s,
            deadline_s=settings.deadline_s,
            tries=settings.tries,
            keep_reasoning=settings.reasoning == "keep",
            identify=identify,
        ),
        client,
    )


def _replay(settings: PolicySection) -> ReplayPolicy:
    if settings.replay_db is None:
        needed = "policy 'replay' needs replay_db, the database whose answers are said again"
        raise ConfigError(needed, field="policy.replay_db", public=needed)
    with TraceStore.open(settings.replay_db, read_only=True) as store:
        return ReplayPolicy(store.episodes(records=False))
