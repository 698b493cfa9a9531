"""Every `traces` command against files that are no good: one sentence, the right exit code, the file as it was."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from task_app.cli import main
from task_app.cli.traces import add_to
from task_app.core.wire import episode_to_json
from task_app.store import TraceStore
from task_app.store.migrations import apply_migrations
from tests.known_traces import write_known

COMMANDS = {
    "show": lambda db, good, out: ("night-1a", "--db", db),
    "analyze": lambda db, good, out: ("--db", db),
    "export-sft": lambda db, good, out: ("--db", db, "--output", out / "rows.jsonl"),
    "verify": lambda db, good, out: ("--db", db),
    "view": lambda db, good, out: ("--db", db, "--port", "0"),
    "merge": lambda db, good, out: (good, db, "--output", out / "all.db"),
    "prune": lambda db, good, out: ("--db", db, "--run-id", "night", "--yes"),
    "schema": lambda db, good, out: ("--db", db),
    "relabel": lambda db, good, out: ("--db", db, "--teacher", "expert", "--output", out / "relabelled.jsonl"),
    "datasette": lambda db, good, out: ("--db", db, "--output", out / "metadata.json"),
}
"""How each command is called on a database; `good` is another, sound one, `out` a folder for what it writes."""

REPLAYING = ("verify", "relabel")
"""Those that play the known episodes again, which were made by hand and cannot be."""
ENDING = [name for name in COMMANDS if name != "view"]
"""Those that come back on a sound database."""


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.db"
    with TraceStore.open(path) as store:
        write_known(store)
    return path


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def run(good, out, monkeypatch, capfd):
    """Run `traces COMMAND` on a file in this process; gives exit code, standard output and error."""

    def call(command, db, *more):
        words = ["task-app", "traces", command, *map(str, COMMANDS[command](db, good, out)), *map(str, more)]
        monkeypatch.setattr(sys, "argv", words)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def test_every_command_is_here():
    import typer

    app = typer.Typer()
    add_to(app)
    (group,) = app.registered_groups
    assert group.typer_instance is not None
    assert {command.name for command in group.typer_instance.registered_commands} == set(COMMANDS)


# -- files that are refused ----------------------------------------------------------------------


def missing(path, good):
    """Nothing is made."""


def empty(path, good):
    path.write_bytes(b"")


def text(path, good):
    path.write_text("These are not the traces.\n" * 100)


def folder(path, good):
    path.mkdir()


def foreign(path, good):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (id INTEGER PRIMARY KEY)")
    db.close()


def newer(path, good):
    shutil.copy(good, path)
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('task_app', '0099_later', '')"
        )
    db.close()


def older(path, good):
    db = sqlite3.connect(path)
    apply_migrations(db, stop_before="0002_totals")
    db.close()


def cut(path, good):
    path.write_bytes(good.read_bytes()[:10_000])


REFUSED = {
    "missing": (missing, "trace database {path} does not exist"),
    "empty": (empty, "{path} is not a trace database of this program (it is empty)"),
    "a text": (text, "trace database {path} cannot be read: file is not a database"),
    "a folder": (folder, "trace database {path} cannot be opened: it is a folder"),
    "another program's": (foreign, "{path} is not a trace database of this program"),
    "of a newer version": (newer, "{path} was written by a newer version (it has 0099_later)"),
    "of an older version": (older, "bring it up to date with: task-app traces schema --db {path} --upgrade"),
    "cut off": (cut, "trace database {path} cannot be read: database disk image is malformed"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_is_refused_by_name_and_left_as_it_was(tmp_path, good, out, run, command, kind):
    make, sentence = REFUSED[kind]
    path = tmp_path / "bad.db"
    make(path, good)
    before = path.read_bytes() if path.is_file() else None
    code, said, error = run(command, path)
    assert (code, said) == (1, "")
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert sentence.format(path=path) in error
    assert (path.read_bytes() if path.is_file() else None) == before
    assert list(out.iterdir()) == []


def test_the_command_that_the_sentence_names_helps(tmp_path, good, run):
    path = tmp_path / "bad.db"
    older(path, good)
    assert run("schema", path, "--upgrade")[0] == 0
    assert run("schema", path)[0] == 0


# -- locked -----------------------------------------------------------------------------------------

LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA locking_mode = {sys.argv[2]}")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE runs SET command = command")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@contextmanager
def locked(path, kind):
    """Another process holds the file: `EXCLUSIVE` for itself alone, `NORMAL` for writing."""
    command = [sys.executable, "-c", LOCKER, str(path), kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    with process:
        try:
            assert process.stdout.readline() == "locked\n"
            yield lambda: process.communicate("go\n", timeout=30)
        finally:
            process.kill()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_locked_file_is_waited_for_and_then_named(tmp_path, good, out, run, monkeypatch, command):
    path = tmp_path / "busy.db"
    shutil.copy(good, path)
    monkeypatch.setattr("task_app.store.database.BUSY_TIMEOUT_S", 0.2)
    with locked(path, "EXCLUSIVE"):
        start = time.monotonic()
        code, said, error = run(command, path)
        assert time.monotonic() - start >= 0.2
    assert (code, said) == (1, "")
    assert str(path) in error
    assert "database is locked (another process kept it locked for 0.2 s)" in error
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("command", [name for name in ENDING if name not in REPLAYING])
def test_a_lock_that_is_let_go_of_only_delays(tmp_path, good, run, command):
    path = tmp_path / "busy.db"
    shutil.copy(good, path)
    with locked(path, "EXCLUSIVE") as let_go:
        timer = threading.Timer(0.3, let_go)
        timer.start()
        code, _, error = run(command, path, *(["--keep-first-run"] if command == "merge" else []))
        timer.join()
    assert (code, error) == (0, error)


def test_one_who_writes_does_not_stop_readers_and_stops_a_writer(tmp_path, good, run, monkeypatch):
    path = tmp_path / "busy.db"
    shutil.copy(good, path)
    monkeypatch.setattr("task_app.store.database.BUSY_TIMEOUT_S", 0.2)
    with locked(path, "NORMAL"):
        assert [run(command, path)[0] for command in ("show", "schema", "datasette", "merge")] == [0, 0, 0, 0]
        code, _, error = run("prune", path)
    assert (code, f"trace database {path} was not pruned: database is locked" in error) == (1, True)
    assert json.loads(run("schema", path, "--json")[1])["relations"][1]["rows"] == 8


# -- killed in the middle -----------------------------------------------------------------------------

WRITER = """
import json, sys
from dataclasses import replace
from itertools import count
from task_app.core.wire import episode_from_json
from task_app.store import TraceStore
episode = episode_from_json(json.load(sys.stdin))
store = TraceStore.open(sys.argv[1])
store.write_run("night", "rollout", {})
for index in count():
    store.write_episode(replace(episode, episode_id=f"night-1a{index:04}", run_id="night"))
    print(index, flush=True)
"""


@pytest.fixture
def killed(tmp_path, play_scripted):
    """A database whose writer was killed in the middle, its log beside it; and how many episodes it had told of."""
    path = tmp_path / "killed.db"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    (episode,) = play_scripted(range(1), 1, policy="expert", max_decisions=3)
    json.dump(episode_to_json(episode), process.stdin)
    process.stdin.close()
    told = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.read().split()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    assert path.with_name("killed.db-wal").stat().st_size > 0
    return path, len(told)


@pytest.mark.parametrize("command", ENDING)
def test_a_killed_writers_file_opens_and_holds_whole_episodes(killed, run, command):
    path, told = killed
    more = {"show": ["--json"], "merge": ["--keep-first-run"], "verify": ["--json"]}.get(command, [])
    if command == "show":
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(COMMANDS, "show", lambda db, good, out: ("night-1a0003", "--db", db))
            code, _, error = run(command, path, *more)
    else:
        code, _, error = run(command, path, *more)
    assert (code, "error" in error) == (0, False)
    rows = {r["name"]: r["rows"] for r in json.loads(run("schema", path, "--json")[1])["relations"]}
    kept = 0 if command == "prune" else rows["episodes"]
    assert kept in ((0,) if command == "prune" else (told, told + 1))
    assert rows["decisions"] == rows["decision_rewards"] == 3 * kept


# -- what must be written ---------------------------------------------------------------------------

WRITING = {"export-sft": "--output", "merge": "--output", "datasette": "--output", "analyze": "--html"}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("kind", ["a folder that is a file", "a name that is a folder"])
def test_an_output_that_cannot_be_written_is_said_and_nothing_is_truncated(tmp_path, good, out, run, command, kind):
    db = tmp_path / "copy.db"
    with TraceStore.open(db) as store:
        write_known(store)
    (out / "file").write_text("mine")
    where = out / "file" / "result" if kind == "a folder that is a file" else out
    more = ["--keep-first-run"] if command == "merge" else []
    code, _, error = run(command, db, WRITING[command], where, *more)
    assert code in (1, 2)
    assert error.startswith("error: ")
    assert str(where) in error
    assert "Traceback" not in error
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [("file", "mine")]


# -- a folder that may not be written ---------------------------------------------------------------


@pytest.fixture
def read_only_place(good):
    """A folder anyone may read and nobody may write; the file in it too. Removed afterwards."""
    place = Path(tempfile.mkdtemp())
    try:
        shutil.copy(good, place / "t.db")
        (place / "t.db").chmod(0o444)
        yield place
    finally:
        place.chmod(0o755)
        shutil.rmtree(place)


BOUND = """
import ctypes, os, sys
if os.geteuid() == 0:  # permissions do not bind the superuser; give up the two capabilities that let him pass
    for capability in (1, 2):
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "task_app", *sys.argv[1:]])
"""


def bound_by_permissions(*words):
    """Run a command as someone who may only what the file system allows."""
    command = [sys.executable, "-c", BOUND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_file_in_a_folder_that_cannot_be_written_is_read(read_only_place):
    path = read_only_place / "t.db"
    read_only_place.chmod(0o555)
    before = path.read_bytes()
    shown = bound_by_permissions("traces", "show", "night-1a", "--db", path, "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout)["outcome"] == 2
    pruned = bound_by_permissions("traces", "prune", "--db", path, "--run-id", "night", "--yes")
    assert (pruned.returncode, path.read_bytes()) == (1, before)
    assert f"trace database {path} cannot be opened for writing: the file is read-only" in pruned.stderr
    assert [found.name for found in read_only_place.iterdir()] == ["t.db"]


def test_episodes_waiting_in_a_log_there_are_not_passed_over_in_silence(read_only_place, killed):
    path, _ = killed
    for end in ("", "-wal"):
        shutil.copy(path.with_name(f"{path.name}{end}"), read_only_place / f"k.db{end}")
    read_only_place.chmod(0o555)
    told = bound_by_permissions("traces", "schema", "--db", read_only_place / "k.db")
    assert told.returncode == 1
    assert "episodes are waiting in k.db-wal, and the folder cannot be written; copy both files" in told.stderr
