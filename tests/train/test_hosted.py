"""Training on a task app in another process: the same run as in one, and what happens when that app fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.core.wire import episode_bytes
from task_app.store import TraceStore
from task_app.train.grpo import TrainingResult, run_training
from task_app.wiring import check
from tests.train.hosted_runs import KEY, address, served_app, small_run, stored
from tests.train.test_grpo import last_weights, told

SHIPPED = Path(__file__).parents[2] / "configs/train/crafter_hosted.toml"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with served_app(tmp_path_factory.mktemp("app")) as running:
        yield running


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)


def train(config, progress=None) -> TrainingResult:
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, check(config), store, progress=progress)


def advantages(config):
    """By update, group and member, since ids differ."""
    sql = (
        "SELECT e.training_update, e.group_id, e.member, a.turn, a.advantage FROM advantages a "
        "JOIN episodes e ON e.id = a.episode ORDER BY 1, 2, 3, 4"
    )
    with TraceStore.open(config.rollout.trace_db, read_only=True) as store:
        return [tuple(row) for row in store.query(sql)]


def test_two_updates_on_an_app_elsewhere_are_those_of_one_process(app, tmp_path):
    here, there = small_run(tmp_path / "here"), small_run(tmp_path / "there", address(app))
    results = [train(config) for config in (here, there)]
    assert last_weights(results[0]) == last_weights(results[1])
    assert told(here, "start", "eval", "update") == told(there, "start", "eval", "update")
    played = [[episode_bytes(episode) for episode in stored(config)] for config in (here, there)]
    assert len(played[0]) == 2 * 4 + 2 * 8
    assert played[0] == played[1]
    assert advantages(here) == advantages(there)
    assert len({value for *_, value in advantages(here)}) > 2, "without differences nothing would have been learned"


def test_the_shipped_config_trains_from_the_command_line(app, tmp_path):
    small = {
        "training.updates": 1,
        "training.groups_per_update": 1,
        "rollout.group_size": 2,
        "rollout.max_decisions": 2,
        "eval.seeds": "1000000:1000001",
        "rollout.trace_db": tmp_path / "t.db",
        "training.run_dir": tmp_path / "run",
    }
    command = [sys.executable, "-m", "task_app", "train", "--type", "rl", "--json", "--task-url", address(app)]
    command += ["--config", str(SHIPPED), *(f"--{key}={value}" for key, value in small.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["after"]["n"] == 1
    assert KEY not in done.stdout + done.stderr
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        played = [e for e in store.episodes() if e.policy == "embedded"]
    assert {e.details["played_at"] for e in played} == {address(app)}
    assert len(played) == 1 * 2 + 2 * 1


def test_a_run_goes_on_elsewhere_where_it_began_here(app, tmp_path):
    whole, parts = small_run(tmp_path / "whole"), small_run(tmp_path / "parts", training__updates=1)
    expected = train(whole)
    train(parts)
    resumed = train(small_run(tmp_path / "parts", address(app)))
    assert last_weights(resumed) == last_weights(expected)
