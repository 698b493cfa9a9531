"""One group as text that any worker can play: the same plans, noise keys and limits as in one process.

A job holds no secret: a worker takes the keys of model endpoints from its own environment. It stores nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from task_app import __version__
from task_app.config import Config
from task_app.core.errors import ConfigError
from task_app.core.types import Episode
from task_app.core.wire import episode_from_json, episode_to_json
from task_app.policies.http_client import HttpClient
from task_app.rollout import plan_groups, play
from task_app.wiring import check, make_limits, make_policy

__all__ = ["GroupJob", "WorkerLost", "play_group", "read_group"]


@dataclass(frozen=True, eq=False)
class GroupJob:
    """The group of one seed of a run."""

    config: Config
    run_id: str
    seed: int

    @property
    def group_id(self) -> str:
        """The id of the group, as in one process."""
        return plan_groups([self.seed], 1, run_id=self.run_id)[0].group_id

    def text(self) -> str:
        """The job as JSON, with the version that must play it."""
        config = self.config.model_dump(mode="json")
        return json.dumps({"version": __version__, "config": config, "run_id": self.run_id, "seed": self.seed})


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """What stands for a group whose worker ended before its answer came: nothing of it is known."""

    cause: str


def play_group(text: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """Play the group of a job and give its episodes as JSON.

    Raises ConfigError for a job of another version, and for what cannot be played here.
    """
    job = json.loads(text)
    if job["version"] != __version__:
        raise ConfigError(f"a worker has version {__version__}, this run needs {job['version']}: deploy it again")
    config = Config.model_validate_json(json.dumps(job["config"]))
    spec, rollout = check(config), config.rollout
    plans = plan_groups([job["seed"]], rollout.group_size, run_id=job["run_id"], noise_seed=config.seed)
    with HttpClient() as client:
        own = config.server.key_envs
        policy = make_policy(config.policy, spec, client=client, environ=environ, own_key_envs=own)
        limits, flags = make_limits(config), config.step_rewards
        episodes = play(plans, spec, policy, limits, flags, lambda episode: None, concurrency=rollout.concurrency)
    return json.dumps([episode_to_json(episode) for episode in episodes], allow_nan=False)


def read_group(text: str, job: GroupJob) -> list[Episode]:
    """The episodes a worker answered for `job`. Raises ValueError unless they are that whole group."""
    episodes = [episode_from_json(value) for value in json.loads(text)]
    wanted = [(job.run_id, job.group_id, member) for member in range(job.config.rollout.group_size)]
    if [(episode.run_id, episode.group_id, episode.member) for episode in episodes] != wanted:
        raise ValueError(f"a worker answered something else than the {len(wanted)} episodes of group {job.group_id}")
    return episodes
