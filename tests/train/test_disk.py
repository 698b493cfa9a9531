"""A full disk: a named error wherever it strikes, nothing recorded is lost, and the same command goes on."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from task_app.core.errors import StoreError, TaskAppError, TrainError
from task_app.store import TraceStore
from task_app.train import checkpoint, checkpoint_folder, grpo, learner
from task_app.train.checkpoint_folder import checkpoints, latest_checkpoint, read_state
from task_app.train.disk import replace_text, writing
from task_app.train.embedded import EmbeddedNetwork
from task_app.train.export import export_checkpoint
from task_app.train.grpo import run_training
from task_app.train.heartbeat import Heartbeat
from task_app.train.ledger import Ledger
from task_app.train.metrics import MetricsLog
from task_app.train.report import report_run
from tests.train.chat_fixtures import chat, chat_line, folders
from tests.train.full_disk import files_end_at, refuse
from tests.train.tiny_models import byte_tokenizer

NUMBERS = {"a": torch.zeros(10_000)}
MAKE_ROOM = "make room.* run the same command again"

WRITERS = {
    "a text": lambda folder: (folder / "text").write_text("a" * 2000),
    "safetensors": lambda folder: save_file(NUMBERS, folder / "weights"),
    "torch.save": lambda folder: torch.save(NUMBERS, folder / "state"),
    "a tokenizer": lambda folder: byte_tokenizer("").save_pretrained(folder),
}


@pytest.mark.parametrize("what", WRITERS)
def test_whatever_was_writing_the_error_is_the_same(tmp_path, what):
    with (
        pytest.raises(TrainError, match=f"{tmp_path} could not be written: .*{MAKE_ROOM}"),
        writing(tmp_path),
        files_end_at(1000),
    ):
        WRITERS[what](tmp_path)
    WRITERS[what](tmp_path)


@pytest.mark.parametrize("error", [ValueError("a"), RuntimeError("b"), KeyError("c"), TrainError("d")])
def test_errors_that_are_not_the_disks_pass_through(tmp_path, error):
    with pytest.raises(type(error)) as caught, writing(tmp_path):
        raise error
    assert caught.value is error


def test_a_small_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    replace_text(path, "before")
    with pytest.raises(TrainError, match=r"a\.json could not be written"), files_end_at(3):
        replace_text(path, "afterwards")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(TrainError, match="could not be written"):
        replace_text(tmp_path / "nowhere" / "a", "text")


# -- a run, and the disk full at one moment of it ----------------------------------------------------------


def train(config, spec):
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store)


def told(config):
    """The log without times and without the lines that say it was resumed."""
    lines = MetricsLog(config.training.run_dir / "metrics.jsonl").lines()
    return [{k: v for k, v in line.items() if k != "machine"} for line in lines if line["kind"] != "resume"]


@pytest.fixture(scope="module")
def small(config_in):
    """Three updates with a checkpoint after each and an evaluation after the second."""
    settings = {"training__checkpoint_every": 1, "training__keep_checkpoints": 2, "eval__every": 2}
    return lambda folder: config_in(folder, rollout__group_size=4, **settings)


@pytest.fixture(scope="module")
def undisturbed(small, line, tmp_path_factory):
    """Such a run with room for everything: its log and its last weights."""
    config = small(tmp_path_factory.mktemp("whole"))
    result = train(config, line)
    return told(config), (result.checkpoint / "model.safetensors").read_bytes()


def line_of(kind, update):
    return lambda log, *which, **values: which == (kind, update)


def half_of_it(log, kind, update, **values):
    return log.path.stat().st_size + 40


MOMENTS = {
    "the first line": (MetricsLog, "append", line_of("start", 0), 0, r"metrics\.jsonl could not"),
    "half of a line": (MetricsLog, "append", line_of("update", 2), half_of_it, r"metrics\.jsonl could not"),
    "an evaluation's line": (MetricsLog, "append", line_of("eval", 2), half_of_it, r"metrics\.jsonl could not"),
    "the settings": (grpo, "write_settings", lambda *_: True, 10, r"config\.json could not"),
    "the first record": (Ledger, "append", lambda book, record: record["event"] == "start", 0, r"ledger\.jsonl could"),
    "weights": (EmbeddedNetwork, "save", lambda network, folder: "u000002" in folder.name, 1000, "u000002 could not"),
    "the optimiser": (torch, "save", lambda state, path: "u000002" in str(path), 1000, "u000002 could not"),
    "a checkpoint's state": (checkpoint, "_write_json", lambda path, state: state["update"] == 2, 10, "u000002 could"),
    "the pointer": (checkpoint_folder, "_point", lambda _, *to: to == ("latest", "u000002"), 2, "u000002 c"),
    "the best's pointer": (checkpoint_folder, "_point", lambda _, name, to: name == "best", 2, "(best|u00000.) could"),
    "an episode": (TraceStore, "write_episode", lambda store, e: (e.update, e.member) == (2, 1), 0, "was not written"),
    "advantages": (TraceStore, "write_advantages", lambda store, run, update, a: update == 2, 0, "was not written"),
}  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_stops_with_a_named_error_and_goes_on_to_the_same_end(
    small, line, undisturbed, tmp_path, monkeypatch, moment
):
    owner, name, due, size, named = MOMENTS[moment]
    config = small(tmp_path)
    with monkeypatch.context() as patched:
        refuse(patched, owner, name, due, size)
        with pytest.raises(TaskAppError, match=named) as caught:
            train(config, line)
    assert isinstance(caught.value, TrainError | StoreError)
    assert str(tmp_path) in str(caught.value)
    if size is half_of_it:
        assert not (config.training.run_dir / "metrics.jsonl").read_text().endswith("\n")
    kept = config.training.run_dir / "checkpoints"
    if (latest := latest_checkpoint(kept)) is not None:
        assert read_state(latest)["update"] <= 2
    assert not list(kept.glob(".partial-u*")), "half a checkpoint would only take up room"
    result = train(config, line)
    assert told(config) == undisturbed[0]
    assert (result.checkpoint / "model.safetensors").read_bytes() == undisturbed[1]
    assert [path.name for path in checkpoints(kept)][-2:] == ["u000002", "u000003"]


def test_signs_of_life_and_the_last_record_stop_nothing(small, line, undisturbed, tmp_path, monkeypatch, caplog):
    config = small(tmp_path)
    refuse(monkeypatch, Heartbeat, "beat", lambda *_: True)
    refuse(monkeypatch, Ledger, "append", lambda book, record: record["event"] == "end")
    train(config, line)
    assert told(config) == undisturbed[0]
    assert "no heartbeat in" in caplog.text
    assert "is not in the ledger" in caplog.text


def test_a_batch_that_cannot_be_dumped_does_not_hide_why(small, line, tmp_path, monkeypatch):
    config = small(tmp_path)

    def broken(self, *arguments):
        arguments[-1]._sums["loss"] = float("nan")
        return torch.zeros(1)

    monkeypatch.setattr(learner.Learner, "_backward", broken)
    refuse(monkeypatch, grpo, "dump_batch", lambda *_: True)
    with pytest.raises(TrainError, match=r"update 1 stopped: the loss is nan.*bad_batch-u000001\.json could not be"):
        train(config, line)


def test_a_report_and_an_export_that_find_no_room(small, line, tmp_path):
    config = small(tmp_path)
    result = train(config, line)
    report = config.training.run_dir / "report.html"
    with TraceStore.open(config.rollout.trace_db) as store:
        with pytest.raises(TrainError, match=r"report\.html could not be written"), files_end_at(100):
            report_run(config.training.run_dir, result.run_id, store, {})
        report_run(config.training.run_dir, result.run_id, store, {})
    assert "</html>" in report.read_text()
    with pytest.raises(TrainError, match="out could not be written"), files_end_at(100):
        export_checkpoint(result.checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_real_models_checkpoint_finds_no_room(chat, tmp_path):
    network = chat()
    optimizer = torch.optim.AdamW(network.parameters())
    state = checkpoint_folder.CheckpointState(1, "run", {}, {})
    for size in (10, 1000, 20_000):  # a tokenizer's settings, the tokenizer, the weights
        with pytest.raises(TrainError, match="u000001 could not be written"), files_end_at(size):
            checkpoint.save_checkpoint(tmp_path, network, optimizer, state)
        assert list(tmp_path.iterdir()) == []
    assert json.loads((checkpoint.save_checkpoint(tmp_path, network, optimizer, state) / "state.json").read_text())
