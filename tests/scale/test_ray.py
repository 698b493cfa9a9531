"""A local Ray cluster of two worker processes: the episodes of one process, also when a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from task_app.config import Config, load_config
from task_app.core.errors import ConfigError
from task_app.core.types import Episode
from task_app.core.wire import episode_bytes
from task_app.runs import play_config
from task_app.scale import GroupJob, WorkerLost, driver, play_scaled
from task_app.scale.on_ray import RayExecutor, ray_executor
from task_app.store import TraceStore

pytest.importorskip("ray", reason="needs the extra `ray`")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayExecutor]:
    settings = load_config(None, {"scale.executor": "ray", "scale.workers": 2}).scale
    with ray_executor(settings) as executor:
        yield executor


def config_of(db: Path, groups: int = 6, **changes: object) -> Config:
    small = {"policy.name": "expert", "rollout.seeds": f"0:{groups}", "rollout.group_size": 2,
             "rollout.max_decisions": 20, "scale.executor": "ray", "rollout.trace_db": str(db)}  # fmt: skip
    return load_config(None, small | changes)


def workers_at_work() -> list[int]:
    """Process ids of the workers of this process's own cluster that play a group just now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::play_group") and os.getpid() in ancestors(int(folder.name)):
            found.append(int(folder.name))
    return found


def ancestors(pid: int) -> list[int]:
    above = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        above.append(pid)
    return above


class Counting:
    """The cluster, noting what was handed out and which workers were lost."""

    def __init__(self, cluster: RayExecutor) -> None:
        self.cluster = cluster
        self.handed_out: list[int] = []
        self.lost: list[str] = []

    def play(self, jobs: Sequence[GroupJob]) -> Iterator[tuple[GroupJob, str | WorkerLost]]:
        self.handed_out += [job.seed for job in jobs]
        for job, answer in self.cluster.play(jobs):
            if isinstance(answer, WorkerLost):
                self.lost.append(answer.cause)
            yield job, answer


def test_a_killed_workers_groups_are_played_again_and_all_are_those_of_one_process(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "PAUSE_S", 0.1)
    config = config_of(tmp_path / "ray.db", groups=8)
    workers, killed = Counting(cluster), []

    def kill_one(episode: Episode) -> None:
        if not killed and (at_work := workers_at_work()):
            killed.append(at_work[0])
            os.kill(at_work[0], signal.SIGKILL)

    episodes = play_scaled(config, workers, run_id="r", command="rollout", progress=kill_one)
    assert len(killed) == 1
    assert len(workers.lost) >= 1
    assert len(workers.handed_out) == 8 + len(workers.lost)

    rollout = config.rollout.model_copy(update={"trace_db": tmp_path / "here.db"})
    here = config.model_copy(update={"rollout": rollout})
    expected = play_config(here, run_id="r", command="rollout", progress=lambda episode: None)
    assert [episode_bytes(e) for e in episodes] == [episode_bytes(e) for e in expected]
    with TraceStore.open(tmp_path / "ray.db", read_only=True) as store:
        assert [e.episode_id for e in store.episodes()] == [e.episode_id for e in episodes]


def test_what_a_worker_refuses_on_purpose_is_said_here(cluster, tmp_path):
    config = config_of(tmp_path / "t.db", groups=1, **{"policy.name": "chat"})  # only a worker makes the policy
    with pytest.raises(ConfigError, match="policy 'chat' needs model"):
        play_scaled(config, cluster, run_id="r", command="rollout", progress=lambda episode: None)


def test_replayed_databases_are_found_by_workers_elsewhere(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded = config_of(Path("a.db"), groups=1, **{"rollout.group_size": 1})
    before = play_config(recorded, run_id="r", command="rollout", progress=lambda episode: None)
    changes = {"policy.name": "replay", "policy.replay_db": "a.db", "rollout.group_size": 1}
    again = play_scaled(
        config_of(Path("b.db"), groups=1, **changes), cluster, run_id="r", command="rollout", progress=lambda e: None
    )
    assert [e.event_counts for e in again] == [e.event_counts for e in before]
