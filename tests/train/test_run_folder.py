"""Which run may go on in a folder, whatever its kind."""

from __future__ import annotations

import json

import pytest

from task_app.core.errors import ConfigError, TrainError
from task_app.train.checkpoint_folder import FORMAT, CheckpointState
from task_app.train.plan import config_json
from task_app.train.run_folder import baseline_of, checkpoints_of, resumable, write_settings


@pytest.fixture
def holding(tmp_path):
    """Make `tmp_path` hold a checkpoint that says what is given."""

    def make(**state):
        folder = checkpoints_of(tmp_path) / "u000002"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "latest").write_text("u000002\n")
        whole = {"format": FORMAT, "kind": "rl", "update": 2, "run_id": "r", "baseline": {}, "config": {}} | state
        (folder / "state.json").write_text(json.dumps({key: item for key, item in whole.items() if item is not None}))
        return tmp_path

    return make


def test_an_empty_folder_begins(tmp_path, config_in):
    assert resumable(tmp_path, "rl", config_json(config_in(tmp_path))) is None


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_the_same_settings_go_on_and_others_do_not(holding, config_in, tmp_path, kind):
    same = config_json(config_in(tmp_path))
    run_dir = holding(kind=kind, config=same)
    state = resumable(run_dir, kind, same)
    assert state is not None
    assert state["update"] == 2
    other = config_json(config_in(tmp_path, model__hidden_size=64))
    with pytest.raises(ConfigError, match=r"holds a run with other settings: model\.hidden_size; ") as caught:
        resumable(run_dir, kind, other)
    assert caught.value.field == "model.hidden_size"
    assert ("training.allow_changed" in str(caught.value)) == (kind == "rl")
    if kind == "rl":
        assert resumable(run_dir, kind, other, ["model.hidden_size"]) is not None


@pytest.mark.parametrize(("kind", "other", "field"), [("rl", "sft", "training"), ("sft", "rl", "sft")])
def test_a_run_of_another_kind_is_not_gone_on_with(holding, config_in, tmp_path, kind, other, field):
    settings = config_json(config_in(tmp_path))
    with pytest.raises(ConfigError, match=f"holds a run of type {other}; use another {field}.run_dir for one of type"):
        resumable(holding(kind=other, config=settings), kind, settings)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"config": {}}, "holds no usable settings"),
        ({"config": None}, "its state.json lacks config"),
        ({"update": None, "baseline": None}, "its state.json lacks baseline, update"),
        ({"format": "other"}, "another form"),
    ],
)
def test_damage_is_named(holding, config_in, tmp_path, state, problem):
    with pytest.raises(TrainError, match=problem):
        resumable(holding(**state), "rl", config_json(config_in(tmp_path)))


@pytest.mark.parametrize("baseline", [{}, {"decay": 0.5, "means": []}, {"decay": 0.9, "means": [1]}])
def test_running_means_of_another_form_are_named(tmp_path, baseline):
    with pytest.raises(TrainError, match="u000002 cannot be gone on from"):
        baseline_of(tmp_path / "u000002", CheckpointState(2, "r", baseline, {}))


def test_settings_are_written_whole(tmp_path):
    write_settings(tmp_path, {"b": 1, "a": {"c": None}})
    assert json.loads((tmp_path / "config.json").read_text()) == {"a": {"c": None}, "b": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
