"""The app in a process of its own on a real port: concurrency, signals, kill -9, and what it refuses to serve."""

from __future__ import annotations

import json
import re
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

import httpx
import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError, StoreError
from task_app.core.wire import episode_bytes, episode_from_json
from task_app.http.ports import address_of, listen
from task_app.server.serve import serve
from task_app.store import TraceStore
from tests.server.served import Served, running


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("served") / "t.db", ENVIRONMENT_API_KEY="ek-1") as app:
        app.http.headers["X-API-Key"] = "ek-1"
        yield app


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Served]]:
    """Start an app of the test's own."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(running(tmp_path / "t.db", *arguments))


def without_ids_and_times(answer: dict[str, Any]) -> dict[str, Any]:
    details = {key: value for key, value in answer["metrics"]["details"].items() if key != "episode_id"}
    episode = episode_bytes(episode_from_json(answer["trace"]["episode"]))
    return {**answer, "metrics": {**answer["metrics"], "details": details}, "trace": episode}


def test_forty_of_forty_with_eight_clients_equal_those_made_one_after_another(served, body_of):
    def play(plan: tuple[int, int]) -> dict[str, Any]:
        seed, member = plan
        body = body_of(
            env__seed=seed,
            group_id=f"s{seed}",
            member=member,
            policy__config__max_llm_calls=5,
            record={"return_trace": True, "trace_format": "full"},
        )
        return served.http.post("/rollout", json=body).raise_for_status().json()

    plans = [(seed, member) for seed in range(5) for member in range(8)]
    before = len(served.statuses())
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(play, plans))
    assert len(served.statuses()) == before + 40
    one_by_one = [play(plan) for plan in plans]
    assert [without_ids_and_times(a) for a in together] == [without_ids_and_times(a) for a in one_by_one]
    assert len({without_ids_and_times(a)["trace"] for a in together}) == 40
    with TraceStore.open(served.db, read_only=True) as store:
        stored = {episode.episode_id: episode for episode in store.episodes(run_id="run")}
    for answer in together + one_by_one:
        assert stored[answer["metrics"]["details"]["episode_id"]] == episode_from_json(answer["trace"]["episode"])


def test_models_are_asked_at_once_and_never_told_the_apps_key(served, endpoint, body_of, chat):
    bodies = [body_of(env__seed=1, member=member, **chat) for member in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: served.http.post("/rollout", json=body), bodies))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len(endpoint.received) == 24
    assert "ek-1" not in str(endpoint.received)


def test_the_key_and_the_body_limit_hold_on_the_wire(served):
    assert httpx.get(f"{served.http.base_url}/info", trust_env=False).status_code == 401
    refused = served.http.post("/rollout", content=b" " * 1_000_001)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
    assert served.http.get("/health").json()["pid"] == served.process.pid


def test_kill_9_loses_only_the_episode_in_flight(start, endpoint, body_of, chat):
    app = start()
    assert app.http.post("/rollout", json=body_of()).status_code == 200
    endpoint.plan(endpoint.call("noop"))
    endpoint.otherwise = endpoint.hang
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(app.http.post, "/rollout", json=body_of(**chat))
        wait_for(lambda: len(endpoint.received) == 2)
        app.process.kill()
        with pytest.raises(httpx.HTTPError):
            lost.result(10)
    assert app.statuses() == [("truncated", "max_decisions")]
    with sqlite3.connect(app.db) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    with TraceStore.open(app.db) as store:
        store.write_run("after", "test", {})


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_ends_it_soon_and_running_episodes_are_kept_as_aborted(start, endpoint, body_of, chat, sent, code):
    app = start()
    endpoint.otherwise = endpoint.hang
    slow = body_of(policy={"policy_name": "planner", "config": {"max_llm_calls": 1000}}, env__seed=3)
    with ThreadPoolExecutor(2) as pool:
        playing = pool.submit(app.http.post, "/rollout", json=slow)
        hanging = pool.submit(app.http.post, "/rollout", json=body_of(**chat))
        wait_for(lambda: len(endpoint.received) == 1)
        begun = time.monotonic()
        app.process.send_signal(sent)
        assert [answer.result(10).json()["aborted"] for answer in (hanging, playing)] == [True, True]
        assert app.process.wait(10) == code
        assert time.monotonic() - begun < 6
    assert not app.db.with_name("t.db-wal").exists()  # closed in order
    assert app.statuses() == [("aborted", "interrupted")] * 2


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- what is refused before anything is served ----------------------------------------------------


def refuse(tmp_path: Path, overrides: dict[str, Any], environ: dict[str, str]) -> None:
    config = load_config(None, {"rollout.trace_db": str(tmp_path / "t.db"), **overrides})
    serve(config, ready=lambda address: pytest.fail(f"served at {address}"), environ=environ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.evil.example"])
@pytest.mark.parametrize("environ", [{}, {"ENVIRONMENT_API_KEY": " "}])
def test_beyond_loopback_a_key_is_needed(tmp_path, host, environ):
    with pytest.raises(ConfigError, match="without a key: set ENVIRONMENT_API_KEY, or use --host 127.0.0.1"):
        refuse(tmp_path, {"server.host": host}, environ)
    assert not list(tmp_path.iterdir())


def test_a_taken_port_is_named_with_its_owner_and_the_way_out(tmp_path, served):
    port = served.http.base_url.port
    owner = rf"port {port} is in use by another crafter-task-app \(process {served.process.pid}\)"
    with pytest.raises(ConfigError, match=rf"{owner}; choose another with --port \d+ .*make demo PORT=\d+"):
        refuse(tmp_path, {"server.port": port}, {})


def test_a_foreign_database_is_named(tmp_path):
    (tmp_path / "t.db").write_text("not a database")
    with pytest.raises(StoreError, match=r"t\.db"):
        refuse(tmp_path, {"server.port": 0}, {})


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", r"http://127\.0\.0\.1:\d+"), ("::1", r"http://\[::1\]:\d+")]
)
def test_the_address_is_one_that_clients_can_use(host, expected):
    try:
        listener = listen(host, 0)
    except ConfigError:
        pytest.skip(f"this machine has no {host}")
    with listener:
        assert re.fullmatch(expected, address_of(listener))


def test_reload_begins_anew_when_the_config_changes_and_outlives_a_wrong_one(tmp_path):
    config = tmp_path / "server.toml"
    config.write_text("[rollout]\nmax_decisions = 3\n")

    def limit(app: Served) -> int | None:
        """The turn limit of a rollout that names none, from whichever server answers now."""
        body = {"run_id": "r", "env": {"seed": 1}, "policy": {"policy_name": "random"}}
        for _ in range(200):
            try:
                return app.post("/rollout", body).json()["metrics"]["details"]["max_decisions"]
            except (httpx.HTTPError, KeyError):
                time.sleep(0.1)
        raise AssertionError("nobody answers")

    def until(app: Served, wanted: int) -> None:
        deadline = time.monotonic() + 30
        while limit(app) != wanted:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    with running(tmp_path / "t.db", "--reload", "--config", str(config)) as app:
        assert limit(app) == 3
        config.write_text("[rollout]\nmax_decisions = 4\n")
        until(app, 4)
        config.write_text("[rollout]\nmax_decisions = 'many'\n")
        time.sleep(2.0)
        config.write_text("[rollout]\nmax_decisions = 2\n")
        until(app, 2)
        app.process.send_signal(signal.SIGTERM)
        assert app.process.wait(20) == 0


@pytest.mark.parametrize(("key", "code"), [("ek-1", 0), ("wrong", 1)])
def test_info_of_an_app_that_is_served(served, tmp_path, key, code):
    (tmp_path / "app.env").write_text(f"ENVIRONMENT_API_KEY={key}\n")
    command = [sys.executable, "-m", "task_app", "info", "--base-url", served.url, "--json"]
    done = subprocess.run(
        [*command, "--env-file", str(tmp_path / "app.env")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    if code == 0:
        told = json.loads(done.stdout)
        assert (told["task"]["name"], told["ready"], told["limits"]["max_concurrent_rollouts"]) == ("crafter", True, 8)
    assert key not in done.stdout + done.stderr
