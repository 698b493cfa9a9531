"""The one that hands out groups and the only one that stores: a group is written whole, in one transaction, once.

A group whose worker was lost is played again from its beginning, at most `scale.tries` times; since nothing of it was
stored and its answer can come only once, none is lost or doubled. An episode that ends in an infrastructure error is
no lost group: it is stored as what it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from task_app.config import Config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.core.types import Episode
from task_app.scale.job import GroupJob, WorkerLost, read_group
from task_app.store import TraceStore
from task_app.wiring import check

__all__ = ["Executor", "check_scalable", "play_scaled"]

PAUSE_S = 1.0
"""Before lost groups are handed out again, so that a cluster can replace its workers."""


class Executor(Protocol):
    """Somewhere to play groups."""

    def play(self, jobs: Sequence[GroupJob]) -> Iterator[tuple[GroupJob, str | WorkerLost]]:
        """Every job once, as they end: what `play_group` gave, or that its worker was lost.

        Raises what a worker raised on purpose (ConfigError for what it cannot play).
        """
        ...


def check_scalable(config: Config, *, base_url: str | None = None, relabel: str | None = None) -> None:
    """Raise ConfigError, before any work, for what workers elsewhere cannot play. In this process all is played."""
    executor = config.scale.executor
    if executor == "inprocess":
        return
    for given, option in ((base_url, "--base-url"), (relabel, "--relabel")):
        if given:
            raise ConfigError(
                f"{option} plays in this process; leave out --executor {executor}", field="scale.executor"
            )
    if config.policy.name == "embedded":
        raise ConfigError(
            "policy 'embedded' answers all running episodes at once from one process's weights: play it with "
            "--executor inprocess, or serve the model and let workers ask it with --policy chat",
            field="scale.executor",
        )
    if executor == "modal" and config.policy.name == "replay":
        raise ConfigError(
            "policy 'replay' reads a database of this machine, which Modal's containers do not see: play it with "
            "--executor inprocess or ray",
            field="scale.executor",
        )


def play_scaled(
    config: Config, executor: Executor, *, run_id: str, command: str, progress: Callable[[Episode], None]
) -> list[Episode]:
    """Play the config's seeds × group size on `executor` and store every group; the episodes in order.

    Raises ConfigError before any work, StoreError, and TaskAppError when groups stay lost after all tries or a worker
    answers nonsense; what was stored before stays.
    """
    check(config)
    check_scalable(config)
    config = _seen_from_anywhere(config)
    jobs = [GroupJob(config, run_id, seed) for seed in config.rollout.seeds.seeds()]
    played: dict[int, list[Episode]] = {}
    with TraceStore.open(config.rollout.trace_db) as store:
        store.write_run(run_id, command, config.model_dump(mode="json"))
        for attempt in range(config.scale.tries):
            lost: dict[GroupJob, str] = {}
            for job, answer in executor.play([job for job in jobs if job.seed not in played]):
                if isinstance(answer, WorkerLost):
                    lost[job] = answer.cause
                    continue
                played[job.seed] = _stored(store, job, answer)
                for episode in played[job.seed]:
                    progress(episode)
            if not lost:
                return [episode for job in jobs for episode in played[job.seed]]
            if attempt + 1 < config.scale.tries:
                time.sleep(PAUSE_S)
    raise _still_lost(lost, config.scale.tries)


def _still_lost(lost: Mapping[GroupJob, str], tries: int) -> TaskAppError:
    names = [job.group_id for job in lost]
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    cause = next(iter(lost.values()))
    return TaskAppError(f"{len(lost)} groups lost their worker {tries} times and were not stored ({listed}): {cause}")


def _stored(store: TraceStore, job: GroupJob, answer: str) -> list[Episode]:
    try:
        episodes = read_group(answer, job)
    except (ValueError, KeyError, TypeError) as error:
        raise TaskAppError(f"group {job.group_id}: its worker's answer cannot be read: {error}") from error
    store.write_episodes(episodes)
    return episodes


def _seen_from_anywhere(config: Config) -> Config:
    """The same with the path a worker reads made absolute: its working directory is another."""
    replay = config.policy.replay_db
    if replay is None:
        return config
    return config.model_copy(update={"policy": config.policy.model_copy(update={"replay_db": Path(replay).resolve()})})
