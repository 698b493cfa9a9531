"""The running baseline: what it means, when it changes, and that a checkpoint keeps it exactly."""

import json

import pytest

from task_app.credit import CreditSettings, GroupRewards, RunningBaseline

SETTINGS = CreditSettings(gamma=0.5)


def batch(*rewards, task="task"):
    return [GroupRewards("g", task, tuple(tuple(row) for row in rewards))]


def test_zero_before_the_first_batch_then_its_mean_then_decayed():
    baseline = RunningBaseline()
    assert baseline.value("task", 1, SETTINGS) == 0.0
    baseline.update(batch([2.0, 2.0], [0.0]), SETTINGS)
    assert baseline.value("task", 1, SETTINGS) == 1.5  # returns-to-go 3 and 0
    assert baseline.value("task", 2, SETTINGS) == 2.0  # one member is alive
    baseline.update(batch([0.0], [1.0]), SETTINGS)
    assert baseline.value("task", 1, SETTINGS) == pytest.approx(0.9 * 1.5 + 0.1 * 0.5)
    assert baseline.value("task", 2, SETTINGS) == 2.0  # nobody reached turn 2: nothing learned of it


def test_tasks_gammas_and_modes_are_kept_apart():
    baseline = RunningBaseline()
    baseline.update(batch([2.0]), SETTINGS)
    assert baseline.value("other", 1, SETTINGS) == 0.0
    assert baseline.value("task", 1, CreditSettings(gamma=1.0)) == 0.0
    assert baseline.value("task", 1, CreditSettings(gamma=0.5, mode="env_sparse")) == 0.0
    assert baseline.value("task", 1, SETTINGS) == 2.0


def test_survives_json_bit_for_bit():
    baseline = RunningBaseline()
    baseline.update(batch([0.1, 0.7], [1 / 3]), SETTINGS)
    baseline.update(batch([0.3]), SETTINGS)
    restored = RunningBaseline.from_dict(json.loads(json.dumps(baseline.to_dict())))
    assert restored.to_dict() == baseline.to_dict()
    assert restored.value("task", 1, SETTINGS) == baseline.value("task", 1, SETTINGS)


def test_means_of_another_decay_are_refused():
    with pytest.raises(ValueError, match="decay 0.5"):
        RunningBaseline.from_dict({"decay": 0.5, "means": []})
