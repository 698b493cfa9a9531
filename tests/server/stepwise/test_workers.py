"""One session, several processes: any serves it, one request at a time, and none takes it along when it dies."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from task_app.core.errors import StoreError
from task_app.core.wire import episode_bytes
from task_app.server.shared import shared_path
from task_app.server.stepwise.table import Answer, SessionTable
from task_app.store import TraceStore
from task_app.verify import verify_database
from tests.server.served import Served, running

LIMIT = {"policy": {"config": {"max_llm_calls": 4}}}


@pytest.fixture
def workers(tmp_path) -> Iterator[Callable[[int], list[Served]]]:
    """Start servers in processes of their own that share one trace database."""
    with ExitStack() as stack:
        yield lambda count: [stack.enter_context(running(tmp_path / "t.db")) for _ in range(count)]


def post(worker: Served, path: str, **body: Any) -> dict[str, Any]:
    answer = worker.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_requests_of_one_session_reach_any_worker_and_kill_9_loses_nothing(workers):
    first, second = workers(2)
    moving = post(first, "/env/crafter/initialize", seed=2, **LIMIT)
    steady = post(first, "/env/crafter/initialize", seed=2, **LIMIT)
    policy = post(first, "/policy/create", policy_name="random")["policy_id"]
    for turn, worker in enumerate([first, second, first]):
        said = post(worker, "/policy/step", policy_id=policy, env_id=moving["env_id"])
        other = post(second, "/policy/step", policy_id=policy, env_id=steady["env_id"])
        assert said["tool_calls"] == other["tool_calls"], turn
        told = post(worker, "/env/crafter/step", env_id=moving["env_id"], tool_calls=said["tool_calls"])
        same = post(first, "/env/crafter/step", env_id=steady["env_id"], tool_calls=said["tool_calls"])
        assert {**told, "env_id": ""} == {**same, "env_id": ""}
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    for session in (moving, steady):
        ended = post(second, "/env/crafter/step", env_id=session["env_id"], action=["do", "move_left"])
        assert ended["ending"]["cause"] == "max_decisions"
    with TraceStore.open(second.db, read_only=True) as store:
        one, other = (store.episode(session["env_id"]) for session in (moving, steady))
    assert episode_bytes(one) == episode_bytes(other)
    assert one.started_at <= one.decisions[0].started_at <= one.decisions[3].started_at <= one.finished_at
    assert verify_database(second.db).passed


def test_a_step_whose_answer_died_with_its_worker_is_answered_by_another_and_played_once(workers):
    first, second = workers(2)
    env_id = post(first, "/env/crafter/initialize", seed=2, policy={"config": {"max_llm_calls": 1}})["env_id"]
    body = {"env_id": env_id, "action": ["do", "move_left"], "request_id": "r1"}
    told = post(first, "/env/crafter/step", **body)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    assert post(second, "/env/crafter/step", **body) == told
    assert told["ending"]["decisions"] == 1


def test_a_worker_that_stops_ends_its_own_sessions_and_leaves_those_of_others(workers):
    first, second = workers(2)
    mine = post(first, "/env/crafter/initialize", seed=1)["env_id"]
    theirs = post(second, "/env/crafter/initialize", seed=1)["env_id"]
    moved = post(first, "/env/crafter/initialize", seed=1)["env_id"]
    post(second, "/env/crafter/step", env_id=moved, action="noop")
    first.process.terminate()
    first.process.wait(timeout=20)
    for env_id in (theirs, moved):
        post(second, "/env/crafter/step", env_id=env_id, action="noop")
    refused = second.http.post("/env/crafter/step", json={"env_id": mine, "action": "noop"})
    assert refused.status_code == 409
    assert second.statuses() == [("aborted", "the server stopped")]


def test_what_a_killed_server_left_goes_on_in_the_next_one(workers):
    (first,) = workers(1)
    env_id = post(first, "/env/crafter/initialize", seed=3)["env_id"]
    post(first, "/env/crafter/step", env_id=env_id, action="noop")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    (second,) = workers(1)
    assert post(second, "/env/crafter/step", env_id=env_id, action="noop")["step_idx"] == 2
    second.process.terminate()
    second.process.wait(timeout=20)
    assert second.statuses() == [("aborted", "the server stopped")]


def test_a_session_that_is_held_is_a_conflict_until_it_is_let_go_or_its_holder_dies(workers):
    (worker,) = workers(1)
    env_id = post(worker, "/env/crafter/initialize", seed=3)["env_id"]
    with SessionTable(shared_path(worker.db)) as table:
        token = table.hold(env_id)
        assert token is not None
        assert table.hold(env_id) is None
        refused = worker.http.post("/env/crafter/step", json={"env_id": env_id, "action": "noop"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")
        table.release(env_id, token)
    post(worker, "/env/crafter/step", env_id=env_id, action="noop")
    script = f"""
from pathlib import Path
from task_app.server.stepwise.table import SessionTable
import os, signal
assert SessionTable(Path({str(shared_path(worker.db))!r})).hold({env_id!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert post(worker, "/env/crafter/step", env_id=env_id, action="noop")["step_idx"] == 2


def test_of_two_requests_at_once_each_is_played_whole_or_refused(workers):
    (worker,) = workers(1)
    env_id = post(worker, "/env/crafter/initialize", seed=3, policy={"config": {"max_llm_calls": 100}})["env_id"]

    def step(_: int) -> int:
        return worker.http.post("/env/crafter/step", json={"env_id": env_id, "action": ["noop"] * 5}).status_code

    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(step, range(40)))
    assert set(codes) <= {200, 409}
    ending = post(worker, "/env/crafter/terminate", env_id=env_id)["ending"]
    assert ending["decisions"] == codes.count(200) > 0


# -- the table itself -----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path) -> Iterator[SessionTable]:
    with SessionTable(tmp_path / "t.serving.db") as opened:
        yield opened


def test_a_session_killed_between_its_last_decision_and_its_end_is_ended_by_the_next_request(workers):
    (worker,) = workers(1)
    ids = [post(worker, "/env/crafter/initialize", seed=3, **LIMIT)["env_id"] for _ in range(2)]
    for env_id in ids:
        for _ in range(4):
            post(worker, "/env/crafter/step", env_id=env_id, action="noop")
    with sqlite3.connect(shared_path(worker.db)) as connection:  # as if the end had not been written
        connection.execute("UPDATE sessions SET ending = NULL")
    connection.close()
    assert worker.http.post("/env/crafter/step", json={"env_id": ids[0], "action": "noop"}).status_code == 409
    assert post(worker, "/env/crafter/terminate", env_id=ids[1])["ending"]["cause"] == "max_decisions"
    assert worker.statuses() == [("truncated", "max_decisions")] * 2


def test_a_process_is_told_from_a_later_one_of_the_same_number(table):
    assert table.open_session("a", {}, "", most=1) is not None
    assert table.hold("a") is not None
    with table._transaction() as execute:
        execute("UPDATE sessions SET held_by = ?", (f"{os.getpid()}:1:x",))
    assert table.hold("a") is not None


def test_ages_before_the_machine_started_count_as_old(table):
    assert table.open_session("a", {}, "", most=1) is not None
    assert table.idle(60) == []
    with table._transaction() as execute:
        execute("UPDATE sessions SET used = ?", (time.monotonic() + 1e6,))
    assert table.idle(60) == ["a"]


def test_a_turn_is_answered_once(table):
    assert table.open_session("a", {}, "", most=1) is not None
    table.add_answer("a", Answer(1, {"x": 1}, 0.0))
    with pytest.raises(StoreError):
        table.add_answer("a", Answer(1, {"x": 2}, 0.0))
    assert [answer.completion for answer in table.answers("a")] == [{"x": 1}]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened"):
        SessionTable(tmp_path)
    assert shared_path(Path("a/t.db")) == Path("a/t.serving.db")


def test_only_the_owner_can_read_the_file(table):
    assert table.path.stat().st_mode & 0o077 == 0
