"""Training on a task app in another process: the same run as in one, and what happens when that app fails."""

from __future__ import annotations

import pytest

from task_app.core.wire import episode_bytes
from task_app.store import TraceStore
from task_app.train.grpo import TrainingResult, run_training
from task_app.wiring import check
from tests.train.hosted_runs import KEY, address, served_app, small_run, stored
from tests.train.test_grpo import last_weights, told


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
    sql = (
        "SELECT e.training_update, e.group_id, e.member, a.* FROM advantages a JOIN episodes e USING (episode_id) "
        "ORDER BY 1, 2, 3"
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
