"""Pruning: the episodes that match go with all that is theirs, and nothing else changes."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from task_app.core.errors import ConfigError, StoreError
from task_app.store import TraceStore
from task_app.store import prune as prune_module
from task_app.store.prune import PruneFilter, parse_age, prune_database

ALL = {"night-1a", "night-1b", "night-2a", "night-2b", "day-1", "day-2", "base-1", "base-2"}


def read(path):
    with TraceStore.open(path, read_only=True) as store:
        ids = [row[0] for row in store.query("SELECT episode_id FROM episodes")]
        return {name: (store.episode(name), store.advantages(name)) for name in ids}


def run_ids(path):
    with TraceStore.open(path, read_only=True) as store:
        return [row[0] for row in store.query("SELECT run_id FROM runs ORDER BY run_id")]


def clean(path):
    """No row is left that belongs to nothing, and no page is empty."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA freelist_count").fetchone()[0] == 0
        for table, references in {
            "messages": "SELECT answer FROM decisions UNION SELECT value FROM decisions, json_each(prompt)",
            "tool_sets": "SELECT tool_set FROM episodes",
            "token_prefixes": "SELECT prefix FROM decision_tokens",
        }.items():
            unused = db.execute(f"SELECT count(*) FROM {table} WHERE id NOT IN ({references})").fetchone()[0]
            assert (table, unused) == (table, 0)
    return True


NOW = 1_000_610.0
"""base-1 (episode 6) ended just now, so day-2 ended 100 s ago and night-1a 600 s ago."""

FILTERS = {
    "a run": (PruneFilter(run_ids=("day",)), {"day-1", "day-2"}, 5, ["base", "night"]),
    "two runs": (PruneFilter(run_ids=("day", "base")), {"day-1", "day-2", "base-1", "base-2"}, 9, ["night"]),
    "a status": (PruneFilter(statuses=("infra_error",)), {"night-2b"}, 1, ["base", "day", "night"]),
    "two statuses": (PruneFilter(statuses=("ok", "infra_error")), {"night-2a", "night-2b"}, 5,
                     ["base", "day", "night"]),
    "an age": (PruneFilter(older_than_s=450), {"night-1a", "night-1b"}, 5, ["base", "day", "night"]),
    "an age that is all but one run": (PruneFilter(older_than_s=100), {e for e in ALL if e[0] != "b"} - {"day-2"}, 12,
                                       ["base", "day"]),
    "run and status": (PruneFilter(("night",), ("truncated",)), {"night-1a", "night-1b"}, 5, ["base", "day", "night"]),
    "all of them": (PruneFilter(("night", "day"), ("truncated",), 150.0), {"night-1a", "night-1b", "day-1"}, 7,
                    ["base", "day", "night"]),
    "nothing that is": (PruneFilter(("night",), ("aborted",)), set(), 0, ["base", "day", "night"]),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "gone", "decisions", "runs"), FILTERS.values(), ids=FILTERS)
def test_what_matches_goes_and_the_rest_reads_back_equal(known, monkeypatch, wanted, gone, decisions, runs):
    monkeypatch.setattr(prune_module.time, "time", lambda: NOW)
    before = read(known)
    told = prune_database(known, wanted, dry_run=True)
    assert read(known) == before
    pruned = prune_database(known, wanted)
    assert set(before) - set(read(known)) == gone
    assert read(known) == {name: value for name, value in before.items() if name not in gone}
    assert run_ids(known) == runs
    assert (pruned.episodes, pruned.decisions, pruned.runs) == (len(gone), decisions, 3 - len(runs))
    assert (told.episodes, told.decisions, told.runs) == (len(gone), decisions, 3 - len(runs))
    assert (told.done, pruned.done, pruned.compacted) == (False, bool(gone), bool(gone))
    assert clean(known)


def test_superseded_ones_alone_or_with_their_run(path, make_episode):
    with TraceStore.open(path) as store:
        store.write_run("run", "train", {})
        for update in range(3):
            store.write_episode(make_episode(f"e{update}", update=update, tokens=True))
        store.supersede("run", 1)
        store.write_episode(make_episode("again", update=1))
    assert prune_database(path, PruneFilter(superseded=True), dry_run=True).episodes == 2
    assert prune_database(path, PruneFilter(run_ids=("run",)), dry_run=True).episodes == 4
    prune_database(path, PruneFilter(superseded=True))
    assert set(read(path)) == {"e0", "again"}
    assert clean(path)


def test_tokens_and_advantages_go_too(path, make_episode):
    with TraceStore.open(path) as store:
        for name, run in (("a", "r1"), ("b", "r2")):
            store.write_run(run, "train", {})
            store.write_episode(make_episode(name, run_id=run, tokens=name == "a"))
            store.write_advantages("credit", 0, {name: (1.0, 2.0)})
    prune_database(path, PruneFilter(run_ids=("r1",)))
    with TraceStore.open(path, read_only=True) as store:
        counts = [store.query(f"SELECT count(*) FROM {t}")[0][0] for t in ("decision_tokens", "token_prefixes")]
        assert counts == [0, 0]
        assert store.query("SELECT count(*) FROM advantages")[0][0] == 2
        assert store.advantages("b") == {1: 1.0, 2: 2.0}
    assert clean(path)


def test_a_run_that_has_no_episodes_yet_is_left_alone(known):
    with TraceStore.open(known) as store:
        store.write_run("just begun", "rollout", {})
    prune_database(known, PruneFilter(statuses=("truncated", "ok", "infra_error")))
    assert read(known) == {}
    assert run_ids(known) == ["just begun"]
    assert clean(known)


def test_bytes_are_what_the_file_shrinks_by(path, make_episode):
    with TraceStore.open(path) as store:
        for index in range(200):
            run = "keep" if index < 50 else "drop"
            said = tuple(
                replace(d, messages=({"role": "user", "content": f"{index} " + "grass " * 200},))
                for d in make_episode().decisions
            )
            store.write_episode(make_episode(str(index), run_id=run, decisions=said))
    before = path.stat().st_size
    told = prune_database(path, PruneFilter(run_ids=("drop",)), dry_run=True)
    pruned = prune_database(path, PruneFilter(run_ids=("drop",)))
    assert path.stat().st_size == before - pruned.bytes
    assert pruned.bytes > before / 2
    assert told.bytes == round(before * 300 / 400)
    assert len(read(path)) == 50


def test_without_a_filter_nothing_is_even_opened(tmp_path):
    with pytest.raises(ConfigError, match="needs at least one of --run-id") as caught:
        prune_database(tmp_path / "no.db", PruneFilter())
    assert caught.value.field == "filter"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (PruneFilter(statuses=("infra_eror",)), "unknown status 'infra_eror'; did you mean 'infra_error'?"),
        (PruneFilter(statuses=("x",)), "unknown status 'x' (there are: ok, truncated, infra_error, aborted)"),
        (PruneFilter(run_ids=("nigth",)), "did you mean 'night'?"),
        (PruneFilter(run_ids=("day", "q")), "(there are: base, day, night)"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(known, wanted, message):
    before = known.read_bytes()
    with pytest.raises(ConfigError) as caught:
        prune_database(known, wanted)
    assert message in str(caught.value)
    assert known.read_bytes() == before


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604_800), ("12h", 43_200), ("30m", 1_800), (" 1d ", 86_400)])
def test_ages(text, seconds):
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-1d", "0d", "7w", "1.5h", "7d12h", "9999999d"])
def test_other_ages_are_refused(text):
    with pytest.raises(ConfigError, match="7d, 12h or 30m") as caught:
        parse_age(text)
    assert repr(text) in str(caught.value)


def test_a_no_keeps_everything_and_holds_no_lock_meanwhile(known, make_episode):
    asked = []

    def confirm(found):
        asked.append(found)
        with TraceStore.open(known) as store:
            store.write_episode(make_episode("meanwhile"))
        return False

    before = read(known)
    answer = prune_database(known, PruneFilter(run_ids=("day",)), confirm=confirm)
    assert asked == [answer]
    assert (answer.episodes, answer.done) == (2, False)
    assert read(known) == before | {"meanwhile": (make_episode("meanwhile"), {})}


def test_nobody_is_asked_about_nothing(known):
    asked = []
    prune_database(known, PruneFilter(statuses=("aborted",)), confirm=lambda found: bool(asked.append(found)))
    assert asked == []


def test_a_failure_in_the_middle_deletes_nothing(known, monkeypatch):
    before = read(known)
    monkeypatch.setitem(prune_module._REFERENCES, "tool_sets", "SELECT no_such_column FROM episodes")
    with pytest.raises(StoreError, match="was not pruned: no such column"):
        prune_database(known, PruneFilter(run_ids=("night",)))
    assert read(known) == before


def test_a_reader_in_the_middle_of_something_is_not_disturbed(known, monkeypatch):
    """Its snapshot keeps the old pages alive, so the file cannot shrink; the deletion is done all the same."""
    monkeypatch.setattr("task_app.store.database.BUSY_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(known, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM episodes").fetchone() == (8,)
        pruned = prune_database(known, PruneFilter(run_ids=("night",)))
        assert reader.execute("SELECT count(*) FROM decisions").fetchone() == (19,)
        reader.execute("ROLLBACK")
    assert (pruned.episodes, pruned.done, pruned.compacted) == (4, True, False)
    assert set(read(known)) == {e for e in ALL if not e.startswith("night")}


def test_a_writer_meanwhile_loses_nothing(path, make_episode):
    """It shares every text with the episodes being deleted, so a text deleted too eagerly would break it."""
    stop, written, problems = threading.Event(), [], []

    def keep_writing() -> None:
        try:
            with TraceStore.open(path) as store:
                while not stop.is_set():
                    store.write_episode(make_episode(f"n{len(written)}", run_id="live", tokens=True))
                    written.append(f"n{len(written)}")
        except StoreError as error:
            problems.append(error)

    TraceStore.open(path).close()
    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for index in range(15):
            with TraceStore.open(path) as store:
                store.write_episode(make_episode(f"old{index}", run_id="old", tokens=True))
            assert prune_database(path, PruneFilter(run_ids=("old",))).episodes == 1
            time.sleep(0.01)
    finally:
        stop.set()
        writer.join()
    assert problems == []
    assert len(written) > 15
    kept = read(path)
    assert set(kept) == set(written)
    assert all(replace(e, episode_id="e") == make_episode("e", run_id="live", tokens=True) for e, _ in kept.values())
