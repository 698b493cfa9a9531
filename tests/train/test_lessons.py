"""A teacher's lessons on the toy: what each round is made of, what a policy learns, kills, refusals."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from task_app.config import Config
from task_app.core.errors import ConfigError, TrainError
from task_app.core.task import TaskSpec
from task_app.store import TraceStore
from task_app.train.checkpoint_folder import find_checkpoint
from task_app.train.lessons import TaughtLessons, WrittenLessons
from task_app.train.rows import Row
from task_app.train.sft import run_sft

FIRST, ROUNDS, EACH, STEPS, ROUND_STEPS = 6, 2, 4, 12, 8


@pytest.fixture
def config(config_in, tmp_path) -> Callable[..., Config]:
    def make(name: str = "sft", **changes):
        settings = {
            "sft.batch_rows": 8,
            "sft.learning_rate": 0.02,
            "sft.warmup_steps": 2,
            "sft.validate_every": 5,
            "sft.run_dir": str(tmp_path / name),
            "sft.teacher.name": "walker",
            "sft.teacher.episodes": FIRST,
            "sft.teacher.steps": STEPS,
            "sft.teacher.rounds": ROUNDS,
            "sft.teacher.round_episodes": EACH,
            "sft.teacher.round_steps": ROUND_STEPS,
            "rollout.trace_db": str(tmp_path / f"{name}.db"),
        }
        return config_in(tmp_path, **(settings | {key.replace("__", "."): value for key, value in changes.items()}))

    return make


def log(config: Config, *, without: tuple[str, ...] = ("machine",)) -> list[dict[str, Any]]:
    lines = (config.sft.run_dir / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(one).items() if key not in without} for one in lines]


def weights(config: Config) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(find_checkpoint(config.sft.run_dir) / "model.safetensors")


def assert_same(first: Config, second: Config) -> None:
    # The settings told in the log's first line are those of the run, its database's name included.
    assert log(first) == log(second)
    one, two = weights(first), weights(second)
    assert all(torch.equal(one[name], two[name]) for name in one)


class TestRounds:
    def test_the_teacher_plays_first_then_the_policy_in_worlds_of_their_own(self, config, line):
        settings = config(rollout__seeds="50:80")
        run_id = run_sft(settings, line).run_id
        with TraceStore.open(settings.rollout.trace_db) as store:
            rounds = [list(store.episodes(run_id=f"{run_id}-lessons", update=index)) for index in range(ROUNDS + 1)]
        assert [[episode.task.seed for episode in played] for played in rounds] == [
            [50, 51, 52, 53, 54, 55],
            [56, 57, 58, 59],
            [60, 61, 62, 63],
        ]
        versions = [{(episode.policy, episode.policy_version) for episode in played} for played in rounds]
        assert versions[0] == {("walker", "line-1")}
        assert versions[1:] == [{("embedded", "s12")}, {("embedded", "s20")}]

    def test_the_log_says_how_each_round_went(self, config, line):
        settings = config()
        run_sft(settings, line)
        told = [one for one in log(settings) if one["kind"] == "round"]
        assert [(one["round"], one["update"], one["episodes"], one["failed"]) for one in told] == [
            (0, 0, FIRST, 0),
            (1, STEPS, EACH, 0),
            (2, STEPS + ROUND_STEPS, EACH, 0),
        ]
        # From place 0 the walker takes two steps and one, from place -1 two and two; both reach place 3.
        assert told[0]["outcome"] == 3.0
        assert told[0]["agreed"] == 1.0
        assert told[0]["rows"] == FIRST * 3
        assert log(settings)[0]["steps"] == STEPS + ROUNDS * ROUND_STEPS

    def test_the_policy_learns_to_walk(self, config, line):
        settings = config(sft__teacher__steps=40, sft__teacher__round_steps=20)
        run_sft(settings, line)
        told = [one for one in log(settings) if one["kind"] == "round"]
        assert told[-1]["agreed"] > 0.8
        assert told[-1]["outcome"] > 2

    def test_rows_of_a_round_are_the_teachers_answers_where_the_policy_went(self, config, line, network):
        notes: list[dict[str, Any]] = []
        lessons = TaughtLessons(config(), line, network, lambda: "run", lambda kind, values: notes.append(values))
        first = {row.input_ids for step in range(3) for row in lessons.batch(step)}
        assert first == {row.input_ids for row in lessons.sample(100)}
        lessons.batch(STEPS)
        later = [row for row in lessons.sample(1000) if row.input_ids not in first]
        assert later, "the policy is random, so it goes where the walker does not"
        assert all(_says(network, row) == _walker(network, row) for row in later)
        assert [note["round"] for note in notes] == [0, 1]

    def test_every_row_comes_once_in_a_pass(self, config, line, network):
        lessons = TaughtLessons(config(), line, network, lambda: "run", lambda kind, values: None)
        rows = FIRST * 3
        one_pass = [id(row) for step in range(-(-rows // 8)) for row in lessons.batch(step)]
        assert len(one_pass) == rows == len(set(one_pass))
        again = [id(row) for step in range(3, 6) for row in lessons.batch(step)]
        assert set(again) == set(one_pass)
        assert again != one_pass

    def test_a_file_gives_the_same_batches_whatever_was_asked_before(self, config):
        rows = [Row((index,), (0,), (1,), (0,), (0.0,), (1,), (1.0,)) for index in range(10)]
        lessons = WrittenLessons(config(sft__epochs=3, sft__batch_rows=4), rows)
        assert lessons.steps == 9
        assert lessons.batch(7) == WrittenLessons(config(sft__epochs=3, sft__batch_rows=4), rows).batch(7)
        assert [len(lessons.batch(step)) for step in range(3)] == [4, 4, 2]


def _says(network, row: Row) -> tuple[str, ...]:
    """The chosen words of a row's answer: first move, whether to go on, second move."""
    return tuple(network.renderer.tokenizer.words[token] for token in row.targets)


def _walker(network, row: Row) -> tuple[str, ...]:
    """What the walker says to the prompt a row begins with."""
    words = [network.renderer.tokenizer.words[token] for token in row.input_ids]
    number = words[words.index("place") + 1 :]
    place = -int(number[1]) if number[0] == "-" else int(number[0])
    left = 3 - place
    return ("right", "and", "right") if left > 1 else ("right" if left else "stay", "end")


class TestAgain:
    def test_the_same_command_gives_the_same_weights(self, config, line):
        run_sft(config("one"), line)
        run_sft(config("two"), line)
        assert_same(config("one"), config("two"))

    @pytest.mark.parametrize("step", [3, 11, 12, 13, 17, 20, 25, 28])
    def test_killed_and_run_again_it_ends_the_same(self, config, line, step):
        run_sft(config("whole"), line)
        _kill(config("killed"), line, lambda entry: entry["kind"] == "step" and entry["update"] == step)
        run_sft(config("killed"), line)
        assert_same(config("whole"), config("killed"))

    @pytest.mark.parametrize("index", [1, 2])
    def test_killed_right_after_a_round_was_played(self, config, line, index):
        run_sft(config("whole"), line)
        _kill(config("killed"), line, lambda entry: entry.get("round") == index)
        run_sft(config("killed"), line)
        assert_same(config("whole"), config("killed"))

    def test_killed_while_a_round_is_played(self, config, line, monkeypatch):
        run_sft(config("whole"), line)
        written = TraceStore.write_episode
        count = 0

        def write(store, episode):
            nonlocal count
            count += 1
            if count == FIRST + 2:
                raise _Killed
            return written(store, episode)

        monkeypatch.setattr(TraceStore, "write_episode", write)
        with pytest.raises(_Killed):
            run_sft(config("killed"), line)
        monkeypatch.undo()
        run_sft(config("killed"), line)
        assert_same(config("whole"), config("killed"))
        with TraceStore.open(config("killed").rollout.trace_db) as store:
            kept = [episode for episode in store.episodes() if episode.run_id.endswith("-lessons")]
        assert len(kept) == FIRST + ROUNDS * EACH, "the partial round is superseded"

    def test_a_lost_database_is_named(self, config, line):
        settings = config()
        _kill(settings, line, lambda entry: entry["kind"] == "step" and entry["update"] == 17)
        for file in Path(settings.rollout.trace_db).parent.glob("sft.db*"):
            file.unlink()
        with pytest.raises(TrainError, match=r"sft\.db no longer holds round 1 of run"):
            run_sft(settings, line)


class _Killed(BaseException):
    """What no handler of ours catches."""


def _kill(config: Config, line: TaskSpec, when: Callable[[dict[str, Any]], bool]) -> None:
    def progress(entry: dict[str, Any]) -> None:
        if when(entry):
            raise _Killed

    with pytest.raises(_Killed):
        run_sft(config, line, progress=progress)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"sft__teacher__name": "walkr"}, "sft.teacher.name", "'walkr' cannot teach line: .* \\(walker\\)"),
        ({"sft__dataset": "d.jsonl"}, "sft.dataset", "d.jsonl and the teacher 'walker' cannot both be used"),
        ({"sft__validation": "v.jsonl"}, "sft.validation", "v.jsonl and the teacher 'walker' cannot both be used"),
        ({"rollout__seeds": "3:16"}, "rollout.seeds", 'holds 13 worlds, but the teacher\'s rounds play 14; .*"3:17"'),
        ({"rollout__seeds": "999990:1000100"}, "eval.seeds", "overlap"),
        ({"sampler__kind": "vllm"}, "sampler.kind", 'kind = "vllm" cannot be used with a teacher'),
        ({"sft__teacher__name": ""}, "sft.dataset", r"a dataset .* or a teacher \(sft.teacher.name\)"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(config, line, changes, field, words):
    with pytest.raises(ConfigError, match=words) as refused:
        run_sft(config(**changes), line)
    assert refused.value.field == field
    assert not config().sft.run_dir.exists()


def test_another_teacher_is_another_run(config, line):
    run_sft(config(), line)
    with pytest.raises(ConfigError, match=r"other settings: sft\.teacher\.round_steps"):
        run_sft(config(sft__teacher__round_steps=9), line)


def test_no_stray_database_is_made(config, line):
    settings = config()
    run_sft(settings, line)
    names = sqlite3.connect(settings.rollout.trace_db).execute("SELECT run_id, command FROM runs").fetchall()
    assert [(name.split("-")[-1], command) for name, command in names] == [("lessons", "train")]
