"""A whole export: order, reports, split, duplicates, places that cannot be written, and a database in use."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest

from task_app.core.errors import ConfigError, StoreError, TaskAppError
from task_app.export import EpisodeFilters, SftOptions, export_sft
from task_app.export.rows import DUPLICATE, NOT_REWARDED, UNPARSED
from task_app.export.split import Split
from task_app.store import TraceStore

# -- which decisions --------------------------------------------------------------------------------


def test_rows_come_in_the_stores_order_with_turns_rising(known, export, places):
    assert places(export(known)) == [
        ("base-1", 1), ("base-1", 2), ("base-2", 1), ("base-2", 2), ("day-1", 2),
        ("day-2", 1), ("day-2", 2), ("day-2", 3),
        ("night-1a", 1), ("night-1a", 2), ("night-1a", 3), ("night-1b", 1), ("night-1b", 2),
        ("night-2a", 1), ("night-2a", 2), ("night-2a", 3), ("night-2a", 4),
    ]  # fmt: skip


def test_rewarded_decisions_are_those_that_unlocked_something(known, export, places, tmp_path):
    assert places(export(known, decisions="rewarded")) == [
        ("base-2", 2), ("day-1", 2), ("day-2", 1), ("day-2", 2), ("night-1a", 1), ("night-1a", 3), ("night-1b", 2),
        ("night-2a", 1), ("night-2a", 2), ("night-2a", 3),
    ]  # fmt: skip
    report = export_sft(known, tmp_path / "o.jsonl", options=SftOptions(decisions="rewarded"))
    assert dict(report.skipped) == {NOT_REWARDED: 7, UNPARSED: 1}
    assert report.rows == (10,)


def test_in_kind_absolute_a_repeat_is_rewarded_too(database, by_id, export, places):
    episode = by_id["day-2"]
    db = database([replace(episode, flags=replace(episode.flags, kind="absolute"))])
    assert places(export(db, decisions="rewarded")) == [("day-2", 1), ("day-2", 2), ("day-2", 3)]


def test_duplicates_are_written_once_whatever_the_ids_of_their_calls(database, by_id, export, places, tmp_path):
    """The second run said the same but for one turn, under fresh ids of calls."""
    first = by_id["night-1a"]
    said = [_with_call_id(d.completion.message, f"fresh_{d.turn}") for d in first.decisions]
    said[1] = replace(said[1], content="I look elsewhere.")
    decisions = tuple(
        replace(d, completion=replace(d.completion, message=message))
        for d, message in zip(first.decisions, said, strict=True)
    )
    db = database([first, replace(first, episode_id="again", run_id="zz", decisions=decisions)])
    assert len(export(db)) == 6
    rows = export(db, dedupe=True)
    assert places(rows) == [("night-1a", 1), ("night-1a", 2), ("night-1a", 3), ("again", 2)]
    assert rows[0]["messages"][-1]["tool_calls"][0]["id"] == "call_1"
    report = export_sft(db, tmp_path / "o.jsonl", options=SftOptions(dedupe=True))
    assert dict(report.skipped) == {DUPLICATE: 2}


def _with_call_id(message, call_id):
    return replace(message, tool_calls=tuple(replace(call, id=call_id) for call in message.tool_calls))


# -- split ------------------------------------------------------------------------------------------


@pytest.fixture
def many_seeds(database, by_id):
    """Forty seeds, each played in two runs."""
    first = by_id["night-1b"]
    return database(
        replace(first, episode_id=f"{run}-{seed}", run_id=run, task=replace(first.task, seed=seed))
        for seed in range(40)
        for run in ("a", "b")
    )


def test_a_split_puts_no_seed_into_both_files(many_seeds, read, tmp_path):
    report = export_sft(many_seeds, tmp_path / "sft.jsonl", options=SftOptions(split="75:25"))
    assert report.files == (tmp_path / "sft.train.jsonl", tmp_path / "sft.valid.jsonl")
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["sft.train.jsonl", "sft.valid.jsonl"]
    sides = [Counter(row["metadata"]["seed"] for row in read(path)) for path in report.files]
    assert not sides[0].keys() & sides[1].keys()
    assert sides[0].keys() | sides[1].keys() == set(range(40))
    assert set((sides[0] + sides[1]).values()) == {4}  # two runs of two decisions
    assert report.seeds == (len(sides[0]), len(sides[1]))
    assert report.rows == (4 * len(sides[0]), 4 * len(sides[1]))


def test_a_later_export_moves_no_seed(many_seeds, by_id, tmp_path):
    def sides():
        export_sft(many_seeds, tmp_path / "o.jsonl", options=SftOptions(split="3:1"))
        return [set(path.read_text().splitlines()) for path in Split.paths(tmp_path / "o.jsonl")]

    before = sides()
    first = by_id["night-1b"]
    with TraceStore.open(many_seeds) as store:
        for seed in range(40, 80):
            store.write_episode(replace(first, episode_id=f"c-{seed}", task=replace(first.task, seed=seed)))
    after = sides()
    assert before[0] < after[0]
    assert before[1] < after[1]


def test_the_shares_are_about_what_was_asked_for_and_the_same_everywhere():
    split = Split.parse("90:10")
    assert sum(split.side("crafter", seed) for seed in range(10_000)) == pytest.approx(1_000, abs=120)
    assert [seed for seed in range(40) if split.side("crafter", seed)] == [
        seed for seed in range(40) if Split.parse("0.9:0.1").side("crafter", seed)
    ]
    assert [seed for seed in range(12) if Split.parse("1:1").side("crafter", seed)] == HALF
    assert [seed for seed in range(12) if Split.parse("1:1").side("rhythm", seed)] != HALF


HALF = [0, 2, 6, 7, 8, 9, 10, 11]
"""Seeds below 12 in the validation half: their SHA-256 (`printf 'crafter\\n0' | sha256sum`) begins with 8 to f."""


@pytest.mark.parametrize("text", ["90", "90:10:1", "90:0", "0:1", "-1:2", "a:b", "nan:1", "inf:1", "", ":"])
def test_a_split_that_is_none_is_refused(known, tmp_path, text):
    with pytest.raises(ConfigError, match="two numbers above 0, such as 90:10") as caught:
        export_sft(known, tmp_path / "o.jsonl", options=SftOptions(split=text))
    assert caught.value.field == "split"


def test_a_split_with_an_empty_side_is_refused_and_writes_nothing(known, tmp_path):
    with pytest.raises(TaskAppError, match=r"all 2 seeds into valid and none into train"):
        export_sft(known, tmp_path / "o.jsonl", options=SftOptions(split="1:1000000"))
    assert not list(tmp_path.iterdir())


# -- options and places -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        (SftOptions(form="tlr"), "format", "--format 'tlr': must be one of openai, trl; did you mean 'trl'?"),
        (SftOptions(decisions="reward"), "decisions", "must be one of all, rewarded; did you mean 'rewarded'?"),
    ],
)
def test_an_unknown_option_value_is_told_the_nearest(known, tmp_path, options, field, says):
    with pytest.raises(ConfigError) as caught:
        export_sft(known, tmp_path / "o.jsonl", options=options)
    assert caught.value.field == field
    assert says in str(caught.value)


def test_an_older_file_is_replaced_whole(known, tmp_path):
    output = tmp_path / "o.jsonl"
    output.write_text("old\n" * 1_000)
    report = export_sft(known, output, EpisodeFilters(limit=1))
    assert output.read_text().count("\n") == 2 == report.rows[0]
    assert [path.name for path in tmp_path.iterdir()] == ["o.jsonl"]
    assert stat.S_IMODE(output.stat().st_mode) & 0o044 == 0o666 & ~_umask() & 0o044


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_folders_are_made_and_a_link_keeps_pointing_at_its_file(known, tmp_path):
    target = tmp_path / "deep" / "er" / "o.jsonl"
    export_sft(known, target)
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    export_sft(known, link, EpisodeFilters(limit=1))
    assert link.is_symlink()
    assert target.read_text().count("\n") == 2


@pytest.mark.parametrize("decisions", [(), ("collect_wood",)])
def test_nothing_to_write_leaves_an_older_file_alone(database, by_id, tmp_path, decisions):
    """Once because no episode passes, once because none of the decisions does."""
    output = tmp_path / "sub" / "o.jsonl"
    output.parent.mkdir()
    output.write_text("old")
    db = database([by_id["base-1"]])
    with pytest.raises(TaskAppError, match="nothing matched and nothing was written; 1 episodes") as caught:
        export_sft(db, output, EpisodeFilters(require_achievement=decisions), SftOptions(decisions="rewarded"))
    reason = "--require-achievement collect_wood: 1" if decisions else f"of the 1 left, {NOT_REWARDED}: 2"
    assert reason in str(caught.value)
    assert output.read_text() == "old"
    assert [path.name for path in output.parent.iterdir()] == ["o.jsonl"]


def test_places_that_are_no_file_of_ours_are_refused(database, by_id, tmp_path):
    db = database([by_id["base-1"]])
    before = db.read_bytes()
    for place, says in ((tmp_path, "is a folder"), (os.devnull, "is no ordinary file"), (db, "database itself")):
        with pytest.raises(ConfigError, match=says) as caught:
            export_sft(db, type(db)(place))
        assert caught.value.field == "output"
    assert db.read_bytes() == before
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_place_that_cannot_be_written_is_named(known, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write .*o\.jsonl") as caught:
        export_sft(known, tmp_path / "file" / "o.jsonl")
    assert caught.value.field == "output"


def test_a_write_that_fails_midway_leaves_the_older_file(known, tmp_path, monkeypatch):
    output = tmp_path / "o.jsonl"
    output.write_text("old")
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(TaskAppError, match="No space left"):
        export_sft(known, output)
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["o.jsonl"]


def _no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


# -- databases --------------------------------------------------------------------------------------


def test_an_empty_missing_or_foreign_database_is_named(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        export_sft(tmp_path / "no.db", tmp_path / "o.jsonl")
    (tmp_path / "text.db").write_text("not a database")
    with pytest.raises(StoreError, match=r"text\.db"):
        export_sft(tmp_path / "text.db", tmp_path / "o.jsonl")
    TraceStore.open(tmp_path / "empty.db").close()
    with pytest.raises(TaskAppError, match=r"0 episodes in .*empty\.db"):
        export_sft(tmp_path / "empty.db", tmp_path / "o.jsonl")
    assert not (tmp_path / "o.jsonl").exists()


def test_a_damaged_database_is_an_error_not_a_shorter_file(database, by_id, tmp_path):
    db = database([by_id["night-1a"]])
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE decisions SET prompt = '[1,99]' WHERE turn = 2")
    connection.close()
    with pytest.raises(StoreError, match="message 99 is missing"):
        export_sft(db, tmp_path / "o.jsonl")
    assert not (tmp_path / "o.jsonl").exists()


def test_what_is_written_meanwhile_changes_nothing(database, by_id, tmp_path, read, places):
    """Between two episodes of the export one is added and the other is superseded; both come from one moment."""
    db = database([by_id["day-2"], by_id["night-1a"]])
    writer = TraceStore.open(db)
    pending = [lambda: writer.supersede("night", 0), lambda: writer.write_episode(by_id["night-2a"])]

    def disturb() -> None:
        while pending:
            pending.pop()()

    with writer:
        report = export_sft(db, tmp_path / "o.jsonl", progress=lambda total: nullcontext(disturb))
    assert not pending
    assert (report.episodes, report.selected) == (2, 2)
    assert places(read(tmp_path / "o.jsonl")) == [
        *[("day-2", turn) for turn in (1, 2, 3)], *[("night-1a", turn) for turn in (1, 2, 3)]
    ]  # fmt: skip


def test_the_report_is_plain_json(many_seeds, tmp_path):
    report = export_sft(many_seeds, tmp_path / "o.jsonl", EpisodeFilters(run_id=("a",))).to_json()
    assert report == {
        "episodes": 80,
        "selected": 40,
        "removed": [
            {"filter": "superseded by a resumed run", "episodes": 0},
            {"filter": "without a reward (infra_error, aborted)", "episodes": 0},
            {"filter": "--run-id a", "episodes": 40},
        ],
        "skipped": [],
        "files": [{"path": str(tmp_path / "o.jsonl"), "rows": 80, "seeds": 40}],
    }
