"""What a request leaves on standard error, and what never stands there."""

from __future__ import annotations

import json
import logging

import httpx
import pytest
from fastapi import FastAPI, HTTPException, WebSocket, WebSocketDisconnect
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse

from task_app.http.logs import LogKind, RequestLog, log_to_stderr, note

pytestmark = pytest.mark.anyio


@pytest.fixture
def logged(capsys):
    """Start logging of a kind; gives what reads the lines written since."""
    root = logging.getLogger("task_app")
    before, level = (root.handlers, root.propagate), root.level

    def start(kind: LogKind):
        log_to_stderr(kind)
        return lambda: capsys.readouterr().err

    yield start
    root.handlers, root.propagate = before
    root.setLevel(level)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def app(seen: list) -> FastAPI:
    app = FastAPI()

    @app.get("/thing/{name}")
    async def thing(name: str) -> dict:
        note(run_id="run-1")
        logging.getLogger("task_app.somewhere").warning("odd")
        return {}

    @app.get("/broken")
    async def broken() -> dict:
        raise RuntimeError("broke")

    app.add_middleware(RequestLog, observe=lambda *facts: seen.append(facts))
    return app


async def get(path: str, seen: list, headers: dict | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(app=app(seen), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
        return await http.get(path, headers=headers)


async def test_a_json_line_has_ids_and_the_pattern_and_nothing_that_was_sent(logged):
    written, seen = logged("json"), []
    answer = await get("/thing/secret-name?key=secret", seen, {"X-API-Key": "secret", "X-Request-ID": "req-7"})
    text = written()
    warning, line = (json.loads(one) for one in text.splitlines())
    assert (warning["message"], warning["level"], warning["request_id"], warning["run_id"]) == (
        "odd", "warning", "req-7", "run-1",
    )  # fmt: skip
    assert line.pop("ms") > 0
    assert line.pop("time") > 0
    assert line == {
        "level": "info", "logger": "task_app.http.logs", "message": "GET /thing/{name} 200", "request_id": "req-7",
        "run_id": "run-1", "method": "GET", "route": "/thing/{name}", "status": 200,
    }  # fmt: skip
    assert "secret" not in text
    assert answer.headers["X-Request-ID"] == "req-7"
    ((route, method, status, seconds),) = seen
    assert (route, method, status) == ("/thing/{name}", "GET", 200)
    assert seconds > 0


async def test_words(logged):
    written = logged("text")
    await get("/thing/x", [], {"X-Request-ID": "req-7"})
    assert "INFO GET /thing/{name} 200 request_id=req-7 run_id=run-1 ms=" in written()


async def test_quiet_tells_warnings_alone(logged):
    written = logged("quiet")
    await get("/thing/x", [])
    assert [line.split(" ", 2)[2].split(" request_id")[0] for line in written().splitlines()] == ["WARNING odd"]


@pytest.mark.parametrize("sent", ["", "a b", "x" * 65, "a;b"])
async def test_an_id_that_is_no_plain_word_is_replaced(logged, sent):
    logged("quiet")
    answer = await get("/thing/x", [], {"X-Request-ID": sent})
    assert len(answer.headers["X-Request-ID"]) == 16


async def test_an_address_without_a_route_and_a_failure(logged):
    written, seen = logged("json"), []
    await get("/nothing-of-the-kind", seen)
    await get("/broken", seen)
    assert [facts[:3] for facts in seen] == [("other", "GET", 404), ("/broken", "GET", 500)]
    assert "nothing-of-the-kind" not in written()


async def test_an_id_with_a_lines_end_forges_no_line(logged):
    written = logged("text")
    note_of = logging.getLogger("task_app.http.logs")
    note_of.info("told", extra={"facts": {"run_id": "x\n2026-01-01 INFO forged"}})
    assert len(written().splitlines()) == 1


def test_a_connection_is_told_when_it_ends_and_one_that_was_not_let_in(logged):
    made, seen = app([]), []

    @made.websocket("/talk")
    async def talk(socket: WebSocket) -> None:
        if "key" not in socket.headers:
            await socket.close()
            return
        await socket.accept()
        note(episode_id="e-1")
        await socket.close()

    @made.websocket("/elsewhere")
    async def elsewhere(socket: WebSocket) -> None:
        raise HTTPException(404)

    @made.websocket("/fails")
    async def fails(socket: WebSocket) -> None:
        await socket.accept()
        raise RuntimeError("broke")

    written = logged("text")
    with TestClient(RequestLog(made, observe=lambda *facts: seen.append(facts[:3]))) as client:
        with client.websocket_connect("/talk", headers={"key": "k"}):
            pass
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/talk"):
            pass
        with pytest.raises(WebSocketDenialResponse), client.websocket_connect("/elsewhere"):
            pass
        with pytest.raises(RuntimeError, match="broke"), client.websocket_connect("/fails"):
            pass
    assert "INFO WS /talk 101 request_id=" in (text := written())
    assert "episode_id=e-1" in text
    for line in ("/talk 403", "/elsewhere 404", "/fails 500"):
        assert f"INFO WS {line} request_id=" in text
    assert seen == []
