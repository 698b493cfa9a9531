"""Trackers against modules that speak the documented calls; none is imported unasked, and none can stop a run."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from task_app.config.training import TrackingSection
from task_app.core.errors import ConfigError
from task_app.store import TraceStore
from task_app.train.grpo import run_training
from task_app.train.plan import check_config
from task_app.train.tracker import SafeTracker, check_tracking, make_trackers, numbers

WANDB = """
import json, os

def _told(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")

class Run:
    def define_metric(self, name, step_metric=None):
        _told("define_metric", name, step_metric)
    def log(self, data, step=None, commit=None):
        _told("log", data, step)
    def finish(self, exit_code=None, quiet=None):
        _told("finish", exit_code)

def init(entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None, mode=None,
         resume=None):
    _told("init", project, dir, id, name, config, mode, resume)
    return Run()
"""

TRACKIO = """
import json, os

def _told(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")

def init(project, name=None, group=None, space_id=None, config=None, resume="never"):
    assert resume in ("never", "allow", "must")
    _told("init", project, name, space_id, config, resume)

def log(metrics, step=None):
    _told("log", metrics, step)

def finish():
    _told("finish")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Install a module that writes down each call; returns a reader of the calls."""

    def install(name: str, source: str):
        folder = tmp_path / "fakes"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
        return lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    yield install
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


LINE = {
    "kind": "update",
    "update": 4,
    "reward/sum": 3,
    "reward/mode": "off",
    "reward/by_turn": [1, 2],
    "train/loss": None,
    "machine": {"seconds": {"total": 2.5}, "peak_rss_mb": 100.0},
}
NUMBERS = {"reward/sum": 3.0, "machine/seconds/total": 2.5, "machine/peak_rss_mb": 100.0}


def test_numbers_of_a_line():
    assert numbers(LINE) == NUMBERS
    assert numbers({"kind": "eval", "update": 4, "mean": 1.5, "low": None}) == {"eval/mean": 1.5}


@pytest.mark.parametrize(("mode", "resume"), [("offline", None), ("online", "allow")])
def test_wandb_gets_its_documented_calls(fake, tmp_path, mode, resume):
    calls = fake("wandb", WANDB)
    settings = TrackingSection(wandb=True, wandb_mode=mode, project="p")
    (tracker,) = make_trackers(settings, "train-1", tmp_path)
    tracker.start({"seed": 3})
    tracker.log(LINE)
    tracker.finish("collapsed")
    assert calls() == [
        ["init", "p", str(tmp_path), "train-1", "train-1", {"seed": 3}, mode, resume],
        ["define_metric", "update", None],
        ["define_metric", "*", "update"],
        ["log", {"update": 4, **NUMBERS}, None],
        ["finish", 1],
    ]


def test_trackio_gets_its_documented_calls(fake, tmp_path):
    calls = fake("trackio", TRACKIO)
    (tracker,) = make_trackers(TrackingSection(trackio=True), "train-1", tmp_path)
    tracker.start({"seed": 3})
    tracker.log(LINE)
    tracker.log({"kind": "start", "update": 0, "task": "line"})
    tracker.finish("done")
    assert calls() == [
        ["init", "task-app", "train-1", None, {"seed": 3}, "allow"],
        ["log", NUMBERS, 4],
        ["finish"],
    ]


def test_both_follow_a_real_run(fake, config_in, line, tmp_path):
    fake("trackio", TRACKIO)
    calls = fake("wandb", WANDB)
    config = config_in(tmp_path, training__updates=1, tracking__wandb=True, tracking__trackio=True)
    with TraceStore.open(config.rollout.trace_db) as store:
        result = run_training(config, line, store)
    told = calls()
    assert [call[0] for call in told].count("init") == 2
    assert [call for call in told if call[0] == "finish"] == [["finish", 0], ["finish"]]
    written = [json.loads(text) for text in result.metrics.read_text().splitlines()]
    (update,) = [entry for entry in written if entry["kind"] == "update"]
    logged = [call[1] for call in told if call[0] == "log" and call[2] == 1 and "reward/sum" in call[1]]
    assert logged == [numbers(update)]
    assert {call[1]["eval/mean"] for call in told if call[0] == "log" and "eval/mean" in call[1]} == {
        entry["mean"] for entry in written if entry["kind"] == "eval"
    }


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_a_tracker_that_fails_warns_once_and_stops_nothing(fake, config_in, line, tmp_path, caplog, broken):
    source = TRACKIO.replace(f'    _told("{broken}"', f'    raise OSError("no {broken}")\n    _told("{broken}"')
    assert source != TRACKIO
    fake("trackio", source)
    config = config_in(tmp_path, training__updates=2, tracking__trackio=True)
    with TraceStore.open(config.rollout.trace_db) as store:
        assert run_training(config, line, store).updates == 2
    said = [record.message for record in caplog.records if "trackio" in record.message]
    assert len(said) == 1
    assert f"OSError: no {broken}" in said[0]


def test_what_a_tracker_prints_is_kept_out_of_the_output(fake, tmp_path, capfd):
    fake("trackio", TRACKIO.replace('    _told("init"', '    print("a greeting")\n    _told("init"'))
    (tracker,) = make_trackers(TrackingSection(trackio=True), "train-1", tmp_path)
    tracker.start({})
    print("{}")
    assert capfd.readouterr() == ("{}\n", "a greeting\n")


def test_an_unprotected_tracker_would_stop_it():
    class Failing:
        name = "failing"

        def start(self, config):
            raise OSError("disk")

        def log(self, line):
            raise OSError("disk")

        def finish(self, status):
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        Failing().log({})
    SafeTracker(Failing()).log({})


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused_before_work(config_in, tmp_path, monkeypatch, name):
    monkeypatch.setattr("task_app.train.tracker.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"install the extra crafter-task-app\[{name}\]") as caught:
        check_config(config_in(tmp_path, **{f"tracking__{name}": True}))
    assert caught.value.field == f"tracking.{name}"
    check_tracking(TrackingSection())


def test_nothing_is_imported_unasked(tmp_path):
    """In a process of its own, with packages that would fail to import."""
    for name in ("wandb", "trackio"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    program = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from pathlib import Path
        from task_app.config.training import TrackingSection
        from task_app.train.tracker import check_tracking, make_trackers
        assert make_trackers(TrackingSection(), "r", Path()) == []
        check_tracking(TrackingSection(wandb=True, trackio=True))
        make_trackers(TrackingSection(wandb=True, trackio=True), "r", Path())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
