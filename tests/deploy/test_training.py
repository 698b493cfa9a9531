"""Training in a container: on the volume, resumed by another container, and refused for files that are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError
from task_app.deploy.deployment import RESOLVED, Deployment, needed_secrets
from task_app.deploy.training import train_on_volume
from task_app.store import TraceStore

SMALL = {
    "model.hidden_size": 16, "model.heads": 2, "model.kv_heads": 2, "model.intermediate_size": 16,
    "rollout.seeds": "0:16", "rollout.group_size": 2, "rollout.max_decisions": 2, "training.groups_per_update": 2,
    "training.checkpoint_every": 1, "eval.seeds": "1000000:1000001", "modal.gpu": "",
    "training.run_dir": "../somewhere/runs/mine", "sft.run_dir": "here/sft",
}  # fmt: skip


def deployment(**changes: object) -> Deployment:
    return Deployment.of(load_config(None, {**SMALL, **changes}))


class Volume:
    """Commits, and what they found."""

    def __init__(self, path: Path, stop_after: int | None = None) -> None:
        self.path, self.stop_after = path, stop_after
        self.commits = 0

    def commit(self) -> None:
        self.commits += 1
        if self.commits == self.stop_after:
            raise KeyboardInterrupt


def test_a_run_cut_short_goes_on_in_another_container_from_what_the_volume_holds(tmp_path):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    vol = tmp_path / "vol"
    said: list[str] = []
    wanted = deployment(**{"training.updates": 2})
    cut, local = Volume(vol, stop_after=3), tmp_path / "disk/t.db"
    with pytest.raises(KeyboardInterrupt):
        train_on_volume(wanted, "rl", cut.commit, say=said.append, local=local, volume=vol)
    local.write_text("another run of a container used before")
    resumed: list[str] = []
    volume = Volume(vol)
    done = train_on_volume(wanted, "rl", volume.commit, say=resumed.append, local=local, volume=vol)
    assert (done["updates"], done["run_dir"]) == (2, str(vol / "runs/mine"))
    assert volume.commits >= 2
    lines = [json.loads(line) for line in resumed if line.startswith("{")]
    assert "resume" in [line["kind"] for line in lines]
    assert [line["update"] for line in lines if line["kind"] == "update"][-1] == 2
    assert resumed[0].startswith("going on with the episodes")
    with TraceStore.open(vol / "runs/mine/traces.db", read_only=True) as store:
        updates = {episode.update for episode in store.episodes(run_id=done["run_id"])}
    assert updates == {1, 2}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sft.dataset": "data.jsonl"}, "sft.dataset"),
        ({"sft.validation": "/data.jsonl"}, "sft.validation"),
        ({"training.init_from": "runs/other"}, "training.init_from"),
        ({"model.path": "/models/small"}, "model.path"),
    ],
)
def test_files_of_the_machine_that_deployed_are_refused_before_any_work(tmp_path, changes, field):
    wanted = deployment(**changes)
    described: Any = wanted.describe()
    assert described["functions"]["train"]["refused"].startswith(field)
    with pytest.raises(ConfigError, match="modal volume put") as caught:
        train_on_volume(wanted, "rl", lambda: None, local=tmp_path / "t.db")
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_files_on_the_volume_and_names_of_models_are_taken():
    on_volume = {"sft.dataset": "/vol/data.jsonl", "training.init_from": "/vol/runs/sft", "model.path": "/vol/qwen"}
    config = deployment(**on_volume).for_training(Path("t.db"))
    assert str(config.sft.dataset) == "/vol/data.jsonl"
    assert deployment(**{"model.path": "Qwen/Qwen3-0.6B"}).for_training(Path("t.db")).model.path == "Qwen/Qwen3-0.6B"


def test_a_gpu_is_used_where_there_is_one_and_another_kind_is_refused(tmp_path):
    assert deployment(**{"modal.gpu": "L4"}).for_training(Path("t.db")).model.device == "cuda"
    assert deployment().for_training(Path("t.db")).model.device == "cpu"
    with pytest.raises(ConfigError, match="kind must be 'rl' or 'sft', got 'ppo'"):
        train_on_volume(deployment(), "ppo", lambda: None, local=tmp_path / "t.db")


def test_a_config_survives_the_way_into_a_container():
    config = load_config(Path("configs/basic/crafter_rl.toml"), {"algorithm.type": "grpo", "prices.m.input": 1.0})
    here = Deployment.of(config)
    assert Deployment.from_environ({RESOLVED: here.container_variables[RESOLVED]}).config == config


def test_the_keys_an_app_needs_are_its_own_and_that_of_its_policys_endpoint():
    chat = {"policy.name": "chat", "policy.model": "m", "policy.inference_url": "https://api.openai.com/v1"}
    assert needed_secrets(load_config()) == ["ENVIRONMENT_API_KEY"]
    assert needed_secrets(load_config(None, chat)) == ["ENVIRONMENT_API_KEY", "OPENAI_API_KEY"]
    assert needed_secrets(load_config(None, chat | {"policy.api_key_env": "MINE"}))[1:] == ["MINE"]
    assert needed_secrets(load_config(None, chat | {"policy.inference_url": "http://10.0.0.1/v1"}))[1:] == []


@pytest.mark.parametrize("text", ["{", "[1]", "modal.gpu=H100"])
def test_overrides_that_are_no_json_object_are_refused(text):
    with pytest.raises(ConfigError, match="TASK_APP_OVERRIDES must be a JSON object"):
        Deployment.from_environ({"TASK_APP_OVERRIDES": text})
