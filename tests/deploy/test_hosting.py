"""The endpoint of one container, on a real port of this machine: its key, its own database, its copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from task_app.config import load_config
from task_app.core.errors import ConfigError
from task_app.deploy.deployment import Deployment
from task_app.deploy.hosting import hosted_app
from task_app.http.ports import address_of, listen
from task_app.store import TraceStore

KEY = {"ENVIRONMENT_API_KEY": "a-key"}


@contextmanager
def container(tmp_path: Path, name: str, commits: list[str], **changes: object) -> Iterator[httpx.Client]:
    deployment = Deployment.of(load_config(None, {"policy.name": "expert", **changes}))
    app = hosted_app(
        deployment,
        KEY,
        lambda: commits.append(name),
        container=name,
        local=tmp_path / name / "traces.db",
        volume=tmp_path / "vol",
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx.Client(base_url=address_of(listener), timeout=30, headers={"X-API-Key": "a-key"}) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(15)


def body(seed: int) -> dict[str, Any]:
    return {"run_id": "r", "env": {"seed": seed}, "policy": {"config": {"max_llm_calls": 2}}}


def seeds_in(path: Path) -> list[int]:
    with TraceStore.open(path, read_only=True) as store:
        return [episode.task.seed for episode in store.episodes()]


def test_two_containers_keep_two_databases_and_the_last_episodes_when_they_end(tmp_path):
    commits: list[str] = []
    for name, seed in (("ta-1", 3), ("ta-2", 4)):
        with container(tmp_path, name, commits) as client:
            assert client.get("/task_info", headers={"X-API-Key": "wrong"}).status_code == 401
            assert client.post("/rollout", json=body(seed)).status_code == 200
            assert name not in commits, "the first turn comes after ten seconds"
        assert commits[-1] == name
    assert seeds_in(tmp_path / "vol/traces/ta-1.db") == [3]
    assert seeds_in(tmp_path / "vol/traces/ta-2.db") == [4]


def test_episodes_are_kept_while_it_serves(tmp_path):
    commits: list[str] = []
    with container(tmp_path, "ta-1", commits, **{"modal.commit_every_s": 1.0}) as client:
        assert client.post("/rollout", json=body(3)).status_code == 200
        waiting = threading.Event()
        for _ in range(100):
            if commits and seeds_in(tmp_path / "vol/traces/ta-1.db") == [3]:
                break
            waiting.wait(0.1)
        assert seeds_in(tmp_path / "vol/traces/ta-1.db") == [3]


def test_without_a_key_nothing_is_served(tmp_path):
    deployment = Deployment.of(load_config())
    with pytest.raises(ConfigError, match="ENVIRONMENT_API_KEY is not set in this container"):
        hosted_app(deployment, {"ENVIRONMENT_API_KEY": " "}, lambda: None, container="c", local=tmp_path / "t.db")
    assert list(tmp_path.iterdir()) == []
