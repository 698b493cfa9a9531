"""The key check as middleware around an app that says yes to everything."""

from __future__ import annotations

import hmac

import httpx
import pytest
from starlette.responses import PlainTextResponse

from task_app.http.auth import KeyCheck, is_loopback

KEYS = ("first-key", "clé-2")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answer(method: str = "GET", path: str = "/closed", headers=(), keys=KEYS) -> httpx.Response:
    app = KeyCheck(PlainTextResponse("yes"), keys, ["/open"])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": "first-key"},
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer   first-key "},
        {"X-API-Key": "wrong", "Authorization": "Bearer first-key"},
        {"X-API-Key": "first-key", "Authorization": "Basic xyz"},
        [(b"X-API-Key", "clé-2".encode())],
    ],
)
async def test_either_header_opens(headers):
    assert (await answer(headers=headers)).text == "yes"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "first-ke"},
        {"X-API-Key": "first-key2"},
        {"X-API-Key": "Bearer first-key"},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "Bearer"},
        {"Cookie": "X-API-Key=first-key"},
    ],
)
async def test_anything_else_is_refused_without_a_word_of_any_key(headers):
    refused = await answer(headers=headers)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "unauthorized"
    assert "first" not in refused.text


@pytest.mark.anyio
async def test_open_paths_are_open_for_reading_only():
    assert (await answer(path="/open")).status_code == 200
    assert (await answer("HEAD", "/open")).status_code == 200
    assert (await answer("POST", "/open")).status_code == 401
    assert (await answer(path="/open/er")).status_code == 401
    assert (await answer("OPTIONS")).status_code == 401


@pytest.mark.anyio
@pytest.mark.parametrize("keys", [(), ("",)])
async def test_without_keys_everything_is_open(keys):
    assert (await answer(keys=keys)).status_code == 200


@pytest.mark.anyio
async def test_every_key_is_compared_in_constant_time_whichever_matches(monkeypatch):
    compared = []

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr("task_app.http.auth.hmac.compare_digest", spy)
    for key in ("first-key", "wrong"):
        compared.clear()
        await answer(headers={"X-API-Key": key})
        assert len(compared) == 4  # two keys × two headers


@pytest.mark.anyio
async def test_a_web_socket_needs_a_key_too():
    said = []

    async def send(message):
        said.append(message["type"])

    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})

    for headers in ([], [(b"x-api-key", b"first-key")]):
        scope = {"type": "websocket", "path": "/open", "headers": headers}
        await KeyCheck(app, KEYS, ["/open"])(scope, None, send)  # type: ignore[arg-type]
    assert said == ["websocket.close", "websocket.accept"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("127.evil.example", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.0.1", False),
    ],
)
def test_is_loopback(host, expected):
    assert is_loopback(host) is expected
