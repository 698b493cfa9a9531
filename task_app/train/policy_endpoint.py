"""The trainer's own model endpoint: an OpenAI-compatible address at which a task app elsewhere asks the policy.

It answers only what is being played at the moment, by an address nobody else can guess: requests to a task app carry no
keys, so the secret is a part of the path. Temperature, token limit and tools of a request are the trainer's own
settings, whatever it says. It decides nothing and stores nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
import time
from contextlib import ExitStack
from typing import Any, Self

import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from task_app.core.errors import ContextOverflow, PolicyError, TrainError
from task_app.core.types import Completion
from task_app.http.errors import error_response, install_error_handlers
from task_app.http.limits import BodyLimit
from task_app.http.ports import listen
from task_app.policies.chat import EPISODE_HEADER, NOISE_KEY_HEADER
from task_app.train.desk import Desk, NotAsked

__all__ = ["PolicyEndpoint"]

_MOST_BYTES = 8_000_000
_START_S = 30.0


class PolicyEndpoint:
    """Serves desks, one at a time, in a thread of this process. Use as a context manager."""

    def __init__(self, host: str, port: int, url: str = "") -> None:
        """`url` is where others reach it, if not at host and port."""
        self._host, self._port, self._url = host, port, url.rstrip("/")
        self._secret = secrets.token_urlsafe(24)
        self._number, self._desk = 0, None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        """Listen. Raises ConfigError when the port is taken, TrainError when it does not come up."""
        with ExitStack() as stack:
            listener = stack.enter_context(listen(self._host, self._port))
            host, port = listener.getsockname()[:2]
            self._url = self._url or (f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            settings = uvicorn.Config(
                self._app(), log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1
            )
            server = uvicorn.Server(settings)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="policy-endpoint")
            thread.daemon = True
            thread.start()
            stack.callback(thread.join)
            stack.callback(setattr, server, "should_exit", True)
            deadline = time.monotonic() + _START_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline:
                    raise TrainError(f"the policy's endpoint on {self._host} did not start")
                time.sleep(0.005)
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.close()

    @property
    def public_url(self) -> str:
        """Where it is reached, without the secret."""
        return self._url

    def serve(self, desk: Desk) -> str:
        """Answer from this desk from now on; the base address to ask at, another one for each desk."""
        self._number += 1
        self._desk = desk
        return f"{self._url}/{self._secret}/{self._number}/v1"

    # -- inside ----------------------------------------------------------------------------------

    def _app(self) -> FastAPI:
        app = FastAPI(title="policy endpoint", docs_url=None, redoc_url=None, openapi_url=None)
        install_error_handlers(app)
        app.add_middleware(BodyLimit, max_bytes=_MOST_BYTES)

        @app.post("/{secret}/{number}/v1/chat/completions")
        async def complete(secret: str, number: str, request: Request) -> JSONResponse:
            """One decision."""
            if not hmac.compare_digest(secret.encode(), self._secret.encode()):
                return error_response(404, "not_found", "there is no such route")
            if number != str(self._number) or self._desk is None:
                return error_response(410, "not_asked", "the rollouts this address was for are over")
            return await _answer(self._desk, request)

        return app


async def _answer(desk: Desk, request: Request) -> JSONResponse:
    try:
        body = await request.json()
        asked = desk.ask(
            str(body["model"]),
            request.headers.get(EPISODE_HEADER, ""),
            request.headers.get(NOISE_KEY_HEADER, ""),
            tuple(dict(message) for message in body["messages"]),
            tuple(dict(tool) for tool in body.get("tools") or ()),
        )
    except NotAsked as error:
        return error_response(404, "model_not_found", str(error))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return error_response(400, "bad_json", "the body must be a chat completion request")
    try:
        return JSONResponse(_wire(await asyncio.wrap_future(asked)))
    except ContextOverflow:
        return error_response(400, "context_length_exceeded", "the prompt does not fit the policy's context")
    except NotAsked as error:
        return error_response(410, "not_asked", str(error))
    except PolicyError:
        return error_response(503, "sampler_failed", "what samples the policy failed")


def _wire(completion: Completion) -> dict[str, Any]:
    """A completion in the OpenAI form; tokens stay here."""
    message = completion.message
    return {
        "id": completion.completion_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": completion.model,
        "choices": [{"index": 0, "message": message.to_wire(), "finish_reason": message.finish_reason}],
        "usage": {
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "total_tokens": (completion.prompt_tokens or 0) + (completion.completion_tokens or 0),
        },
    }
