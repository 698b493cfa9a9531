"""An update made again from stored rollouts: equal on a healthy run, and what was changed is named."""

import shutil
import sqlite3
import subprocess
import sys

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError, TrainError
from task_app.store import TraceStore
from task_app.train.grpo import run_training
from task_app.train.launch import train_config
from task_app.train.replay_update import replay_recorded, replay_update


def train(config, spec):
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store)


def replay(config, spec, update):
    with TraceStore.open(config.rollout.trace_db, read_only=True) as store:
        return replay_update(config.training.run_dir, update, store, spec=spec)


@pytest.fixture(scope="module")
def healthy(config_in, line, tmp_path_factory):
    """A run of five updates with checkpoints after 0, 2, 4 and 5."""
    config = config_in(
        tmp_path_factory.mktemp("healthy"),
        training__updates=5,
        training__checkpoint_every=2,
        training__credit__scale="batch_rms",
        rollout__max_decisions=4,
    )
    return config, train(config, line)


@pytest.fixture
def copied(healthy, config_in, tmp_path):
    """The same run in a folder of its own, to be tampered with: its config and a way to run SQL on its database."""
    config, _ = healthy
    shutil.copytree(config.training.run_dir.parent, tmp_path / "copy")
    moved = config.model_copy(
        update={
            "training": config.training.model_copy(update={"run_dir": tmp_path / "copy/run"}),
            "rollout": config.rollout.model_copy(update={"trace_db": tmp_path / "copy/traces.db"}),
        }
    )

    def tamper(sql):
        with sqlite3.connect(moved.rollout.trace_db) as connection:
            assert connection.execute(sql).rowcount == 1
        connection.close()

    return moved, tamper


@pytest.mark.parametrize(
    ("update", "start", "repeated"),
    [(1, "u000000", (1,)), (2, "u000000", (1, 2)), (3, "u000002", (3,)), (5, "u000004", (5,))],
)
def test_a_healthy_update_is_equal(healthy, line, update, start, repeated):
    config, result = healthy
    found = replay(config, line, update)
    assert found.equal, found.differences
    assert found.start.endswith(start)
    assert found.updates == repeated
    assert found.run_id == result.run_id
    assert found.figures > 25
    assert found.advantages >= 16 * len(repeated)
    assert found.weights == (update in (2, 4, 5))
    assert found.to_json()["equal"] is True


def test_initial_weights_are_made_again_where_every_earlier_checkpoint_is_gone(copied, line):
    config, _ = copied
    for path in (config.training.run_dir / "checkpoints").glob("u00000[0-4]"):
        shutil.rmtree(path)
    found = replay(config, line, 5)
    assert (found.start, found.updates, found.equal) == ("", (1, 2, 3, 4, 5), True)


FIRST = (
    "SELECT id FROM episodes WHERE training_update = 3 AND run_id NOT LIKE '%eval' ORDER BY group_id, member LIMIT 1"
)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        (f"UPDATE advantages SET advantage = advantage + 1e-15 WHERE turn = 1 AND episode = ({FIRST})", "advantage of"),
        (f"UPDATE decision_rewards SET unique_delta = unique_delta + 1 WHERE turn = 1 AND episode = ({FIRST})",
         "decision rewards of"),
        (f"DELETE FROM advantages WHERE turn = 1 AND episode = ({FIRST})", "advantage of"),
        (f"UPDATE episodes SET outcome = outcome + 1 WHERE id = ({FIRST})", "outcome/mean"),
        (f"UPDATE decision_tokens SET logprobs = zeroblob(length(logprobs)) WHERE turn = 1 AND episode = ({FIRST})",
         "mismatch/logp_max"),
    ],
    ids=["advantage", "reward", "no advantage", "outcome", "logprobs"],
)  # fmt: skip
def test_what_was_tampered_with_is_named(copied, line, sql, named):
    config, tamper = copied
    assert replay(config, line, 3).equal
    tamper(sql)
    found = replay(config, line, 3)
    assert not found.equal
    whats = [difference.what for difference in found.differences]
    assert any(what.startswith(named) for what in whats), whats
    if named == "decision rewards of":
        assert {"reward/sum", "reward/by_turn"} <= {*whats}
        assert any(what.startswith("advantage of episode") for what in whats)
    assert any(named in sentence for sentence in found.sentences())
    assert replay(config, line, 5).equal, "what comes after the next checkpoint is whole"


def test_tampered_weights_are_named(copied, line):
    config, _ = copied
    path = config.training.run_dir / "checkpoints/u000004/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert [difference.what for difference in replay(config, line, 4).differences] == ["weights model.safetensors"]


def test_settings_that_changed_later_do_not_count(config_in, line, tmp_path):
    train(config_in(tmp_path, training__schedule="cosine"), line)
    allowed = ["training.learning_rate"]
    later = {"training__schedule": "cosine", "training__updates": 5, "training__learning_rate": 0.05}
    config = config_in(tmp_path, **later, training__allow_changed=allowed)
    train(config, line)
    assert [replay(config, line, update).equal for update in (1, 3, 4, 5)] == [True] * 4


def test_a_change_whose_checkpoint_is_gone_is_told(config_in, line, tmp_path):
    train(config_in(tmp_path), line)
    settings = {"training__updates": 5, "training__learning_rate": 0.05, "training__checkpoint_every": 5}
    config = config_in(tmp_path, **settings, training__allow_changed=["training.learning_rate"])
    train(config, line)
    shutil.rmtree(config.training.run_dir / "checkpoints/u000003")
    with pytest.raises(TrainError, match=r"update 5 .* training\.learning_rate changed after update 3"):
        replay(config, line, 5)


def test_nothing_is_written(copied, line):
    config, _ = copied
    folder = config.training.run_dir.parent
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "traces.db-" not in path.name}
    replay(config, line, 4)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "traces.db-" not in path.name}
    assert before == after


def test_what_is_missing_is_named(healthy, line, tmp_path):
    config, _ = healthy
    with pytest.raises(ConfigError, match="has no update 6: it made updates 1 to 5") as caught:
        replay(config, line, 6)
    assert caught.value.field == "update"
    with pytest.raises(ConfigError, match="needs both --replay RUN and --update N"):
        replay_recorded(config.training.run_dir, None)
    with pytest.raises(ConfigError, match="holds no run"):
        replay_recorded(tmp_path, 1)


def test_the_command_prints_what_differs_and_exits_1_then(tmp_path):
    small = {
        "model.hidden_size": 16,
        "model.heads": 2,
        "model.kv_heads": 2,
        "model.intermediate_size": 16,
        "rollout.seeds": "0:4",
        "rollout.group_size": 2,
        "rollout.max_decisions": 3,
        "rollout.trace_db": str(tmp_path / "t.db"),
        "training.updates": 1,
        "training.groups_per_update": 2,
        "training.run_dir": str(tmp_path / "run"),
        "eval.seeds": "1000000:1000001",
    }
    train_config(load_config(None, small), progress=lambda line: None, note=lambda text: None)

    def command():
        arguments = ["train", "--replay", str(tmp_path / "run"), "--update", "1"]
        return subprocess.run(
            [sys.executable, "-m", "task_app", *arguments], capture_output=True, text=True, timeout=120, check=False
        )

    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    assert "update 1 from" in done.stdout
    assert "the same bit for bit" in done.stdout
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("UPDATE advantages SET advantage = 7 WHERE turn = 1")
    connection.close()
    done = command()
    assert done.returncode == 1
    assert "turn 1: stored 7.0, recomputed" in done.stdout
