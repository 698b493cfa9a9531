"""Files that are no trace database of ours are refused by name and left as they were."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.core.errors import StoreError
from task_app.store import TraceStore, database
from task_app.store.schema import APPLICATION_ID


def sql(path: Path, *statements: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def empty(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def text(path: Path) -> Path:
    path.write_text("These are not the traces.\n" * 100)
    return path


def foreign(path: Path) -> Path:
    return sql(path, "CREATE TABLE photos (id INTEGER PRIMARY KEY)", "INSERT INTO photos VALUES (1)")


def foreign_with_id(path: Path) -> Path:
    return sql(path, "CREATE TABLE layers (x)", "PRAGMA application_id = 1196444487")


def foreign_without_tables(path: Path) -> Path:
    return sql(path, "PRAGMA application_id = 1196444487")


def ours(path: Path) -> Path:
    TraceStore.open(path).close()
    return path


def newer(path: Path) -> Path:
    return sql(
        ours(path), "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('task_app', '0099_x', '')"
    )


def half(path: Path) -> Path:
    whole = ours(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def damaged(path: Path) -> Path:
    whole = bytearray(ours(path).read_bytes())
    whole[4096:] = b"\xff" * (len(whole) - 4096)
    path.write_bytes(bytes(whole))
    return path


def header_only(path: Path) -> Path:
    path.write_bytes(ours(path).read_bytes()[:100])
    return path


REFUSED = {
    "text": (text, "file is not a database"),
    "foreign": (foreign, "is not a trace database of this program"),
    "foreign with an id": (foreign_with_id, "is not a trace database of this program"),
    "foreign, no tables yet": (foreign_without_tables, "is not a trace database of this program"),
    "newer": (newer, "was written by a newer version (it has 0099_x)"),
    "damaged": (damaged, "cannot be read: "),
    "half-written": (half, "cannot be read: "),
    "cut in the header": (header_only, "cannot be read: "),
}


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "to read"])
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_path_and_untouched(tmp_path, make, message, read_only):
    path = make(tmp_path / "t.db")
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        TraceStore.open(path, read_only=read_only)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert path.read_bytes() == before
    beside = {found.name for found in tmp_path.iterdir()}
    assert beside <= {"t.db", "t.db-wal", "t.db-shm"}  # what SQLite itself leaves after reading


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened: it is a folder"):
        TraceStore.open(tmp_path)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened"):
        TraceStore.open(text(tmp_path / "file") / "t.db")


@pytest.mark.parametrize("create", [True, False])
def test_a_name_too_long_is_refused(tmp_path, create):
    with pytest.raises(StoreError, match="cannot be opened: "):
        TraceStore.open(tmp_path / ("x" * 300), create=create)


@pytest.mark.parametrize("arguments", [{"create": False}, {"read_only": True}])
def test_a_missing_file_is_not_made_by_a_reader(tmp_path, arguments):
    with pytest.raises(StoreError, match=r"no\.db does not exist"):
        TraceStore.open(tmp_path / "no.db", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_becomes_a_database_for_a_writer_and_is_refused_to_a_reader(tmp_path, make_episode):
    path = empty(tmp_path / "t.db")
    with pytest.raises(StoreError, match=r"not a trace database of this program \(it is empty\)"):
        TraceStore.open(path, read_only=True)
    with pytest.raises(StoreError, match="it is empty"):
        TraceStore.open(path, create=False)
    with TraceStore.open(path) as store:
        store.write_episode(make_episode())
    with TraceStore.open(path, read_only=True) as store:
        assert store.episode("e1") == make_episode()


def test_folders_are_made_and_any_file_name_will_do(tmp_path, make_episode):
    path = tmp_path / "new folder" / "50% of #1?.db"
    with TraceStore.open(path) as store:
        store.write_episode(make_episode())
    assert path.stat().st_size > 0
    assert sqlite3.connect(path).execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_reader_cannot_write(path, store, make_episode):
    with TraceStore.open(path, read_only=True) as reader, pytest.raises(StoreError, match="readonly"):
        reader.write_episode(make_episode())


def test_an_older_schema_is_not_migrated_by_a_reader(path):
    ours_path = sql(path, f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE runs_of_old (x)")
    command = f"older version; bring it up to date with: task-app traces schema --db {path} --upgrade"
    with pytest.raises(StoreError, match=re.escape(command)):
        TraceStore.open(ours_path, read_only=True)


def test_damage_found_later_is_a_store_error_too(path, store, make_episode):
    store.write_episode(make_episode(tokens=True))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE decision_tokens SET logprobs = x'00'")
    with pytest.raises(StoreError, match="cannot be read: "):
        store.episode("e1")


OPENER = """
import sys, time
from task_app.store import TraceStore
print("ready", flush=True)
sys.stdin.readline()
start = time.monotonic()
for index, name in enumerate(sys.argv[1:]):
    while time.monotonic() < start + index * 0.02:
        pass
    TraceStore.open(name).close()
"""


def test_processes_that_open_a_new_file_at_once_agree_on_one_schema(tmp_path):
    names = [str(tmp_path / f"{index}.db") for index in range(20)]
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    errors = [opener.communicate(timeout=60)[1] for opener in openers]
    assert [opener.returncode for opener in openers] == [0, 0, 0, 0], errors
    for name in names:
        with TraceStore.open(name, read_only=True) as store:
            assert store.query("SELECT count(*) FROM _sqlite_migrations")[0][0] == 2


def test_a_full_disk_is_told_as_one(tmp_path, monkeypatch):
    """SQLite ends the transaction by itself then; that must not hide why."""
    connect = database._connect

    def full(path: Path, read_only: bool) -> sqlite3.Connection:
        connection = connect(path, read_only)
        connection.execute("PRAGMA max_page_count = 4")
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(database, "_connect", full)
        with pytest.raises(StoreError, match=r"database or disk is full \(what was stored before is kept; make room"):
            TraceStore.open(tmp_path / "t.db")
    TraceStore.open(tmp_path / "t.db").close()
