"""Places, answers and counts that several processes share."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from task_app.core.errors import StoreError
from task_app.http.errors import Busy, Conflict
from task_app.http.process import identity_of
from task_app.server import shared as module
from task_app.server.shared import Counts, Shared, shared_path
from tests.train.full_disk import files_end_at

ELSEWHERE = """
import sys
from pathlib import Path
from task_app.server.shared import Shared
shared = Shared.open(Path(sys.argv[1]), max_running=2, max_waiting=1)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "t.serving.db"


@pytest.fixture
def here(path):
    with Shared.opened(path, max_running=2, max_waiting=1) as shared:
        yield shared


@pytest.fixture
def elsewhere(path, here):
    """Another process with the same file: `ask("shared.…")` gives what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def ask(call: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        print(call, file=process.stdin, flush=True)
        return process.stdout.readline().strip()

    ask.process = process
    yield ask
    process.kill()
    process.communicate()


def test_it_lies_beside_the_trace_database():
    assert shared_path(Path("traces/task_app.db")) == Path("traces/task_app.serving.db")


def test_places_are_counted_over_processes(here, elsewhere):
    assert here.enter("a", "run") is True
    assert elsewhere("shared.enter('b', 'run')") == "True"
    assert here.enter("c", "run") is False
    with pytest.raises(Busy):
        here.enter("d", "run")
    assert here.counts() == Counts(running=2, waiting=1)
    assert here.advance() == []
    assert elsewhere("shared.leave('b')") == "[]"
    assert here.advance() == ["c"]
    assert here.counts() == Counts(running=2, waiting=0)


def test_a_killed_process_gives_its_places_back(here, elsewhere):
    for name in ("a", "b"):
        assert elsewhere(f"shared.enter({name!r}, 'run')") == "True"
    assert here.enter("c", "run") is False
    elsewhere.process.kill()
    elsewhere.process.wait()
    assert here.counts() == Counts(running=0, waiting=1)
    assert here.rollouts_of("run")[0].episode_id == "c"
    assert here.advance() == ["c"]
    assert [one.episode_id for one in here.rollouts_of("run")] == ["c"]


def test_an_abort_reaches_each_process_its_own(here, elsewhere):
    here.enter("a", "run")
    elsewhere("shared.enter('b', 'run')")
    here.enter("c", "other")
    assert here.abort("run") == 2
    assert here.to_abort() == {"a"}
    assert elsewhere("shared.to_abort()") == "{'b'}"
    assert {one.episode_id: one.aborting for one in here.rollouts_of("run")} == {"a": True, "b": True}


def test_a_request_is_one_over_processes(here, elsewhere):
    assert here.begin_request("key", b"body", "a") is None
    assert elsewhere("shared.begin_request('key', b'body', 'b').lost") == "False"
    with pytest.raises(Conflict):
        here.begin_request("key", b"another", "b")
    here.finish_request("key", b"answer")
    assert elsewhere("shared.begin_request('key', b'body', 'b').answer") == "b'answer'"


def test_a_request_of_a_killed_process_is_taken_over_once(here, elsewhere):
    assert elsewhere("shared.begin_request('key', b'body', 'a')") == "None"
    elsewhere.process.kill()
    elsewhere.process.wait()
    found = here.begin_request("key", b"body", "b")
    assert (found.episode_id, found.lost) == ("a", True)
    assert here.take_over("key", "a", "b") is True
    assert here.take_over("key", "a", "c") is False
    assert here.begin_request("key", b"body", "c").lost is False


def test_what_is_left_unanswered_at_the_end_is_lost_not_running(path):
    with Shared.opened(path, max_running=1, max_waiting=1) as first:
        first.begin_request("key", b"body", "a")
        first.enter("a", "run")
    with Shared.opened(path, max_running=1, max_waiting=1) as second:
        found = second.begin_request("key", b"body", "b")
        assert found is not None
        assert found.lost is True
        assert second.counts() == Counts(0, 0)


def test_a_forgotten_request_begins_anew_and_an_answered_one_is_not_forgotten(here):
    here.begin_request("key", b"body", "a")
    here.forget_request("key")
    assert here.begin_request("key", b"another", "b") is None
    here.finish_request("key", b"answer")
    here.forget_request("key")
    assert here.begin_request("key", b"another", "c").answer == b"answer"


def test_answers_are_kept_for_a_day(here, path, monkeypatch):
    now = module.time.time()
    here.begin_request("key", b"body", "a")
    here.finish_request("key", b"answer")
    monkeypatch.setattr(module.time, "time", lambda: now + module.KEPT_S + 60)
    assert here.begin_request("key", b"another", "b") is None
    monkeypatch.setattr(module.time, "time", lambda: now + 3 * module.KEPT_S)
    assert here.begin_request("other", b"body", "c") is None
    with here._reading() as rows:
        assert rows.execute("SELECT count(*) FROM requests").fetchone()[0] == 1
    monkeypatch.setattr(module.time, "time", lambda: now + 5 * module.KEPT_S)
    with Shared.opened(path, max_running=1, max_waiting=1) as later, later._reading() as rows:
        assert rows.execute("SELECT count(*) FROM requests").fetchone()[0] == 0


def test_calls_are_counted_by_caller_and_minute(here, elsewhere, monkeypatch):
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now)
    assert [here.calls_this_minute(b"one") for _ in range(2)] == [1, 2]
    assert here.calls_this_minute(b"two") == 1
    monkeypatch.setattr(module.time, "time", lambda: now + 60)
    assert here.calls_this_minute(b"one") == 1


def test_no_key_of_anybody_is_in_the_file(here, path):
    here.begin_request("idem-secret", b'{"body": "secret"}', "a")
    here.calls_this_minute(b"caller-secret")
    held = b"".join(file.read_bytes() for file in path.parent.glob("t.serving.db*"))
    assert b"secret" not in held


def test_a_file_that_is_no_database(path):
    path.write_text("x" * 5000)
    with pytest.raises(StoreError, match="keeps beside its trace database"):
        Shared.open(path, max_running=1, max_waiting=1)


def test_a_process_id_that_is_used_again_is_not_the_one_that_died(here):
    with here._transaction() as rows:
        rows.execute("INSERT INTO rollouts VALUES ('x', 'run', ?, 'running', 0, 0)", (f"{os.getpid()}:1",))
    assert here.rollouts_of("run") == []


def test_readers_are_known_to_every_process_and_the_first_to_end_goes(here, elsewhere, monkeypatch):
    now = module.time.time()
    for index in range(3):
        here.begin_session(bytes([index]), now + 100 + index, 2)
    assert [bool(here.session_ends(bytes([index]))) for index in range(3)] == [False, True, True]
    assert float(elsewhere("shared.session_ends(bytes([2]))")) == now + 102
    elsewhere("shared.end_session(bytes([2]))")
    assert here.session_ends(bytes([2])) == 0
    here.end_sessions()
    assert here.session_ends(bytes([1])) == 0


def test_who_has_waited_longest_in_any_process_plays_first(path):
    with (
        Shared.opened(path, max_running=1, max_waiting=5) as here,
        Shared.opened(path, max_running=1, max_waiting=5) as there,
    ):
        there._owner = identity_of(1)  # another process that lives
        assert here.enter("first", "run") is True
        assert there.enter("second", "run") is False
        assert here.enter("third", "run") is False
        here.leave("first")
        assert here.enter("newcomer", "run") is False
        assert here.advance() == []
        assert there.advance() == ["second"]
        there.leave("second")
        assert here.advance() == ["third"]


def test_whoever_leaves_lets_in_the_next_of_its_own_process_alone(path):
    with (
        Shared.opened(path, max_running=1, max_waiting=5) as here,
        Shared.opened(path, max_running=1, max_waiting=5) as there,
    ):
        there._owner = identity_of(1)  # another process that lives
        for name, shared in (("first", here), ("second", here), ("third", there), ("fourth", here)):
            shared.enter(name, "run")
        assert (here.has_turn(), there.has_turn()) == (False, False)
        assert here.leave("first") == ["second"]
        assert here.leave("second") == []
        assert (here.has_turn(), there.has_turn()) == (False, True)
        assert there.advance() == ["third"]
        assert there.leave("third") == []
        assert (here.has_turn(), there.has_turn()) == (True, False)


def test_the_dead_are_dropped_by_whoever_looks(here, elsewhere):
    for name in ("a", "b"):
        elsewhere(f"shared.enter({name!r}, 'run')")
    here.enter("c", "run")
    here.drop_the_dead()
    assert here.has_turn() is False
    elsewhere.process.kill()
    elsewhere.process.wait()
    here.drop_the_dead()
    assert here.has_turn() is True


def test_a_place_that_could_not_be_given_back_is_given_back_later(here, path):
    """A disk that is full for a moment costs no place and no answer."""
    here.enter("a", "run")
    here.begin_request("key", b"body", "a")
    here.begin_request("other", b"body", "b")
    with files_end_at(path.with_name(f"{path.name}-wal").stat().st_size):
        here.leave("a")
        here.finish_request("key", b"answer" * 2000)
        here.forget_request("other")
        with pytest.raises(StoreError):
            here.settle()
    assert here.counts() == Counts(1, 0)
    here.settle()
    assert here.counts() == Counts(0, 0)
    assert here.begin_request("key", b"body", "c").answer == b"answer" * 2000
    assert here.begin_request("other", b"another", "c") is None


def test_reading_waits_for_no_writer(here, path):
    here.begin_session(b"t", module.time.time() + 100, 5)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    waiting = threading.Thread(target=here.leave, args=("nobody",))
    waiting.start()
    begun = time.monotonic()
    assert here.session_ends(b"t") > 0
    assert here.counts() == Counts(0, 0)
    assert time.monotonic() - begun < 2
    writer.execute("ROLLBACK")
    waiting.join()
    writer.close()


def test_only_its_owner_can_read_the_file(here, path):
    assert path.stat().st_mode & 0o077 == 0
