"""Checkpoints: whole or not there, exact, and refused where they do not belong."""

import json
import os

import pytest
import torch
from transformers import AutoModelForCausalLM

from task_app.config.training import TrainingSection
from task_app.core.errors import TrainError
from task_app.train.checkpoint import load_policy, load_weights, restore, save_checkpoint
from task_app.train.checkpoint_folder import CheckpointState, latest_checkpoint, read_state
from task_app.train.embedded import build_network
from task_app.train.learner import Learner
from task_app.train.rows import RowBuilder


@pytest.fixture
def trained(network, episodes, config_in, tmp_path):
    """A network after one update, its learner, and its checkpoint's state."""
    learner = Learner(network, TrainingSection(), 0.8)
    learner.update(rows_of(network, episodes), episodes=8)
    config = config_in(tmp_path, policy__temperature=0.8).model_dump(mode="json")
    return network, learner, CheckpointState(3, "run", {"decay": 0.9, "means": []}, config)


def rows_of(network, episodes):
    builder = RowBuilder(network.table, network.renderer.hash, 0.8)
    decisions = [decision for episode in episodes for decision in episode.decisions]
    rows = [builder.row(decision, (-1.0) ** index) for index, decision in enumerate(decisions)]
    return [row for row in rows if row is not None]


def weights(network):
    return {name: value.clone() for name, value in network.model.state_dict().items()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_restored_training_goes_on_bit_for_bit(trained, episodes, line, tmp_path):
    network, learner, state = trained
    path = save_checkpoint(tmp_path, network, learner.optimizer.torch, state)
    assert latest_checkpoint(tmp_path) == path == tmp_path / "u000003"
    other = build_network(line, network.settings, seed=99)
    other_learner = Learner(other, TrainingSection(), 0.8)
    assert restore(path, other, other_learner.optimizer.torch) == state
    assert equal(weights(other), weights(network))
    for each, one in ((network, learner), (other, other_learner)):
        one.update(rows_of(each, episodes), episodes=8)
    assert equal(weights(other), weights(network))


def test_playing_needs_weights_alone(trained, line, tmp_path, request_for):
    network, learner, state = trained
    path = save_checkpoint(tmp_path / "run" / "checkpoints", network, learner.optimizer.torch, state)
    (path / "optimizer.pt").unlink()
    for place in (path, path.parent, path.parent.parent):
        policy = load_policy(place, line)
        assert policy.version == "u3"
        tokens = policy.decide([request_for("place 1")])[0].tokens
        assert tokens is not None
        assert tokens.temperature == 0.8  # the one it was trained at
    tokens = load_policy(path, line, temperature=0.5).decide([request_for("turn 1")])[0].tokens
    assert tokens is not None
    assert tokens.temperature == 0.5


def test_the_folder_is_one_transformers_can_read(trained, tmp_path):
    network, learner, state = trained
    path = save_checkpoint(tmp_path, network, learner.optimizer.torch, state)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert equal(weights(network), model.state_dict())


@pytest.mark.parametrize("moment", range(1, 4))
def test_a_kill_while_saving_leaves_the_last_checkpoint(trained, tmp_path, monkeypatch, moment):
    """`moment` counts renames: the folder's own and the pointer's are the two that matter."""
    network, learner, state = trained
    first = save_checkpoint(tmp_path, network, learner.optimizer.torch, state)
    before = read_state(first)
    renames = 0
    replace = os.replace

    def killed(source, target):
        nonlocal renames
        renames += 1
        if renames == moment:
            raise KeyboardInterrupt
        replace(source, target)

    later = CheckpointState(6, "run", state.baseline, state.config)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        if moment <= 2:
            with pytest.raises(KeyboardInterrupt):
                save_checkpoint(tmp_path, network, learner.optimizer.torch, later)
        else:
            save_checkpoint(tmp_path, network, learner.optimizer.torch, later)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert read_state(found)["update"] == (3 if moment <= 2 else 6)
    assert read_state(first) == before
    assert save_checkpoint(tmp_path, network, learner.optimizer.torch, later) == latest_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"words": "pad pad"}, "prompt_hash"),
        ({"grammar_hash": "x"}, "grammar_hash"),
        ({"renderer_hash": "x"}, "renderer_hash"),
    ],
)
def test_a_checkpoint_of_another_task_is_refused(trained, line_of, tmp_path, change, name):
    network, learner, state = trained
    path = save_checkpoint(tmp_path, network, learner.optimizer.torch, state)
    other = build_network(line_of(words=change.get("words", "")), network.settings, seed=0)
    stored = read_state(path)
    (path / "state.json").write_text(json.dumps(stored | {key: change[key] for key in change if key != "words"}))
    with pytest.raises(TrainError, match=f"was trained with {name}"):
        load_weights(path, other)


def test_damage_is_named(trained, line, tmp_path):
    network, learner, state = trained
    path = save_checkpoint(tmp_path, network, learner.optimizer.torch, state)
    with pytest.raises(TrainError, match="not a checkpoint"):
        load_policy(tmp_path / "nowhere", line)
    (path / "optimizer.pt").write_bytes(b"cut")
    with pytest.raises(TrainError, match="optimiser state"):
        restore(path, network, learner.optimizer.torch)
    (path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(TrainError, match="weights of .* cannot be loaded"):
        load_weights(path, network)
    for text, problem in (("{", "not a checkpoint"), ("{}", "another form"), ("[]", "another form")):
        (path / "state.json").write_text(text)
        with pytest.raises(TrainError, match=problem):
            read_state(path)


def test_a_checkpoint_without_settings_is_refused(trained, line, tmp_path):
    network, learner, _ = trained
    path = save_checkpoint(tmp_path, network, learner.optimizer.torch, CheckpointState(1, "run", {}, {}))
    with pytest.raises(TrainError, match="no usable settings"):
        load_policy(path, line)


def test_a_full_disk_is_a_training_error(trained, tmp_path):
    network, learner, state = trained
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainError, match="could not be written"):
        save_checkpoint(tmp_path / "file", network, learner.optimizer.torch, state)
