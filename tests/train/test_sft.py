"""Imitation on the toy: it learns, stops, goes on after a kill to the same bits, and RL starts from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from task_app.core.errors import ConfigError, TrainError
from task_app.train.checkpoint import load_policy
from task_app.train.checkpoint_folder import find_checkpoint, read_state
from task_app.train.grpo import run_training
from task_app.train.sft import run_sft
from tests.train.test_sft_data import line


@pytest.fixture
def line_task(line_of):
    """The toy task; `line` is a line of data here."""
    return line_of()


@pytest.fixture
def data(tmp_path) -> Path:
    """Walk right at even places, left at odd ones; 40 lines."""
    path = tmp_path / "data.jsonl"
    moves = {0: ("right", "right"), 1: ("left",)}
    lines = []
    for number in range(40):
        one = line(*moves[number % 2])
        one["messages"][1]["content"] = f"place {number % 4}, turn {number % 3}"
        lines.append(json.dumps(one) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture
def config(config_in, tmp_path, data):
    def make(name: str = "sft", **changes):
        settings = {
            "sft.dataset": str(data),
            "sft.validation": str(data),
            "sft.epochs": 4,
            "sft.batch_rows": 8,
            "sft.learning_rate": 0.02,
            "sft.warmup_steps": 2,
            "sft.validate_every": 5,
            "sft.run_dir": str(tmp_path / name),
        }
        return config_in(tmp_path, **(settings | {key.replace("__", "."): value for key, value in changes.items()}))

    return make


def lines_of(config) -> list[dict]:
    """The log without what differs between machines."""
    text = (config.sft.run_dir / "metrics.jsonl").read_text()
    return [{k: v for k, v in json.loads(one).items() if k != "machine"} for one in text.splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(find_checkpoint(folder) / "model.safetensors")


def test_it_learns_what_was_said_and_says_how_sure_it_became(config, line_task):
    result = run_sft(config(), line_task)
    losses = [one["loss"] for one in lines_of(config()) if one["kind"] == "validation"]
    assert result.steps == 20
    assert losses[-1] < 0.5 * losses[0] < 0.5
    assert result.validation_loss == min(losses)
    assert 0 < result.entropy < 0.7
    assert read_state(result.checkpoint)["kind"] == "sft"


def test_the_same_command_gives_the_same_weights(config, line_task):
    run_sft(config("one"), line_task)
    run_sft(config("two"), line_task)
    assert lines_of(config("one")) == lines_of(config("two"))
    first, second = (weights(config(name).sft.run_dir) for name in ("one", "two"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("step", [3, 10, 16])
def test_killed_and_run_again_it_ends_the_same(config, line_task, step, monkeypatch):
    run_sft(config("whole"), line_task)

    class Killed(BaseException):
        pass

    def progress(entry):
        if entry["kind"] == "step" and entry["update"] == step:
            raise Killed

    with pytest.raises(Killed):
        run_sft(config("killed"), line_task, progress=progress)
    run_sft(config("killed"), line_task)
    assert lines_of(config("killed")) == lines_of(config("whole"))
    first, second = (weights(config(name).sft.run_dir) for name in ("whole", "killed"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_it_stops_when_validation_no_longer_improves(config, line_task, tmp_path):
    """Validation data that says the opposite gets worse with every step."""
    other = tmp_path / "other.jsonl"
    one = line("left")
    one["messages"][1]["content"] = "place 0, turn 0"
    other.write_text(json.dumps(one) + "\n")
    result = run_sft(config(sft__validation=str(other), sft__epochs=40, sft__patience=2), line_task)
    looks = [entry for entry in lines_of(config()) if entry["kind"] == "validation"]
    best = min(range(len(looks)), key=lambda index: looks[index]["loss"])
    assert len(looks) == best + 3
    assert result.steps < 200
    assert result.checkpoint.name == f"u{looks[best]['update']:06d}"


def test_reinforcement_starts_from_what_was_imitated(config, line_task, tmp_path):
    from task_app.store import TraceStore

    result = run_sft(config(), line_task)
    rl = config(training__init_from=str(config().sft.run_dir), training__learning_rate=1e-9, training__updates=1)
    with TraceStore.open(rl.rollout.trace_db) as store:
        run_training(rl, line_task, store)
    before, after = weights(config().sft.run_dir), weights(rl.training.run_dir)
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert load_policy(config().sft.run_dir, line_task).version == f"u{result.steps}"


def test_what_cannot_work_is_refused(config, line_task, line_of):
    with pytest.raises(ConfigError, match="sft needs a dataset"):
        run_sft(config().model_copy(update={"sft": config().sft.model_copy(update={"dataset": None})}), line_task)
    run_sft(config(), line_task)
    with pytest.raises(ConfigError, match="other settings: sft.learning_rate"):
        run_sft(config(sft__learning_rate=0.5), line_task)
    rl = config(training__init_from=str(config().sft.run_dir))
    with pytest.raises(TrainError, match="was trained with prompt_hash"):
        run_training(rl, line_of(words="pad"), store=None)  # type: ignore[arg-type]  # refused before it is used


def test_a_process_killed_hard_goes_on(config, line_task, tmp_path):
    """SIGKILL in the middle of a real process, then the same run here."""
    run_sft(config("whole"), line_task)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, pickle\n"
        "from tests.train.conftest import LineApp, LineOptions\n"
        "from task_app.core.task import TaskSpec\n"
        "from task_app.train.sft import run_sft\n"
        "config = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "def progress(entry):\n"
        "    if entry['update'] == 7: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_sft(config, TaskSpec(LineApp(), LineOptions()), progress=progress)\n"
    )
    import pickle

    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script), pickle.dumps(config("killed")).hex()],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr
    run_sft(config("killed"), line_task)
    assert lines_of(config("killed")) == lines_of(config("whole"))
