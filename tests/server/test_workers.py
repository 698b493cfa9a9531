"""Several processes on one port: limits, aborts, answers and metrics of all together; deaths and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.http.ports import listen
from task_app.server.serve import Reload, serve
from task_app.server.shared import Shared, shared_path
from task_app.server.workers import run_workers
from tests.server.served import Served, running

TWO = ("--workers", "2")


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("workers") / "t.db", *TWO, "--server.max_concurrent_rollouts=2") as app:
        yield app


def chat_body(endpoint, body_of, **changes):
    return body_of(
        policy__policy_name="chat", policy__config__model="m", policy__config__inference_url=endpoint.url, **changes
    )


def test_both_answer_and_name_one_server(served):
    pids = served.worker_pids()
    assert len(pids) == 2
    assert served.process.pid not in pids
    assert served.health()["server_pid"] == served.process.pid


def test_limits_hold_for_both_together(served, endpoint, body_of):
    endpoint.otherwise = endpoint.slow(0.15, endpoint.call("noop"))
    with ThreadPoolExecutor(6) as pool:
        bodies = [chat_body(endpoint, body_of, run_id=f"limit-{index}") for index in range(6)]
        answers = [pool.submit(served.post, "/rollout", body) for body in bodies]
        seen = []
        while not all(answer.done() for answer in answers):
            queue = served.health()["queue"]
            seen.append((queue["running"], queue["waiting"]))
            time.sleep(0.02)
    assert [answer.result().status_code for answer in answers] == [200] * 6
    assert max(running for running, _ in seen) == 2
    assert max(waiting for _, waiting in seen) >= 3


def test_an_abort_reaches_every_worker(served, endpoint, body_of):
    endpoint.otherwise = endpoint.slow(0.2, endpoint.call("noop"))
    body = chat_body(endpoint, body_of, run_id="to-abort", policy__config__max_llm_calls=200)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(served.post, "/rollout", body) for _ in range(4)]
        while sum(served.health()["queue"][name] for name in ("running", "waiting")) < 4:
            time.sleep(0.02)
        assert served.post("/run/abort", {"run_id": "to-abort"}).json()["aborting"] == 4
    assert [answer.result().json()["aborted"] for answer in answers] == [True] * 4


def test_one_key_is_one_episode_whichever_worker_is_asked(served, body_of):
    with ThreadPoolExecutor(8) as pool:
        send = [
            pool.submit(served.post, "/rollout", body_of(run_id="once"), **{"Idempotency-Key": "k"}) for _ in "12345678"
        ]
    assert len({answer.result().content for answer in send}) == 1
    status = httpx.get(f"{served.url}/run/status/once", trust_env=False).json()
    assert status["episodes"] == {"truncated": 1}


def test_metrics_add_up(served, body_of):
    def played() -> float:
        text = httpx.get(f"{served.url}/metrics", trust_env=False).text
        return float(re.findall(r'task_app_rollouts_total\{status="truncated"\} (\S+)', text)[0])

    served.post("/rollout", body_of())
    before = played()
    for _ in range(6):
        served.post("/rollout", body_of())
    assert played() - before == 6


def test_a_killed_worker_is_replaced_and_gives_its_places_back(tmp_path, endpoint, body_of):
    endpoint.otherwise = endpoint.slow(0.5, endpoint.call("noop"))
    with running(tmp_path / "t.db", *TWO, "--server.max_concurrent_rollouts=1") as app:
        before = app.worker_pids()
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(app.post, "/rollout", chat_body(endpoint, body_of, policy__config__max_llm_calls=50))
            with Shared.opened(shared_path(app.db), max_running=1, max_waiting=1) as shared:
                while not shared.rollouts_of("run"):
                    time.sleep(0.02)
                with shared._reading() as rows:
                    owner = rows.execute("SELECT owner FROM rollouts").fetchone()[0]
                os.kill(int(owner.partition(":")[0]), signal.SIGKILL)
            assert isinstance(lost.exception(), httpx.HTTPError)
        assert app.post("/rollout", body_of(run_id="next")).status_code == 200
        after = app.worker_pids()
        assert len(after) == 2
        assert len(before & after) == 1
        assert [status for status, _ in app.statuses()] == ["truncated"]


def test_the_end_is_told_to_all_and_marks_what_runs(tmp_path, endpoint, body_of):
    endpoint.otherwise = endpoint.slow(0.2, endpoint.call("noop"))
    with running(tmp_path / "t.db", *TWO) as app:
        pids = app.worker_pids()
        body = chat_body(endpoint, body_of, policy__config__max_llm_calls=500)
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(app.post, "/rollout", body) for _ in range(4)]
            while app.health()["queue"]["running"] < 4:
                time.sleep(0.02)
            app.process.send_signal(signal.SIGTERM)
            assert app.process.wait(20) == 0
        assert [answer.result().json()["aborted"] for answer in answers] == [True] * 4
        assert app.statuses() == [("aborted", "interrupted")] * 4
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_workers_do_not_outlive_a_killed_server(tmp_path):
    with running(tmp_path / "t.db", *TWO) as app:
        pids = app.worker_pids()
        app.process.kill()
        deadline = time.monotonic() + 20
        while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_that_is_ended_by_force_for_another(tmp_path):
    with running(tmp_path / "t.db", *TWO) as first:
        port = first.url.rpartition(":")[2]
        command = [sys.executable, "-m", "task_app", "serve", "crafter", "--trace-db", str(tmp_path / "t.db")]
        refused = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 2
        assert f"port {port} is in use by another crafter-task-app" in refused.stderr
        second = subprocess.Popen([*command, "--port", port, "--force"], stdout=subprocess.PIPE, text=True)
        try:
            assert second.stdout is not None
            assert first.url in second.stdout.readline()
            assert first.process.wait(20) == 0
            assert first.health()["server_pid"] == second.pid
        finally:
            second.kill()
            second.communicate()


def test_a_reader_who_gave_the_key_may_ask_any_worker_until_the_server_ends(tmp_path):
    def page(app: Served, cookie: str) -> int:
        """On a connection of its own."""
        url = f"{app.url}/viewer/api/runs"
        return httpx.get(url, headers={"Cookie": cookie}, timeout=20, trust_env=False).status_code

    key = {"ENVIRONMENT_API_KEY": "ek-1"}
    with running(tmp_path / "t.db", *TWO, "--port", "0", **key) as app:
        entered = httpx.post(f"{app.url}/viewer/login", data={"key": "ek-1"}, timeout=20, trust_env=False)
        cookie = entered.headers["Set-Cookie"].partition(";")[0]
        port = app.url.rpartition(":")[2]
        assert [page(app, cookie) for _ in range(8)] == [200] * 8
        left = httpx.post(f"{app.url}/viewer/logout", headers={"Cookie": cookie}, timeout=20, trust_env=False)
        assert left.status_code == 303
        assert [page(app, cookie) for _ in range(4)] == [401] * 4
        entered = httpx.post(f"{app.url}/viewer/login", data={"key": "ek-1"}, timeout=20, trust_env=False)
        cookie = entered.headers["Set-Cookie"].partition(";")[0]
        app.process.terminate()
        app.process.wait(20)
    with running(tmp_path / "t.db", "--port", port, **key) as app:
        assert page(app, cookie) == 401


def test_workers_that_die_before_they_serve_are_no_server(tmp_path):
    told = []
    config = load_config(None, {"server.workers": 2, "rollout.trace_db": str(tmp_path / "t.db")})
    with listen("127.0.0.1", 0) as listener, pytest.raises(TaskAppError, match="before it served"):
        run_workers(die, config, {}, listener, lambda: told.append(1))
    assert told == []


def die(config, environ, listener, ready):
    raise SystemExit(3)


def test_reload_is_one_process(tmp_path):
    config = load_config(None, {"server.workers": 2, "rollout.trace_db": str(tmp_path / "t.db")})
    with pytest.raises(ConfigError, match="--reload serves in one process") as caught:
        serve(config, ready=print, environ={}, reload=Reload())
    assert caught.value.field == "server.workers"
