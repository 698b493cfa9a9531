"""What the app says of itself: `/info`, and `/task_info` with facts of single seeds."""

from __future__ import annotations

from typing import Any

from task_app import __version__
from task_app.config import Config
from task_app.core.task import TaskSpec
from task_app.http import SERVICE
from task_app.wiring import policy_names

__all__ = ["describe", "identity", "seed_info"]


def identity(spec: TaskSpec) -> dict[str, Any]:
    """Which program this is and which task it serves."""
    return {"service": SERVICE, "version": __version__, "task": spec.app.name}


def describe(config: Config, spec: TaskSpec) -> dict[str, Any]:
    """The task, its tools, options, policies, flags and limits."""
    app, flags, server = spec.app, config.step_rewards, config.server
    needs = {"embedded": False, "replay": config.policy.replay_db is not None}
    return {
        "service": SERVICE,
        "version": __version__,
        "task": {"name": app.name, "version": app.version, "title": app.title, "description": app.description},
        "aliases": list(app.aliases),
        "actions": list(app.action_names),
        "events": list(app.event_names),
        "tools": list(app.tools(spec.options)),
        "options": spec.options.model_dump(mode="json"),
        "policies": [name for name in policy_names(app) if needs.get(name, True)],
        "prompt_hash": spec.prompt_hash,
        "step_rewards": {
            "mode": flags.mode,
            "kind": flags.kind,
            "indicator_lambda": flags.indicator_lambda,
            "step_beta": flags.beta,
            "horizon": flags.horizon,
        },
        "limits": {
            "max_decisions": server.max_decisions,
            "max_time_s": server.max_time_s,
            "max_concurrent_rollouts": server.max_concurrent_rollouts,
            "max_waiting_rollouts": server.max_waiting_rollouts,
            "max_body_bytes": server.max_body_bytes,
        },
    }


def seed_info(spec: TaskSpec, seed: int) -> dict[str, Any]:
    """One seed's instance of the task, its facts read from the world itself. Raises EnvError."""
    world = spec.app.seed_info(seed, spec.options)
    return {"seed": seed, "task": {"app": spec.app.name, "version": spec.app.version}, "world": world}
