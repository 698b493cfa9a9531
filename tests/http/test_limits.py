"""The body limit: by declared length, while bytes arrive, and not one byte too early."""

from __future__ import annotations

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from task_app.http.limits import BodyLimit


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def length(scope, receive, send):
    """Answers with the length of the body it was given."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


async def post(content, headers=()) -> httpx.Response:
    transport = httpx.ASGITransport(app=BodyLimit(length, max_bytes=1000))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post("/", content=content, headers=headers)


async def chunks(count: int, size: int):
    for _ in range(count):
        yield b"x" * size


@pytest.mark.anyio
async def test_a_body_of_just_the_limit_passes_whole():
    assert (await post(b"x" * 1000)).text == "1000"
    assert (await post(chunks(10, 100))).text == "1000"
    assert (await post(b"")).text == "0"


@pytest.mark.anyio
@pytest.mark.parametrize("declared", ["1001", "9" * 5000])
async def test_a_declared_length_beyond_it_is_refused_unread(declared):
    async def never():
        raise AssertionError("read")
        yield b""

    refused = await post(never(), {"Content-Length": declared})
    assert refused.status_code == 413
    assert refused.json()["error"] == {
        "code": "too_large",
        "message": "the body may have at most 1000 bytes",
        "field": "",
    }


@pytest.mark.anyio
async def test_an_undeclared_length_is_refused_as_it_arrives():
    assert (await post(chunks(11, 100))).status_code == 413


@pytest.mark.anyio
async def test_a_wrong_declaration_does_not_help():
    assert (await post(chunks(11, 100), {"Content-Length": "5"})).status_code == 413


@pytest.mark.anyio
async def test_after_the_body_comes_what_the_server_says():
    said = []

    async def app(scope, receive, send):
        said.extend([await receive(), await receive()])

    messages = iter([{"type": "http.request", "body": b"ab"}, {"type": "http.disconnect"}])

    async def receive():
        return next(messages)

    await BodyLimit(app, 10)({"type": "http", "headers": []}, receive, None)  # type: ignore[arg-type]
    assert [message["type"] for message in said] == ["http.request", "http.disconnect"]
    assert said[0]["body"] == b"ab"


@pytest.mark.anyio
async def test_other_scopes_pass_untouched():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    await BodyLimit(app, 10)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
