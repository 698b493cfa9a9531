"""A client of the step-wise routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest


@dataclass
class Client:
    """Sends requests of one app's step-wise routes; `app` is an app inside its lifespan."""

    app: Any

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.app.http.post(path, json=body)

    async def begun(self, **body: Any) -> dict[str, Any]:
        """A session that must begin; seed 1 unless told otherwise."""
        return self._ok(await self.post("/env/crafter/initialize", **{"seed": 1, **body}))

    async def stepped(self, env_id: str, **body: Any) -> dict[str, Any]:
        return self._ok(await self.post("/env/crafter/step", env_id=env_id, **body))

    async def ended(self, env_id: str) -> dict[str, Any]:
        return self._ok(await self.post("/env/crafter/terminate", env_id=env_id))["ending"]

    async def decided(self, policy_id: str, env_id: str) -> dict[str, Any]:
        return self._ok(await self.post("/policy/step", policy_id=policy_id, env_id=env_id))

    @staticmethod
    def _ok(answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def client() -> Callable[[Any], Client]:
    return Client
