"""A task app in a process of its own and small training configs, for the tests of hosted training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from task_app.config import Config, load_config
from task_app.core.types import Episode
from task_app.store import TraceStore
from tests.server.served import Served, running

KEY = "ek-hosted"


@contextmanager
def served_app(folder: Path, *arguments: str) -> Iterator[Served]:
    """The Crafter app on a free port, under a key."""
    folder.mkdir(exist_ok=True)
    with running(folder / "app.db", *arguments, ENVIRONMENT_API_KEY=KEY) as app:
        app.http.headers["X-API-Key"] = KEY
        yield app


def address(app: Served) -> str:
    return str(app.http.base_url).rstrip("/")


def small_run(folder: Path, task_url: str = "", **changes: Any) -> Config:
    """Two updates of two groups of four on Crafter, all rollouts of an update at once; `__` stands for a dot."""
    settings: dict[str, Any] = {
        "model.hidden_size": 32,
        "model.layers": 1,
        "model.heads": 2,
        "model.kv_heads": 1,
        "model.intermediate_size": 48,
        "rollout.seeds": "0:100",
        "rollout.group_size": 4,
        "rollout.max_decisions": 8,
        "rollout.concurrency": 8,
        "rollout.trace_db": str(folder / "traces.db"),
        "rollout.task_url": task_url,
        "rollout.policy_wait_s": 20.0,
        "training.updates": 2,
        "training.groups_per_update": 2,
        "training.run_dir": str(folder / "run"),
        "eval.seeds": "1000000:1000004",
    }
    return load_config(None, settings | {key.replace("__", "."): value for key, value in changes.items()})


def stored(config: Config) -> list[Episode]:
    """What training stored, evaluations included, in an order that does not depend on time."""
    with TraceStore.open(config.rollout.trace_db, read_only=True) as store:
        return sorted(
            store.episodes(), key=lambda e: (e.run_id.partition("-eval")[1], e.update or 0, e.group_id, e.member)
        )
