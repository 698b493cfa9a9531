"""The driver against executors that lose workers, answer nonsense or refuse: what is stored, and how often."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from task_app import __version__
from task_app.config import Config, load_config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.core.wire import episode_bytes
from task_app.runs import play_config
from task_app.scale import GroupJob, WorkerLost, check_scalable, driver, play_group, play_scaled
from task_app.store import TraceStore


class Unreliable:
    """Plays here, but loses the first `losses[seed]` tries of a seed; answers come in reverse order."""

    def __init__(self, losses: dict[int, int]) -> None:
        self.losses = dict(losses)
        self.handed_out: list[int] = []

    def play(self, jobs: Sequence[GroupJob]) -> Iterator[tuple[GroupJob, str | WorkerLost]]:
        for job in reversed(jobs):
            self.handed_out.append(job.seed)
            answer = play_group(job.text())  # the worker may have played it all before it was lost
            if self.losses.get(job.seed, 0):
                self.losses[job.seed] -= 1
                yield job, WorkerLost("killed")
            else:
                yield job, answer


def config_of(db: Path, **changes: object) -> Config:
    small = {"policy.name": "expert", "rollout.seeds": "0:3", "rollout.group_size": 2, "rollout.max_decisions": 4,
             "scale.executor": "ray", "rollout.trace_db": str(db)}  # fmt: skip
    return load_config(None, small | changes)


def stored(db: Path) -> list[bytes]:
    with TraceStore.open(db, read_only=True) as store:
        return [episode_bytes(episode) for episode in store.episodes()]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(driver, "PAUSE_S", 0.0)


@pytest.mark.parametrize("policy", ["expert", "random"])
def test_lost_groups_are_played_again_and_every_episode_is_stored_once(tmp_path, policy):
    config = config_of(tmp_path / "spread.db", **{"policy.name": policy})
    workers = Unreliable({1: 2, 2: 1})
    seen = []
    episodes = play_scaled(config, workers, run_id="r", command="rollout", progress=seen.append)
    assert workers.handed_out == [2, 1, 0, 2, 1, 1]
    assert len(seen) == 6
    here = config.model_copy(
        update={"rollout": config.rollout.model_copy(update={"trace_db": tmp_path / "here.db"})},
    )
    expected = play_config(here, run_id="r", command="rollout", progress=lambda episode: None)
    assert [episode_bytes(e) for e in episodes] == [episode_bytes(e) for e in expected]
    assert [(e.group_id, e.member) for e in episodes] == [(e.group_id, e.member) for e in expected]
    assert stored(tmp_path / "spread.db") == stored(tmp_path / "here.db")


def test_a_group_that_stays_lost_fails_the_run_and_leaves_the_others_whole(tmp_path):
    config = config_of(tmp_path / "t.db")
    with pytest.raises(TaskAppError, match=r"1 groups lost their worker 3 times .*s0000000001.*: killed"):
        play_scaled(config, Unreliable({1: 9}), run_id="r", command="rollout", progress=lambda episode: None)
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        assert [(e.task.seed, e.member) for e in store.episodes()] == [(0, 0), (0, 1), (2, 0), (2, 1)]


class Says:
    """Answers the same to everything."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def play(self, jobs: Sequence[GroupJob]) -> Iterator[tuple[GroupJob, str | WorkerLost]]:
        for job in jobs:
            yield job, self.answer


@pytest.mark.parametrize("kind", ["not JSON", "half a group", "another seed"])
def test_an_answer_that_is_not_the_whole_group_is_refused_and_nothing_is_stored(tmp_path, kind):
    config = config_of(tmp_path / "t.db")
    whole = json.loads(play_group(GroupJob(config, "r", 1).text()))
    answer = {"not JSON": "{", "half a group": json.dumps(whole[:1]), "another seed": json.dumps(whole)}[kind]
    with pytest.raises(TaskAppError, match="group s0000000000: its worker's answer cannot be read"):
        play_scaled(config, Says(answer), run_id="r", command="rollout", progress=lambda episode: None)
    assert stored(tmp_path / "t.db") == []


def test_a_group_is_stored_in_one_go(tmp_path):
    config = config_of(tmp_path / "t.db")
    whole = json.loads(play_group(GroupJob(config, "r", 0).text()))
    whole[1]["episode_id"] = whole[0]["episode_id"]  # the second insert fails
    with pytest.raises(TaskAppError, match="was not written"):
        play_scaled(config, Says(json.dumps(whole)), run_id="r", command="rollout", progress=lambda episode: None)
    assert stored(tmp_path / "t.db") == []


def test_a_worker_of_another_version_says_so(tmp_path):
    job = json.loads(GroupJob(config_of(tmp_path / "t.db"), "r", 0).text())
    with pytest.raises(ConfigError, match=f"a worker has version {__version__}, this run needs 0.0.0"):
        play_group(json.dumps(job | {"version": "0.0.0"}))


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({"policy.name": "embedded"}, {}, "--executor inprocess"),
        ({"policy.name": "replay", "scale.executor": "modal"}, {}, "do not see"),
        ({}, {"base_url": "http://127.0.0.1:1"}, "--base-url plays in this process"),
        ({}, {"relabel": "expert"}, "--relabel plays in this process"),
    ],
)
def test_what_workers_cannot_play_is_refused_before_any_work(tmp_path, changes, given, said):
    with pytest.raises(ConfigError, match=said) as caught:
        check_scalable(config_of(tmp_path / "t.db", **changes), **given)
    assert caught.value.field == "scale.executor"
    check_scalable(config_of(tmp_path / "t.db", **(changes | {"scale.executor": "inprocess"})), **given)
