"""Every TOML in configs does what its first comment says, with its size cut down by overrides."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from task_app.config import Config, load_config
from task_app.runs import evaluate_beside_random
from task_app.wiring import check

BASIC = Path(__file__).parents[2] / "configs/basic"
TRAIN = BASIC.parent / "train"
SHIPPED = sorted([*BASIC.glob("*.toml"), *TRAIN.glob("*.toml")])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_key_has_a_comment_and_the_file_is_legal(path):
    check(load_config(path))
    keys = [line for line in path.read_text().splitlines() if re.match(r"\w+ = ", line)]
    assert keys
    for line in keys:
        assert re.search(r"#\s*\S", line) or line.startswith("type"), f"{path.name}: no comment in {line!r}"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_defaults_in_brackets_are_the_defaults(path):
    """`key = value  # what it does  [default]`, per section; checked against the models."""
    defaults = Config().model_dump(mode="json")
    defaults["task"]["options"] = check(Config()).options.model_dump(mode="json")
    section: list[str] = []
    checked = 0
    for line in path.read_text().splitlines():
        if header := re.match(r"\[([\w.]+)\]", line):
            section = header[1].split(".")
        found = re.match(r"(?:# )?(\w+) = .*\[(.+)\]\s*$", line)
        if not found:
            continue
        where = defaults
        for part in section:
            where = where[part]
        expected = json.loads(found[2])
        actual = _default_of(where, found[1])
        assert actual == expected, f"{path.name}: {line}"
        checked += 1
    assert checked > 5


def _default_of(section: dict, key: str) -> object:
    value = section[key]
    if isinstance(value, dict) and set(value) == {"start", "stop"}:
        return f"{value['start']}:{value['stop']}"
    if value is None and (key.startswith("step_rewards") or key == "event_rewards_kind"):
        flags = Config().step_rewards
        short = {"step_rewards_enabled": True, "step_rewards_mode": flags.mode, "event_rewards_kind": flags.kind}
        short |= {"step_rewards_indicator_lambda": flags.indicator_lambda, "step_rewards_beta": flags.beta}
        return (short | {"step_rewards_horizon": flags.horizon})[key]
    return value


def test_eval_config_scores_beside_random(tmp_path):
    small = {"eval.seeds": "1000000:1000002", "rollout.max_decisions": 5, "rollout.trace_db": str(tmp_path / "t.db")}
    scores = evaluate_beside_random(load_config(BASIC / "crafter_eval.toml", small), progress=lambda episode: None)
    assert [score.policy for score in scores] == ["expert", "random"]
    assert all(score.outcome.n == 2 and score.failed == 0 for score in scores)


def test_rl_config_trains_and_reports(tmp_path):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    from task_app.train.launch import train_config

    small = {
        "training.updates": 2,
        "training.groups_per_update": 2,
        "rollout.group_size": 4,
        "rollout.max_decisions": 10,
        "eval.seeds": "1000000:1000002",
        "rollout.trace_db": str(tmp_path / "t.db"),
        "training.run_dir": str(tmp_path / "run"),
    }
    lines: list[dict] = []
    config = load_config(BASIC / "crafter_rl.toml", small)
    result, report = train_config(config, progress=lines.append, note=lambda text: None)
    assert result.updates == 2
    sums = [line["reward/sum"] for line in lines if line["kind"] == "update"]
    assert len(sums) == 2
    assert any(total > 0 for total in sums), "stepwise rewards must reach the training log"
    page = (tmp_path / "run/report.html").read_text()
    assert list(report.held_out) == ["random", "before", "after"]
    assert page.count("<svg") == 4
    assert "random policy" in page


def test_imitation_config_teaches_and_reinforcement_goes_on_from_there(tmp_path):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    from task_app.train.launch import train_config, train_sft

    shared = {"eval.seeds": "1000000:1000002", "rollout.trace_db": str(tmp_path / "t.db"), "rollout.max_decisions": 5}
    small = {"episodes": 4, "steps": 3, "rounds": 1, "round_episodes": 2, "round_steps": 2}
    settings = {f"sft.teacher.{key}": value for key, value in small.items()} | {"sft.run_dir": str(tmp_path / "sft")}
    lines: list[dict] = []
    outcome = train_sft(load_config(BASIC / "crafter_imitation.toml", shared | settings), progress=lines.append)
    assert [line["episodes"] for line in lines if line["kind"] == "round"] == [4, 2]
    assert list(outcome.held_out) == ["random", "sft"]

    small = {"training.updates": 1, "training.groups_per_update": 1, "rollout.group_size": 2}
    folders = {"training.run_dir": str(tmp_path / "rl"), "training.init_from": str(tmp_path / "sft")}
    config = load_config(BASIC / "crafter_rl.toml", shared | small | folders)
    _, report = train_config(config, progress=lambda line: None, note=lambda text: None)
    assert list(report.held_out) == ["random", "sft", "after"]
    assert report.held_out["sft"].outcome == outcome.held_out["sft"].outcome
    page = (tmp_path / "rl/report.html").read_text()
    assert all(label in page for label in ("random policy", "held-out, sft", "held-out, after"))


@pytest.mark.parametrize(("name", "shape", "rank"), [("crafter_full", "qwen3", 0), ("crafter_lora", "llama", 16)])
def test_train_configs_train_a_model_given_by_its_path(tmp_path, name, shape, rank):
    pytest.importorskip("peft", reason="training needs the extra `train`")
    from safetensors.torch import load_file

    from task_app.train.launch import train_config
    from tests.train.tiny_models import write_model

    small = {
        "model.path": str(write_model(tmp_path / "model", shape, max_position_embeddings=16_384)),
        "model.device": "cpu",
        "model.threads": 1,
        "model.max_new_tokens": 4,
        "training.updates": 1,
        "training.groups_per_update": 1,
        "training.step_rewards_mode": "env_sparse",
        "rollout.group_size": 2,
        "rollout.max_decisions": 2,
        "eval.seeds": "1000000:1000001",
        "rollout.trace_db": str(tmp_path / "t.db"),
        "training.run_dir": str(tmp_path / "run"),
    }
    lines: list[dict] = []
    config = load_config(TRAIN / f"{name}.toml", small)
    result, _ = train_config(config, progress=lines.append, note=lambda text: None)
    assert config.model.dtype == "bfloat16"
    assert config.model.lora_rank == rank
    line = next(line for line in lines if line["kind"] == "update")
    assert line["train/merge_rate"] == 0.5
    assert line["mismatch/logp_max"] < 0.5, "bfloat16 differs a little, a leak by far more"
    weights = "adapter_model.safetensors" if rank else "model.safetensors"
    assert {str(value.dtype) for value in load_file(result.checkpoint / weights).values()} == {"torch.float32"}
