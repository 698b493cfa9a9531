"""The app inside its lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from task_app.config import load_config
from task_app.core.types import Episode
from task_app.server import create_app
from task_app.store import TraceStore


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True)
class Hosted:
    """A running app as its clients see it, and its database."""

    http: httpx.AsyncClient
    db: Path
    app: FastAPI

    async def rollout(self, body: Any = None, /, **changes: Any) -> httpx.Response:
        """One rollout: `body`, else a short random one with these dotted settings (`env__seed=3`) over it."""
        return await self.http.post("/rollout", json=body_of(**changes) if body is None else body)

    async def played(self, body: Any = None, /, **changes: Any) -> dict[str, Any]:
        """The answer of a rollout that must succeed."""
        answer = await self.rollout(body, **changes)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def episodes(self) -> list[Episode]:
        """What is stored, in the order of its end."""
        with TraceStore.open(self.db, read_only=True) as store:
            return sorted(store.episodes(), key=lambda episode: episode.finished_at)


def body_of(**changes: Any) -> dict[str, Any]:
    """A short rollout of the random player, with `changes` made to it."""
    body: dict[str, Any] = {
        "run_id": "run",
        "env": {"seed": 1, "config": {}},
        "policy": {"policy_name": "random", "config": {"max_llm_calls": 3}},
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = body
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return body


@pytest.fixture(name="body_of")
def body_of_fixture() -> Callable[..., dict[str, Any]]:
    return body_of


@pytest.fixture
def hosted(tmp_path) -> Callable[..., AbstractAsyncContextManager[Hosted]]:
    """Run the app inside its lifespan: `async with hosted(environ=…, **{"server.max_decisions": 5}) as app`."""

    @asynccontextmanager
    async def run(environ: Mapping[str, str] | None = None, **overrides: Any) -> AsyncIterator[Hosted]:
        db = tmp_path / "t.db"
        app = create_app(load_config(None, {"rollout.trace_db": str(db), **overrides}), environ=environ or {})
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://app", timeout=60) as http,
        ):
            yield Hosted(http, db, app)

    return run


@pytest.fixture
def chat(endpoint) -> dict[str, Any]:
    """Changes that make a rollout ask the stub endpoint."""
    return {
        "policy__policy_name": "chat",
        "policy__config__model": "stub",
        "policy__config__inference_url": endpoint.url,
    }
