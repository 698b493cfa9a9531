"""One shape for every error, and nothing of the input in it."""

from __future__ import annotations

from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from task_app.core.errors import ConfigError, EnvError, StoreError
from task_app.http.errors import Busy, InfrastructureFailure, install_error_handlers, public_field

MARK = "MARK-b1c2"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    count: int
    inner: dict[str, Annotated[int, Field(le=3)]] = {}


RAISED = {
    "config": ConfigError(f"bad {MARK}", field="a.b", public="only x is allowed"),
    "config-default": ConfigError(f"bad {MARK}", field=f"a.{MARK}.c"),
    "store": StoreError(f"/path/{MARK} is locked"),
    "env": EnvError(MARK),
    "broken": InfrastructureFailure("the rollout broke", episode_id="e1"),
    "busy": Busy(7),
    "teapot": HTTPException(418, MARK),
    "bug": RuntimeError(MARK),
}


async def call(method: str, path: str, **arguments) -> httpx.Response:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/")
    async def root(body: Body) -> None: ...

    @app.get("/raise/{name}")
    async def fail(name: str) -> None:
        raise RAISED[name]

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, **arguments)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "status", "error"),
    [
        ("config", 422, {"code": "invalid", "message": "only x is allowed", "field": "a.b"}),
        ("config-default", 422, {"code": "invalid", "message": "the value is not allowed", "field": "a"}),
        (
            "store",
            503,
            {
                "code": "store_unavailable",
                "message": "the trace database could not be written; this episode is lost, those before it are kept",
                "field": "",
            },
        ),
        ("env", 503, {"code": "infra_error", "message": "the environment failed", "field": ""}),
        ("broken", 503, {"code": "infra_error", "message": "the rollout broke", "field": "", "episode_id": "e1"}),
        (
            "busy",
            429,
            {"code": "busy", "message": "as many rollouts as allowed are running and waiting", "field": ""},
        ),
        ("teapot", 418, {"code": "error", "message": "refused", "field": ""}),
        ("bug", 500, {"code": "internal", "message": "the server failed; its log says why", "field": ""}),
    ],
)
async def test_each_error_has_its_status_and_one_shape(name, status, error):
    answer = await call("GET", f"/raise/{name}")
    assert (answer.status_code, answer.json()) == (status, {"error": error})


@pytest.mark.anyio
async def test_busy_says_when_to_come_back():
    assert (await call("GET", "/raise/busy")).headers["retry-after"] == "7"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "content", [b"", b"{", b"xx", b"[1]", b"3", b"\xff\xfe", b"[" * 50_000, b'{"count": ' + b"9" * 5000 + b"}"]
)
async def test_what_is_no_json_object_is_400(content):
    answer = await call("POST", "/", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"code", "message", "field"}


@pytest.mark.anyio
async def test_another_content_type_is_400():
    assert (await call("POST", "/", content=b'{"count": 1}', headers={"Content-Type": "text/plain"})).status_code == 400


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"count": MARK}, "count", "Input should be a valid integer"),
        ({"count": False}, "count", "Input should be a valid integer"),
        ({}, "count", "Field required"),
        ({"count": 1, "cuont": MARK}, "cuont", "unknown field"),
        ({"count": 1, MARK: 2}, "", "unknown field"),
        ({"count": 1, "inner": {"x": 4}}, "inner.x", "Input should be less than or equal to 3"),
        ({"count": 1, "inner": {MARK: 4}}, "inner", "Input should be less than or equal to 3"),
    ],
)
async def test_a_bad_field_is_named_and_its_value_is_not_repeated(body, field, message):
    answer = await call("POST", "/", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"] == {"code": "invalid", "message": message, "field": field}


@pytest.mark.anyio
async def test_unknown_routes_and_methods():
    missing, wrong = await call("GET", f"/{MARK}"), await call("GET", "/")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
    assert MARK not in missing.text


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["env", "seed"], "env.seed"),
        (["ops", 12, "type"], "ops.12.type"),
        (["env", "a b", "seed"], "env"),
        (["<script>"], ""),
        (["x" * 65], ""),
        ([], ""),
    ],
)
def test_public_field(parts, expected):
    assert public_field(parts) == expected
