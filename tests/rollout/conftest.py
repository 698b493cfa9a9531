"""The hosted task app on a real port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from task_app.config import load_config
from task_app.http.ports import address_of, listen
from task_app.server import create_app


@contextmanager
def serving(db: Path) -> Iterator[Callable[..., str]]:
    """Serve the task app in threads of this process; yields what starts one and gives its address."""
    with ExitStack() as stack:

        def start(environ: Mapping[str, str] | None = None, **overrides: Any) -> str:
            config = load_config(None, {"rollout.trace_db": str(db), **overrides})
            listener = stack.enter_context(listen("127.0.0.1", 0))
            settings = uvicorn.Config(create_app(config, environ=environ or {}), log_level="warning", ws="none")
            server = uvicorn.Server(settings)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            return address_of(listener)

        yield start


@pytest.fixture
def served(tmp_path) -> Iterator[Callable[..., str]]:
    """Serve the task app in a thread of this process: `address = served(environ, **{"server.max_decisions": 5})`."""
    with serving(tmp_path / "hosted.db") as start:
        yield start
