"""What one command does with episodes: play a config into its database (here or on a hosted task app),
score a policy on held-out worlds, collect reward vectors from a database.

A run has an id, its resolved config is recorded, and each episode is stored as it ends.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from task_app import __version__
from task_app.analyze.stats import Mean, mean_interval
from task_app.apps import find_apps
from task_app.collect import BatchMetrics, collect_rows, measure
from task_app.config import Config
from task_app.core.errors import ConfigError, StoreError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.policies.http_client import HttpClient
from task_app.rollout import Limits, plan_groups, play
from task_app.rollout.client import HostedTaskApp
from task_app.store import TraceStore
from task_app.store.files import write_whole
from task_app.wiring import EmbeddedFactory, check, make_limits, make_policy, make_step_limits

__all__ = [
    "Collected",
    "Score",
    "collect_database",
    "evaluate_beside_random",
    "for_evaluation",
    "installation",
    "new_run_id",
    "play_config",
    "play_hosted",
    "score",
    "served_elsewhere",
]

Progress = Callable[[Episode], None]


def new_run_id(command: str) -> str:
    """A fresh id such as `rollout-20260131-142501-9f3c`."""
    return f"{command}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def play_config(
    config: Config,
    *,
    run_id: str,
    command: str,
    progress: Progress,
    embedded: EmbeddedFactory | None = None,
    environ: Mapping[str, str] = os.environ,
    limits: Limits | None = None,
    wrap: Callable[[Policy, TaskSpec], Policy] | None = None,
) -> list[Episode]:
    """Play the config's seeds × group size in this process. Raises ConfigError before any I/O, StoreError.

    `limits` stand in for the config's own; `wrap` may put something around the policy, to listen.
    """
    spec = check(config)
    rollout = config.rollout
    with HttpClient() as client:
        own = config.server.key_envs
        policy = make_policy(config.policy, spec, embedded=embedded, client=client, environ=environ, own_key_envs=own)
        if wrap is not None:
            policy = wrap(policy, spec)
        plans = plan_groups(rollout.seeds.seeds(), rollout.group_size, run_id=run_id, noise_seed=config.seed)
        with TraceStore.open(rollout.trace_db) as store:
            store.write_run(run_id, command, config.model_dump(mode="json"))

            def keep(episode: Episode) -> None:
                store.write_episode(episode)
                progress(episode)

            limits = limits or make_limits(config)
            return play(plans, spec, policy, limits, config.step_rewards, keep, concurrency=rollout.concurrency)


def play_hosted(
    config: Config,
    base_url: str,
    *,
    run_id: str,
    command: str,
    progress: Progress,
    store_here: bool,
    environ: Mapping[str, str] = os.environ,
) -> list[Episode]:
    """Play the same on the task app at `base_url`, which stores the episodes; so does this process when
    `store_here`. Raises PolicyError when the app cannot be reached or a rollout breaks."""
    spec = check(config)
    rollout = config.rollout
    plans = plan_groups(rollout.seeds.seeds(), rollout.group_size, run_id=run_id, noise_seed=config.seed)
    key = environ.get(config.server.api_key_env, "")
    store = TraceStore.open(rollout.trace_db) if store_here else None
    try:
        if store:
            store.write_run(run_id, command, config.model_dump(mode="json"))

        def keep(episode: Episode) -> None:
            if store:
                store.write_episode(episode)
            progress(episode)

        with HostedTaskApp(base_url, api_key=key) as app:
            return app.play(
                plans,
                spec,
                _policy_body(config),
                config.step_rewards,
                rollout.max_decisions,
                keep,
                noise_seed=config.seed,
                concurrency=rollout.concurrency,
            )
    finally:
        if store:
            store.close()


def _policy_body(config: Config) -> dict[str, Any]:
    """The request's policy object; settings of `chat` travel only with `chat`, keys never do."""
    policy = config.policy
    if not policy.inference_url and not policy.model:
        return {"policy_name": policy.name}
    settings = policy.model_dump(include={"model", "inference_url", "temperature", "top_p", "max_tokens"})
    return {"policy_name": policy.name, "config": {key: value for key, value in settings.items() if value != ""}}


def installation() -> dict[str, str]:
    """What is installed here: versions, each task app's own facts, and the optional parts."""
    extras = {"train": "torch", "modal": "modal", "ray": "ray", "viewer": "datasette"}
    facts = {"crafter-task-app": __version__, "python": platform.python_version()}
    for found in find_apps().values():
        facts |= found.app.installation()
    return facts | {f"extra {name}": "yes" if find_spec(module) else "no" for name, module in extras.items()}


def served_elsewhere(base_url: str, api_key: str = "") -> dict[str, Any]:
    """What a task app at `base_url` says of itself: its health, and what it plays and how.

    Raises ConfigError for a `base_url` that is none, PolicyError when nobody answers or the key is wrong.
    """
    with HostedTaskApp(base_url, api_key=api_key, timeout_s=30.0) as app:
        return app.health() | app.task_info()


@dataclass(frozen=True, slots=True)
class Score:
    """How a policy did on a set of worlds; `failed` episodes carry no outcome and are not in the mean.

    env_steps  the budget of environment steps that ended the episodes; 0: the turn limit did
    """

    policy: str
    version: str
    outcome: Mean
    failed: int
    env_steps: int = 0

    @property
    def budget(self) -> str:
        """What ended the episodes, in words."""
        return f"{self.env_steps} steps" if self.env_steps else "turn limit"

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)


def evaluate_beside_random(
    config: Config,
    *,
    progress: Progress,
    embedded: EmbeddedFactory | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Score]:
    """Play `eval.seeds`, one episode each, with the config's policy and then with `random`; where `eval.env_steps`
    asks for it, then each again with that budget."""
    held_out = for_evaluation(config)
    names = list(dict.fromkeys((config.policy.name, "random")))
    scores = []
    budgets = [make_limits(config), make_step_limits(config)]
    for limits, name in [(limits, name) for limits in budgets if limits for name in names]:
        one = held_out.model_copy(update={"policy": held_out.policy.model_copy(update={"name": name})})
        episodes = play_config(
            one,
            run_id=new_run_id("eval"),
            command="eval",
            progress=progress,
            embedded=embedded,
            environ=environ,
            limits=limits,
        )
        scores.append(replace(score(episodes), env_steps=limits.max_env_steps))
    return scores


def for_evaluation(config: Config) -> Config:
    """The same config with what `[eval]` pins: its worlds, one episode each, its noise and its temperature."""
    rollout = config.rollout.model_copy(update={"seeds": config.eval.seeds, "group_size": 1})
    policy = config.policy.model_copy(update={"temperature": config.eval.temperature})
    return config.model_copy(update={"rollout": rollout, "policy": policy, "seed": config.eval.sampling_seed})


def score(episodes: Sequence[Episode]) -> Score:
    """The score of one policy's episodes. Raises ValueError without any."""
    if not episodes:
        raise ValueError("no episodes to score")
    outcomes = [episode.outcome for episode in episodes if episode.outcome is not None]
    first = episodes[0]
    return Score(first.policy, first.policy_version, mean_interval(outcomes), len(episodes) - len(outcomes))


@dataclass(frozen=True, slots=True)
class Collected:
    """Reward vectors of a database: the JSON lines, and the metrics of all complete or single episodes."""

    text: str
    rows: int
    metrics: BatchMetrics
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """The metrics as plain JSON values."""
        return {"rows": self.rows, "left_out": self.left_out, **asdict(self.metrics)}

    def totals(self) -> list[tuple[str, Any]]:
        """Every metric but the breakdown by turn, as (name, value)."""
        return [(name, value) for name, value in self.to_json().items() if name != "by_turn"]

    def by_turn(self) -> list[tuple[Any, ...]]:
        """(turn, sum of r, ΣAchΔ, ΣUniqueΔ) of each turn."""
        return [(turn, *entry) for turn, entry in self.metrics.by_turn.items()]


def collect_database(config: Config, *, run_id: str | None, output: Path | None) -> Collected:
    """Reward vectors of the episodes in `rollout.trace_db`, written to `output` whole or not at all.

    Raises StoreError for a database that cannot be read or holds broken records, ConfigError when
    nothing in it carries a reward or `output` cannot be written.
    """
    flags = config.step_rewards
    with TraceStore.open(config.rollout.trace_db, create=False, read_only=True) as store:
        episodes = list(store.episodes(run_id=run_id, records=flags.mode != "off"))
    try:
        lines = list(collect_rows(episodes, flags))
        metrics = measure(episodes, flags)
    except ValueError as error:
        raise StoreError(f"{config.rollout.trace_db}: {error}") from error
    if not lines:
        raise ConfigError(f"no episode in {config.rollout.trace_db} carries a reward", field="rollout.trace_db")
    text = "".join(f"{line}\n" for line in lines)
    if output is not None:
        write_whole(output, text)
    return Collected(text, len(lines), metrics, len(episodes) - len(lines))
