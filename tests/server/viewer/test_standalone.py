"""`task-app traces view` as a user starts it: on a real port, and what it refuses before it listens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from task_app.core.errors import ConfigError, StoreError
from task_app.http.ports import listen
from task_app.server.viewer.app import view
from task_app.store import TraceStore


@contextmanager
def running(db: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command on a free port, ended by its process id; gives the process and the printed address."""
    command = [sys.executable, "-m", "task_app", "traces", "view", "--db", str(db), "--port", "0"]
    clean = {name: value for name, value in os.environ.items() if name != "ENVIRONMENT_API_KEY"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean | environ)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/viewer", line)
        assert found is not None, line
        assert str(db) in line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def test_it_shows_the_database_and_ends_when_told(known):
    with running(known) as (process, address), httpx.Client(trust_env=False) as http:
        page = http.get(address)
        assert (page.status_code, "main.js" in page.text, "logout" in page.text) == (200, True, False)
        root = address.removesuffix("/viewer")
        assert http.get(f"{root}/").headers["location"] == "/viewer"
        assert http.get(f"{root}/health").json()["service"] == "crafter-task-app"
        assert http.get(f"{root}/viewer/api/runs").json()["total"] == 3
        assert http.post(f"{root}/rollout").status_code == 404
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_with_a_key_in_the_environment_it_asks_for_it(known):
    with running(known, ENVIRONMENT_API_KEY="ek-9") as (_, address), httpx.Client(trust_env=False) as http:
        assert http.get(address).status_code == 401
        assert http.post(f"{address}/login", data={"key": "ek-9"}).status_code == 303
        assert http.get(address).status_code == 200
        assert http.get(f"{address}/api/runs").json()["total"] == 3


def refuse(db: Path, host: str = "127.0.0.1", port: int = 0, **environ: str) -> None:
    view(db, host=host, port=port, ready=lambda address: pytest.fail(f"served at {address}"), environ=environ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.evil.example"])
def test_beyond_this_machine_a_key_is_needed(known, host):
    with pytest.raises(ConfigError, match="without a key: set ENVIRONMENT_API_KEY, or use --host 127.0.0.1"):
        refuse(known, host)
    with pytest.raises(ConfigError, match="without a key"):
        refuse(known, host, ENVIRONMENT_API_KEY="  ")


def test_a_missing_foreign_or_newer_database_is_refused_before_listening(tmp_path, known):
    taken = listen("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]  # would be named, if listening came first
        with pytest.raises(StoreError, match=r"nowhere\.db does not exist"):
            refuse(tmp_path / "nowhere.db", port=port)
        (tmp_path / "text.db").write_text("not a database")
        with pytest.raises(StoreError, match=r"text\.db"):
            refuse(tmp_path / "text.db", port=port)
        (tmp_path / "empty.db").touch()
        with pytest.raises(StoreError, match=r"empty\.db is not a trace database"):
            refuse(tmp_path / "empty.db", port=port)
        with TraceStore.open(known) as store:
            sql = (
                "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('task_app', '9999_later', '')"
            )
            store._connection.execute(sql)
        with pytest.raises(StoreError, match="newer version"):
            refuse(known, port=port)
    assert not (tmp_path / "nowhere.db").exists()


def test_a_taken_port_is_named_with_the_way_out(known):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} is in use by .*; choose another with --port \d+"):
            refuse(known, port=port)
