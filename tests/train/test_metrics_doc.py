"""docs/training_metrics.md against a real run's lines, the guards there are, and the keys they are set by."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from task_app.config.training import GuardsSection
from task_app.store import TraceStore
from task_app.train import guards
from task_app.train.grpo import run_training
from task_app.train.heartbeat import FILE
from task_app.train.layers import LAYERS
from task_app.train.metrics import MetricsLog

DOC = (Path(__file__).parents[2] / "docs/training_metrics.md").read_text(encoding="utf-8")


def first_column(header: str) -> list[str]:
    table = re.search(rf"^\| {header} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert table, header
    return [row.split("|")[1].strip().strip("`") for row in table[1].splitlines()]


@pytest.fixture(scope="module")
def run(config_in, line, tmp_path_factory):
    config = config_in(tmp_path_factory.mktemp("doc"), training__updates=3)
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, line, store)


def test_the_table_names_every_figure_of_an_update_and_no_other(run):
    named = [name.replace("<layer>", layer) for name in first_column("name")
             for layer in (LAYERS if "<layer>" in name else ("",))]  # fmt: skip
    assert len(named) == len(set(named))
    for line in MetricsLog(run.metrics).lines():
        if line["kind"] == "update":
            assert line.keys() - {"kind", "update"} == set(named)


def test_every_guard_and_each_of_its_keys_is_described():
    told = re.findall(r"^    (\w+)  +\S", guards.__doc__ or "", re.MULTILINE)
    assert first_column("guard") == told
    assert len(told) == 5
    for key in GuardsSection.model_fields:
        assert f"`{key}`" in DOC, key


def test_the_heartbeat_has_what_is_said(run):
    sentence = re.search(rf"{re.escape(FILE)}` is replaced as the work moves: (.*?)\.", DOC)
    assert sentence
    assert list(json.loads((run.run_dir / FILE).read_text())) == ["update", "phase", "status", "at", "pid", "host"]
    assert re.findall(r"`(\w+)`", sentence[1]) == ["update", "phase", "status", "at", "pid", "host"]
