"""metrics.jsonl: strict JSON, cutting back, and lines a kill cut short."""

import json

import pytest

from task_app.core.errors import TrainError
from task_app.train.metrics import MetricsLog, strict


def test_numbers_that_are_not_finite_become_null():
    assert strict({"a": float("nan"), "b": [1.0, float("inf")], 3: (None, "x")}) == {
        "a": None,
        "b": [1.0, None],
        "3": [None, "x"],
    }


def test_lines_are_strict_json(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.lines() == []
    line = log.append("update", 1, loss=float("nan"), seconds=2.0)
    assert line == {"kind": "update", "update": 1, "loss": None, "seconds": 2.0}
    assert json.loads(log.path.read_text()) == line


def test_cut_after_keeps_what_came_before(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append("start", 0)
    for update in (1, 2, 3):
        log.append("update", update)
    log.cut_after(2)
    assert [line["update"] for line in log.lines()] == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_last_line_cut_by_a_kill_is_left_out(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append("start", 0)
    with log.path.open("a") as file:
        file.write('{"kind": "upd')
    assert len(log.lines()) == 1
    log.cut_after(1)
    log.append("update", 2)
    assert len(log.lines()) == 2


def test_other_damage_is_named(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.path.write_text("not json\n{}\n")
    with pytest.raises(TrainError, match="line 1 is not JSON"):
        log.lines()
    for text in ("{}", "[]", '{"kind": "update"}'):
        log.path.write_text(text + "\n")
        with pytest.raises(TrainError, match="line 1 is no line of a run's log: it needs kind and update"):
            log.lines()


def test_a_log_without_its_beginning_is_not_gone_on_from(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(TrainError, match="does not say how its run started"):
        log.cut_after(1)
    log.append("update", 1)
    with pytest.raises(TrainError, match="does not say how its run started"):
        log.cut_after(1)
