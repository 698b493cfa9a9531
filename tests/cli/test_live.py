"""The live view: a picture of the log's lines, the same from the file as while it goes on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from task_app.cli.live import picture, sparkline


def update(number: int, **more: Any) -> dict[str, Any]:
    seconds = {"sampling": 6.0, "training": 3.0, "total": 10.0}
    line = {"kind": "update", "update": number, "outcome/mean": float(number), "reward/sum": 10.0 * number,
            "policy/entropy": 1.5, "guard/findings": [], "machine": {"seconds": seconds}}  # fmt: skip
    return line | more


def evaluation(number: int, mean: float | None) -> dict[str, Any]:
    return {"kind": "eval", "update": number, "mean": mean, "machine": {"seconds": {"total": 10.0}}}


def shown(lines: list[dict[str, Any]], updates: int = 4) -> str:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(picture(lines, updates))
    return console.export_text()


def test_a_run_under_way():
    finding = {"guard": "collapse", "level": "warn", "text": "collapse: nothing to learn from"}
    lines = [evaluation(0, 1.25), update(1), update(2, **{"guard/findings": [finding]})]
    text = shown(lines)
    rows = {row.split()[0]: row for row in text.splitlines()}
    assert rows["update"].split()[1] == "2/4"
    assert rows["update"].count("█") == rows["update"].count("░") == 15
    assert rows["outcome"].split()[1:] == ["2.00", "▁█"]
    assert rows["Σr"].split()[1:] == ["20.00", "▁█"]
    assert rows["entropy"].split()[1:] == ["1.50", "▁▁"]
    assert "1.25 after 0" in rows["held"]
    # 12 sampling, 6 training, 2 that no clock covered, 10 evaluating
    assert "30 s: sampling 40% · evaluation 33% · training 20% · other 7%" in rows["time"]
    assert "collapse: nothing to learn from" in text


def test_before_anything_and_with_nothing_measured():
    assert "guards: no update yet" in shown([])
    assert "0/4" in shown([{"kind": "start", "update": 0}])
    text = shown([update(1, **{"outcome/mean": None, "policy/entropy": None}), evaluation(1, None)])
    assert "guards: nothing found" in text
    assert "– after 1" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0, 1.0], "▁▁"),
        ([0.0, None, 7.0], "▁·█"),
        ([None, None], "··"),
        ([float(step) for step in range(8)], "▁▂▃▄▅▆▇█"),
    ],
)
def test_sparkline(values, expected):
    assert sparkline(values) == expected


def test_a_long_run_shows_its_last_updates():
    assert sparkline([100.0, *map(float, range(8))], width=8) == "▁▂▃▄▅▆▇█"


def test_the_picture_of_a_real_run_needs_nothing_but_its_lines(tmp_path):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    from task_app.core.task import TaskSpec
    from task_app.store import TraceStore
    from task_app.train.grpo import run_training
    from task_app.train.metrics import MetricsLog
    from tests.train.conftest import LineApp, LineOptions, make_config

    config = make_config(tmp_path, training__updates=2)
    with TraceStore.open(config.rollout.trace_db) as store:
        result = run_training(config, TaskSpec(LineApp(), LineOptions()), store)
    text = shown(MetricsLog(result.metrics).lines(), 2)
    assert "2/2" in text
    assert f"{result.after['mean']:.2f} after 2" in text
