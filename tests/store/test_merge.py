"""Merging: what is read from the new file is what the inputs held, or nothing is written at all."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from task_app.core.errors import ConfigError, StoreError
from task_app.store import TraceStore
from task_app.store.catalogue import CATALOGUE
from task_app.store.merge import merge_databases
from task_app.store.migrations import apply_migrations
from task_app.store.schema import APPLICATION_ID
from tests.known_traces import known_episodes

INTERNED = ("messages", "tool_sets", "token_prefixes")


def all_of(path):
    """Every episode with its mark and advantages, and every run: what a merge must keep."""
    with TraceStore.open(path, read_only=True) as store:
        rows = store.query("SELECT episode_id, superseded FROM episodes")
        runs = {row["run_id"]: tuple(row) for row in store.query("SELECT * FROM runs")}
        return {r[0]: (store.episode(r[0]), r[1], store.advantages(r[0])) for r in rows}, runs


def totals(path):
    """Rows of the view without the keys a merge may change."""
    with TraceStore.open(path, read_only=True) as store:
        rows = [dict(row) for row in store.query("SELECT * FROM episode_summaries")]
    return {row["episode_id"]: {k: v for k, v in row.items() if k not in ("id", "tool_set")} for row in rows}


def sound(path):
    """Whether SQLite finds the file whole, no reference dangles, and no shared text is unused."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        used = "SELECT answer FROM decisions UNION SELECT value FROM decisions, json_each(prompt)"
        assert db.execute(f"SELECT count(*) FROM messages WHERE id NOT IN ({used})").fetchone()[0] == 0
        for table in INTERNED:
            assert db.execute(f"SELECT count(*) - count(DISTINCT hash) FROM {table}").fetchone()[0] == 0
    return True


def write(path, *episodes, runs=()):
    with TraceStore.open(path) as store:
        for run_id, config in runs:
            store.write_run(run_id, "rollout", config)
        for episode in episodes:
            store.write_episode(episode)
    return path


@pytest.fixture
def handmade(tmp_path, make_episode):
    """Tokens, a superseded episode, and advantages of two updates."""
    path = tmp_path / "handmade.db"
    with TraceStore.open(path) as store:
        store.write_run("run", "train", {"lr": 0.5})
        store.write_episode(make_episode("tok", tokens=True, update=0))
        store.write_episode(make_episode("old", tokens=True, update=1, member=1))
        store.write_episode(make_episode("other", decisions=(), outcome=0.0))
        store.supersede("run", 1)
        store.write_advantages("run", 0, {"tok": (0.25, -0.5)})
        store.write_advantages("run", 3, {"tok": (0.75, -1.5)})
    return path


@pytest.fixture
def scripted(tmp_path, play_scripted):
    return write(tmp_path / "scripted.db", *play_scripted(range(2), 2, policy="expert"))


def test_three_files_read_back_as_their_inputs(tmp_path, known, handmade, scripted):
    inputs = [known, handmade, scripted]
    before = [path.read_bytes() for path in inputs]
    result = merge_databases(inputs, tmp_path / "new" / "all.db")
    episodes, runs = {}, {}
    for path in inputs:
        episodes |= all_of(path)[0]
        runs |= all_of(path)[1]
    assert all_of(tmp_path / "new" / "all.db") == (episodes, runs)
    assert episodes["old"][1:] == (1, {})
    assert episodes["tok"][2] == {1: 0.75, 2: -1.5}
    assert totals(tmp_path / "new" / "all.db") == totals(known) | totals(handmade) | totals(scripted)
    assert sound(tmp_path / "new" / "all.db")
    assert [(i.episodes, i.known) for i in result.inputs] == [(8, 0), (3, 0), (4, 0)]
    assert (result.runs, result.episodes) == (4, 15)
    assert result.decisions == sum(i.decisions for i in result.inputs) == 19 + 4 + 32
    assert result.size_bytes == (tmp_path / "new" / "all.db").stat().st_size
    assert [path.read_bytes() for path in inputs] == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["all.db"]


def test_every_table_is_copied(tmp_path, known, handmade):
    """A table added to the schema later must be merged too."""
    merge_databases([known, handmade], tmp_path / "c.db")
    kept_apart = {*INTERNED, "_sqlite_migrations"}
    for name in (name for name, told in CATALOGUE.items() if told.kind == "table" and name not in kept_apart):
        counts = []
        for path in (known, handmade, tmp_path / "c.db"):
            with closing(sqlite3.connect(path)) as db:
                counts.append(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0])
        assert counts[0] + counts[1] == counts[2] > 0, name


def test_shared_texts_are_stored_once(tmp_path, make_episode):
    first = write(tmp_path / "a.db", make_episode("a", tokens=True))
    second = write(tmp_path / "b.db", make_episode("b", tokens=True), make_episode("c"))
    merge_databases([first, second], tmp_path / "c.db")
    with TraceStore.open(tmp_path / "c.db", read_only=True) as store:
        counts = {name: store.query(f"SELECT count(*) FROM {name}")[0][0] for name in INTERNED}
    assert counts == {"messages": 5, "tool_sets": 1, "token_prefixes": 1}  # system, two users, two answers


def test_a_merged_file_is_written_on_and_merged_again(tmp_path, known, handmade, make_episode):
    merge_databases([known, handmade], tmp_path / "c.db")
    write(tmp_path / "c.db", make_episode("later", tokens=True))
    more = write(tmp_path / "d.db", make_episode("more", tokens=True))
    result = merge_databases([more, tmp_path / "c.db", known], tmp_path / "e.db")
    assert [(i.episodes, i.known) for i in result.inputs] == [(1, 0), (12, 0), (8, 8)]
    assert set(all_of(tmp_path / "e.db")[0]) == {*all_of(tmp_path / "c.db")[0], "more"}
    assert sound(tmp_path / "e.db")


def test_ids_with_gaps_are_mapped_too(tmp_path, known, make_episode):
    path = write(tmp_path / "gaps.db", *(replace(e, episode_id=f"x{i}") for i, e in enumerate(known_episodes())))
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM decisions WHERE episode = 2")
        db.execute("DELETE FROM episodes WHERE id = 2")
        unused = "SELECT answer FROM decisions UNION SELECT value FROM decisions, json_each(prompt)"
        assert db.execute(f"DELETE FROM messages WHERE id NOT IN ({unused})").rowcount > 0
        for table in ("decision_rewards", "steps", "events"):
            db.execute(f"DELETE FROM {table} WHERE episode = 2")
        db.commit()
    merge_databases([known, path], tmp_path / "c.db")
    assert all_of(tmp_path / "c.db")[0] == all_of(known)[0] | all_of(path)[0]
    assert sound(tmp_path / "c.db")


def test_the_same_episode_in_two_files_is_kept_once(tmp_path, known):
    half = write(tmp_path / "half.db", *known_episodes()[2:5], replace(known_episodes()[0], episode_id="new"))
    result = merge_databases([half, known], tmp_path / "c.db")
    assert [(i.episodes, i.known) for i in result.inputs] == [(4, 0), (8, 3)]
    assert result.episodes == 9
    assert all_of(tmp_path / "c.db")[0] == all_of(known)[0] | all_of(half)[0]
    assert sound(tmp_path / "c.db")


CHANGES = {
    "episodes": lambda db: db.execute("UPDATE episodes SET outcome = 9 WHERE episode_id = 'e1'"),
    "decisions": lambda db: db.execute("UPDATE decisions SET latency_s = 9 WHERE turn = 2"),
    "decision_rewards": lambda db: db.execute("UPDATE decision_rewards SET ach_delta = 9 WHERE turn = 1"),
    "steps": lambda db: db.execute("DELETE FROM steps WHERE step = 2"),
    "events": lambda db: db.execute("UPDATE events SET name = 'bread' WHERE step = 2"),
    "decision_tokens": lambda db: db.execute("UPDATE decision_tokens SET mask = x'010101'"),
    "advantages": lambda db: db.execute("UPDATE advantages SET advantage = 9 WHERE turn = 2"),
}


@pytest.mark.parametrize("table", CHANGES)
@pytest.mark.parametrize("changed_first", [True, False])
def test_one_id_with_two_contents_is_refused_and_nothing_is_written(tmp_path, make_episode, table, changed_first):
    names = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in names:
        write(path, make_episode("e0"), make_episode("e1", tokens=True))
        with TraceStore.open(path) as store:
            store.write_advantages("run", 0, {"e1": (1.0, 2.0)})
    with closing(sqlite3.connect(names[0 if changed_first else 1])) as db:
        assert CHANGES[table](db).rowcount in (1, 2)
        db.commit()
    with pytest.raises(StoreError) as caught:
        merge_databases(names, tmp_path / "c.db")
    expected = f"is another one in {names[1]} than in {names[0]} (they differ in {table})"
    assert expected in str(caught.value)
    assert str(caught.value).startswith(("episode 'e1' ", "episode 'e0' "))
    assert sorted(tmp_path.glob("*c.db*")) == []


def test_another_text_under_the_same_id_is_another_episode(tmp_path, make_episode):
    """What was asked differs only in words: the row's prompt refers to another message."""
    episode = make_episode("e1")
    first, second = episode.decisions
    asked = (first.messages[0], {"role": "user", "content": "You see fire."})
    other = replace(episode, decisions=(replace(first, messages=asked), second))
    paths = write(tmp_path / "a.db", episode), write(tmp_path / "b.db", other)
    with pytest.raises(StoreError, match="they differ in decisions"):
        merge_databases(paths, tmp_path / "c.db")


def test_a_text_filed_under_anothers_hash_is_refused(tmp_path, make_episode):
    first = write(tmp_path / "a.db", make_episode("a"))
    second = write(tmp_path / "b.db", make_episode("b"))
    with closing(sqlite3.connect(second)) as db:
        db.execute("""UPDATE messages SET message = '{"role":"user","content":"changed"}' WHERE role = 'user'""")
        db.commit()
    with pytest.raises(StoreError, match=r"b\.db cannot be merged: a text in messages does not have the hash"):
        merge_databases([first, second], tmp_path / "c.db")


def test_superseded_in_one_copy_is_superseded_and_its_credit_is_gone(tmp_path, make_episode):
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for path in paths:
        write(path, make_episode("e0", update=0), make_episode("e1", update=1))
        with TraceStore.open(path) as store:
            for update, episode in enumerate(("e0", "e1")):
                store.write_advantages("run", update, {episode: (1.0, 2.0)})
    with TraceStore.open(paths[1]) as store:
        store.supersede("run", 1)
    for order in (paths, paths[::-1]):
        output = tmp_path / f"{order[0].stem}-first.db"
        merge_databases(order, output)
        merged = all_of(output)[0]
        assert {name: (mark, credit) for name, (_, mark, credit) in merged.items()} == {
            "e0": (0, {1: 1.0, 2: 2.0}),
            "e1": (1, {}),
        }


def test_a_run_with_two_configs_is_refused_unless_the_first_is_to_be_kept(tmp_path, make_episode):
    first = write(tmp_path / "a.db", make_episode("a"), runs=[("run", {"lr": 1})])
    same = write(tmp_path / "b.db", make_episode("b"), runs=[("run", {"lr": 1})])
    other = write(tmp_path / "o.db", make_episode("o"), runs=[("run", {"lr": 2})])
    merge_databases([first, same], tmp_path / "c.db")
    with pytest.raises(StoreError) as caught:
        merge_databases([same, first, other], tmp_path / "d.db")
    assert f"run 'run' has another config in {other} than in {same}; --keep-first-run" in str(caught.value)
    assert not (tmp_path / "d.db").exists()
    merge_databases([same, first, other], tmp_path / "d.db", keep_first_run=True)
    assert all_of(tmp_path / "d.db")[1] == all_of(same)[1]
    assert set(all_of(tmp_path / "d.db")[0]) == {"a", "b", "o"}


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link", "an input"])
def test_an_output_that_exists_is_refused(tmp_path, known, handmade, kind):
    output = tmp_path / "c.db"
    if kind == "file":
        output.write_text("mine")
    elif kind == "folder":
        output.mkdir()
    elif kind == "dangling link":
        output.symlink_to(tmp_path / "nowhere")
    else:
        output = known
    with pytest.raises(ConfigError, match="exists already") as caught:
        merge_databases([known, handmade], output)
    assert caught.value.field == "output"
    assert not (tmp_path / "nowhere").exists()
    if kind == "file":
        assert output.read_text() == "mine"


def test_too_few_or_the_same_input_is_refused(tmp_path, known):
    with pytest.raises(ConfigError, match="at least two databases, got 1"):
        merge_databases([known], tmp_path / "c.db")
    (tmp_path / "link.db").symlink_to(known)
    with pytest.raises(ConfigError, match=r"link\.db is given twice \(as .*known\.db too\)"):
        merge_databases([known, tmp_path / "link.db"], tmp_path / "c.db")


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path, known, handmade):
    (tmp_path / "out").mkdir()
    told = merge_databases([known, handmade], tmp_path / "out" / "c.db", dry_run=True)
    assert list((tmp_path / "out").iterdir()) == []
    done = merge_databases([known, handmade], tmp_path / "out" / "c.db")
    assert replace(told, output=done.output, size_bytes=done.size_bytes) == done
    assert told.output is None


def test_an_older_input_is_refused_with_the_command_that_upgrades_it(tmp_path, known):
    old = tmp_path / "old file.db"
    with closing(sqlite3.connect(old)) as db:
        apply_migrations(db, stop_before="0002_totals")
    with pytest.raises(StoreError, match=f"task-app traces schema --db '{old}' --upgrade"):
        merge_databases([known, old], tmp_path / "c.db")
    TraceStore.open(old).close()
    assert merge_databases([known, old], tmp_path / "c.db").episodes == 8


def test_a_reference_to_nothing_is_refused(tmp_path, known, make_episode):
    path = write(tmp_path / "b.db", make_episode("b"))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE decisions SET prompt = '[1,77]' WHERE turn = 1")
        db.commit()
    with pytest.raises(StoreError, match=r"b\.db cannot be merged: a row refers to messages 77, which is not there"):
        merge_databases([known, path], tmp_path / "c.db")
    assert not (tmp_path / "c.db").exists()


def test_inputs_that_are_being_written_give_whole_episodes_only(tmp_path, known, make_episode):
    path = write(tmp_path / "live.db", make_episode("start"))
    stop, written = threading.Event(), []

    def keep_writing() -> None:
        with TraceStore.open(path) as store:
            while not stop.is_set():
                store.write_episode(make_episode(f"n{len(written)}", tokens=True))
                written.append(f"n{len(written)}")

    writer = threading.Thread(target=keep_writing)
    writer.start()
    sizes = []
    try:
        for index in range(8):
            sure = list(written)
            merge_databases([known, path], tmp_path / f"c{index}.db")
            assert sound(tmp_path / f"c{index}.db")
            merged = all_of(tmp_path / f"c{index}.db")[0]
            assert {*sure, "start"} <= set(merged)
            live = [episode for name, (episode, _, _) in merged.items() if name.startswith("n") and name[1:].isdigit()]
            assert all(replace(e, episode_id="e") == make_episode("e", tokens=True) for e in live)
            sizes.append(len(live))
    finally:
        stop.set()
        writer.join()
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_an_output_folder_that_is_a_file_is_a_setting_to_change(tmp_path, known, handmade):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        merge_databases([known, handmade], tmp_path / "file" / "c.db")


def test_paths_need_no_care(tmp_path, known, handmade):
    output = Path(tmp_path / "50% of #1? é.db")
    merge_databases([known, handmade], output)
    assert len(all_of(output)[0]) == 11
