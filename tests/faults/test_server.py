"""What may happen to a served app from outside: disks, locks, crowds, slow clients and clocks."""

from __future__ import annotations

import asyncio
import resource
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from task_app.store import TraceStore
from task_app.verify import verify_database
from tests.server.served import Served, running

LOCKED_S = 10.0
LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("COMMIT")
"""


@pytest.fixture
def body() -> dict:
    return {
        "run_id": "run",
        "env": {"seed": 1},
        "policy": {"policy_name": "random", "config": {"max_llm_calls": 3}},
    }


@pytest.fixture
def app(tmp_path) -> Iterator[Served]:
    with running(tmp_path / "t.db") as served:
        yield served


def stored(db: Path) -> int:
    with TraceStore.open(db, read_only=True) as store:
        return len(list(store.episodes()))


def test_a_database_that_another_process_locks_for_ten_seconds_loses_nothing(app, body):
    assert app.post("/rollout", body).status_code == 200
    locker = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(app.db), str(LOCKED_S)], stdout=subprocess.PIPE, text=True
    )
    assert locker.stdout is not None
    assert locker.stdout.readline() == "locked\n"
    begun = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(app.post, "/rollout", body) for _ in range(3)]
        time.sleep(1.0)
        asked = time.monotonic()
        assert app.health()["ready"] is True
        assert time.monotonic() - asked < 5
        codes = [answer.result().status_code for answer in answers]
    assert time.monotonic() - begun > LOCKED_S / 2
    locker.communicate()
    assert codes == [200] * 3
    assert stored(app.db) == 4


def test_a_full_disk_is_503_and_what_was_stored_is_whole(app, body):
    assert app.post("/rollout", body).status_code == 200
    resource.prlimit(app.process.pid, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    refused = [app.post("/rollout", body | {"env": {"seed": seed}}) for seed in (2, 3)]
    resource.prlimit(app.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    after = app.post("/rollout", body)
    assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(503, "store_unavailable")] * 2
    assert after.status_code == 200, after.text
    assert stored(app.db) == 2
    assert app.is_idle()
    app.process.terminate()
    app.process.wait(20)
    assert verify_database(app.db).passed


def test_a_thousand_clients_at_once_are_all_answered(app):
    async def one() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(app.url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.split(b"\r\n", 1)[0]

    async def all_of_them() -> list[bytes]:
        return await asyncio.wait_for(asyncio.gather(*(one() for _ in range(1000))), 60)

    assert set(asyncio.run(all_of_them())) == {b"HTTP/1.1 200 OK"}


def test_slow_clients_hold_nobody_up(app, body):
    """Some send half a request and wait, one asks for an answer it does not read."""
    port = int(app.url.rpartition(":")[2])
    slow = []
    try:
        for _ in range(40):
            slow.append(socket.create_connection(("127.0.0.1", port)))
            slow[-1].sendall(b"POST /rollout HTTP/1.1\r\nHost: app\r\nContent-Length: 1000\r\n\r\n{")
        deaf = socket.create_connection(("127.0.0.1", port))
        slow.append(deaf)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: app\r\n\r\n" * 20)
        begun = time.monotonic()
        assert app.post("/rollout", body).status_code == 200
        assert app.is_idle()
        assert time.monotonic() - begun < 10
        app.process.terminate()
        assert app.process.wait(25) in (0, -15, 143)
    finally:
        for connection in slow:
            connection.close()


def test_a_client_that_leaves_takes_no_place_with_it(tmp_path, endpoint):
    endpoint.otherwise = endpoint.slow(0.3, endpoint.call("noop"))
    chat = {"policy_name": "chat", "config": {"model": "m", "inference_url": endpoint.url, "max_llm_calls": 2}}
    with running(tmp_path / "t.db", "--server.max_concurrent_rollouts=1") as app:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{app.url}/rollout", json={"run_id": "left", "env": {"seed": 1}, "policy": chat}, timeout=0.2)
        answer = app.post("/rollout", {"run_id": "next", "env": {"seed": 1}, "policy": {"policy_name": "random"}})
        assert answer.status_code == 200
        deadline = time.monotonic() + 10
        while stored(app.db) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sorted(app.statuses())[-1][0] == "truncated"
        assert stored(app.db) == 2


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_changes_no_episode(tmp_path, endpoint, jump_s, monkeypatch):
    """Limits count what passes, not what the clock shows."""
    from task_app.config import load_config
    from task_app.server import create_app

    real, jumped = time.time, []

    def jumping() -> float:
        return real() + jump_s * len(jumped)

    def answer(handler):
        jumped.append(1)
        endpoint.call("noop")(handler)

    endpoint.otherwise = answer
    chat = {"policy_name": "chat", "config": {"model": "m", "inference_url": endpoint.url, "max_llm_calls": 3}}
    db = tmp_path / "t.db"

    async def play() -> httpx.Response:
        app = create_app(load_config(None, {"rollout.trace_db": str(db), "server.max_time_s": 60.0}), environ={})
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://a") as http,
        ):
            monkeypatch.setattr(time, "time", jumping)
            sent = {"run_id": "run", "env": {"seed": 1}, "policy": chat}
            first = await http.post("/rollout", json=sent, headers={"Idempotency-Key": "k"}, timeout=60)
            monkeypatch.setattr(time, "time", real)
            return first

    done = asyncio.run(play())
    assert done.status_code == 200, done.text
    with TraceStore.open(db, read_only=True) as store:
        (episode,) = store.episodes()
    assert (episode.status, len(episode.decisions)) == ("truncated", 3)
    assert verify_database(db).passed
    with sqlite3.connect(db) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
