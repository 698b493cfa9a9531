"""Killed with SIGKILL at any point, the same command again ends in the run that nothing disturbed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.core.errors import ConfigError, TrainError
from task_app.core.wire import episode_bytes
from task_app.store import TraceStore
from task_app.train import learner
from task_app.train.checkpoint_folder import checkpoints, find_checkpoint, latest_checkpoint
from task_app.train.grpo import run_training
from task_app.train.lock import run_lock
from task_app.train.metrics import MetricsLog
from task_app.train.sft import run_sft
from tests.train import killed_runs
from tests.train.killed_runs import POINTS, UNDISTURBED, config_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every run of `killed_runs`, in a folder named after its point."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, killed_runs.__file__, str(folder), UNDISTURBED, *POINTS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def told(folder, point):
    """The log without times and without the lines that say it was resumed."""
    lines = MetricsLog(folder / point / "run/metrics.jsonl").lines()
    return [{k: v for k, v in line.items() if k != "machine"} for line in lines if line["kind"] != "resume"]


def recorded(folder, point):
    """All that is in force in the database: episodes, with their advantages, by run kind and place."""
    with TraceStore.open(config_of(folder, point).rollout.trace_db, read_only=True) as store:
        rows = []
        for episode in store.episodes():
            kind = episode.run_id.split("-", 2)[2:]
            place = (kind, episode.update, episode.group_id, episode.member)
            rows.append((place, episode_bytes(episode), store.advantages(episode.episode_id)))
        (extra,) = store.query("SELECT count(*) FROM advantages JOIN episodes ON id = episode WHERE superseded")
    assert extra[0] == 0, "advantages of superseded episodes must not stay"
    return sorted(rows, key=lambda row: row[0])


def weights(folder, point):
    latest = latest_checkpoint(folder / point / "run/checkpoints")
    assert latest is not None
    return (latest / "model.safetensors").read_bytes(), (latest / "optimizer.pt").read_bytes()


def names(folder, point):
    kept = folder / point / "run/checkpoints"
    best = find_checkpoint(kept).name
    return [path.name for path in checkpoints(kept)], best


def test_there_are_ten_points_and_more(folder):
    assert len(POINTS) >= 10
    lines = told(folder, UNDISTURBED)
    assert [(line["kind"], line["update"]) for line in lines] == [
        ("start", 0), ("eval", 0), ("update", 1), ("update", 2), ("update", 3), ("eval", 3), ("update", 4),
        ("update", 5), ("eval", 5),
    ]  # fmt: skip
    assert len(recorded(folder, UNDISTURBED)) == 5 * 16 + 3 * 2 * 6


@pytest.mark.parametrize("point", POINTS)
def test_killed_there_it_ends_the_same(folder, point):
    assert told(folder, point) == told(folder, UNDISTURBED)
    assert weights(folder, point) == weights(folder, UNDISTURBED)
    assert recorded(folder, point) == recorded(folder, UNDISTURBED)
    assert names(folder, point)[1] == names(folder, UNDISTURBED)[1]
    run = folder / point / "run"
    assert not (run / "lock").exists()
    assert not list((run / "checkpoints").glob(".removed-*"))


def test_a_second_process_is_refused(config_in, line, tmp_path):
    config = config_in(tmp_path)
    with (
        run_lock(config.training.run_dir),
        TraceStore.open(config.rollout.trace_db) as store,
        pytest.raises(TrainError, match=f"process {os.getpid()} is training in"),
    ):
        run_training(config, line, store)
    assert not (config.training.run_dir / "metrics.jsonl").exists()


def train(config, spec):
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store)


def test_named_keys_may_change_and_are_told(config_in, line, tmp_path):
    train(config_in(tmp_path), line)
    changes = {"training__updates": 4, "training__learning_rate": 0.5, "training__credit__gamma": 0.9}
    with pytest.raises(ConfigError, match=r"settings: training\.credit\.gamma; use .* training\.allow_changed"):
        train(config_in(tmp_path, **changes, training__allow_changed=["training.learning_rate"]), line)
    allowed = ["training.learning_rate", "training.credit.gamma"]
    result = train(config_in(tmp_path, **changes, training__allow_changed=allowed), line)
    lines = MetricsLog(result.metrics).lines()
    resumed = next(entry for entry in lines if entry["kind"] == "resume")
    assert resumed["changed"]["training.learning_rate"] == [0.01, 0.5]
    assert resumed["changed"]["training.credit.gamma"] == [1.0, 0.9]
    assert [entry["train/learning_rate"] for entry in lines if entry["kind"] == "update"] == [0.01] * 3 + [0.5]


def test_only_the_newest_and_the_best_checkpoints_stay(config_in, line, tmp_path):
    config = config_in(
        tmp_path, training__updates=6, training__checkpoint_every=1, training__keep_checkpoints=2, eval__every=2
    )
    result = train(config, line)
    folder = config.training.run_dir / "checkpoints"
    scores = {entry["update"]: entry["mean"] for entry in MetricsLog(result.metrics).lines() if entry["kind"] == "eval"}
    assert sorted(scores) == [0, 2, 4, 6]
    best = min(update for update, mean in scores.items() if mean == max(scores.values()))
    assert find_checkpoint(folder).name == f"u{best:06d}"
    assert {path.name for path in checkpoints(folder)} == {f"u{best:06d}", "u000005", "u000006"}


@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_what_is_not_finite_stops_and_is_dumped(config_in, line, tmp_path, monkeypatch, fault):
    config = config_in(tmp_path, training__checkpoint_every=1)
    backward, calls = learner.Learner._backward, []

    def broken(self, *arguments):
        result = backward(self, *arguments)
        calls.append(arguments)
        if len(calls) == 2 and fault == "loss":
            arguments[-1]._sums["loss"] = float("nan")
        elif len(calls) == 2:
            self._network.parameters()[0].grad.fill_(float("inf"))
        return result

    with monkeypatch.context() as patched:
        patched.setattr(learner.Learner, "_backward", broken)
        with pytest.raises(TrainError, match=rf"update 2 stopped: the {fault}.*bad_batch-u000002\.json"):
            train(config, line)
    dump = json.loads((config.training.run_dir / "bad_batch-u000002.json").read_text())
    assert (dump["update"], len(dump["episodes"])) == (2, 16)
    with TraceStore.open(config.rollout.trace_db) as store:
        for entry in dump["episodes"]:
            stored = store.episode(entry["episode_id"])
            assert [d["turn"] for d in entry["decisions"]] == [d.turn for d in stored.decisions]
            for decision, kept in zip(entry["decisions"], stored.decisions, strict=True):
                assert kept.completion.tokens is not None
                assert tuple(decision["logprobs"]) == kept.completion.tokens.logprobs
                assert isinstance(decision["advantage"], float)
            assert store.advantages(entry["episode_id"]) == {}
    latest = latest_checkpoint(config.training.run_dir / "checkpoints")
    assert latest is not None
    assert latest.name == "u000001"
    whole = train(config_in(tmp_path / "whole", training__checkpoint_every=1), line)
    again = train(config, line)
    assert (again.checkpoint / "model.safetensors").read_bytes() == (
        whole.checkpoint / "model.safetensors"
    ).read_bytes()


def test_a_supervised_run_is_locked_too(config_in, line, tmp_path):
    say = line.app.say(["right"])
    row = {"messages": [{"role": "user", "content": "place 0"}, say.to_wire()]}
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps(row) + "\n")
    config = config_in(tmp_path, sft__dataset=str(data), sft__run_dir=str(tmp_path / "sft"))
    with run_lock(config.sft.run_dir), pytest.raises(TrainError, match="is training in"):
        run_sft(config, line)
    assert run_sft(config, line).steps > 0


def test_the_comparison_would_see_what_a_resume_forgets(config_in, line, tmp_path, monkeypatch):
    """Left in force, the episodes of a partial update would be trained on twice."""

    class Killed(BaseException):
        pass

    def stop(*arguments, **named):
        raise Killed

    config = config_in(tmp_path, training__checkpoint_every=2)
    with monkeypatch.context() as patched:
        patched.setattr(learner.Learner, "update", stop)
        with pytest.raises(Killed):
            train(config, line)
    monkeypatch.setattr(TraceStore, "supersede", lambda self, run_id, from_update: 0)
    with pytest.raises(TrainError, match="members 0, 0, 1, 1"):
        train(config, line)
