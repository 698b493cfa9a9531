"""`create_openenv_app`: OpenEnv's routes for one task. Routes and connections only; the work is `game.py`'s.

Over HTTP nothing lasts: `/reset` and `/step` each play in a world of their own, as the protocol has it. An episode is
played over `/ws`, one environment a connection; at most `max_sessions` are open, and one that says nothing for
`session_ttl_s` is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Body, FastAPI, Request, WebSocket
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocketDisconnect

from task_app import __version__
from task_app.config import Config
from task_app.core.errors import ConfigError, EnvError, StoreError
from task_app.export import EpisodeFiles
from task_app.http.auth import KeyCheck, keys_in
from task_app.http.errors import install_error_handlers, public_field
from task_app.http.limits import BodyLimit
from task_app.http.logs import RequestLog
from task_app.server.describe import identity
from task_app.server.openenv import mcp
from task_app.server.openenv.game import Game, NoEpisode
from task_app.server.openenv.wire import (
    Metadata,
    ObservationData,
    ResetData,
    Schemas,
    State,
    StepRequest,
    TaskAction,
    TaskObservation,
    error,
)
from task_app.store import TraceStore
from task_app.wiring import check

__all__ = ["OPEN_PATHS", "create_openenv_app"]

OPEN_PATHS = ("/", "/health")
"""What answers without a key."""

_SERVICE_RESTART = 1012
"""What the server closes its connections with when it stops (RFC 6455's registry)."""

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON"},
    401: {"description": "no valid key"},
    413: {"description": "the body is too large"},
    422: {"description": "a field is unknown or holds a value that is not allowed; the body names it"},
    503: {"description": "the environment or its store failed: a missing reward, not a reward of 0"},
}


class _Host:
    """The open trace database, and how many connections there are."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.spec = check(config)
        self.connections = 0

    @asynccontextmanager
    async def opened(self, app: FastAPI) -> AsyncIterator[None]:
        folder = self.config.server.trace_dir
        self._files = EpisodeFiles.open(folder) if folder else None
        self._threads = CapacityLimiter(self.config.server.max_concurrent_rollouts)
        with TraceStore.open(self.config.rollout.trace_db) as self._store:
            yield

    def game(self) -> Game:
        return Game(self.config, self._store, self._files)

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Blocking work in a thread; a client that leaves meanwhile does not cut it off."""
        return await to_thread.run_sync(work, *arguments, limiter=self._threads)


def create_openenv_app(config: Config, *, environ: Mapping[str, str] = os.environ) -> FastAPI:
    """The application for one config. Raises ConfigError for names and combinations that cannot work."""
    host = _Host(config)
    keys = keys_in(environ, config.server.key_envs)
    app = FastAPI(
        title=f"{host.spec.app.title} as an OpenEnv environment",
        version="1.0.0",  # of the wire; the validator reads it here
        lifespan=host.opened,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=config.server.max_body_bytes)
    app.add_middleware(KeyCheck, keys=keys, open_paths=OPEN_PATHS)
    app.add_middleware(RequestLog)
    _add_facts(app, host)
    _add_simulation(app, host)
    _add_mcp(app, host)

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await _Connection(socket, host).serve()

    return app


def _add_facts(app: FastAPI, host: _Host) -> None:
    @app.get("/")
    async def root() -> dict[str, Any]:
        """What this is; open to all."""
        return identity(host.spec) | {"wire": "openenv", "health": "/health"}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether the app is up; open to all."""
        return {"status": "healthy", **identity(host.spec), "pid": os.getpid()}

    @app.get("/metadata", responses={401: _ERRORS[401]})
    async def metadata() -> Metadata:
        """What this environment is."""
        return Metadata(name=host.spec.app.name, description=host.spec.app.description, version=__version__)

    @app.get("/schema", responses={401: _ERRORS[401]})
    async def schema() -> Schemas:
        """JSON schemas of actions, observations and state."""
        models = {"action": TaskAction, "observation": TaskObservation, "state": State}
        return Schemas(**{name: model.model_json_schema() for name, model in models.items()})


def _add_simulation(app: FastAPI, host: _Host) -> None:
    @app.post("/reset", responses=_ERRORS)
    async def reset(data: Annotated[ResetData, Body(default_factory=ResetData)]) -> ObservationData:
        """The first observation of a world, which nothing keeps."""
        return ObservationData(**await host.run(host.game().reset, data))

    @app.post("/step", responses=_ERRORS)
    async def step(request: StepRequest) -> ObservationData:
        """One decision in a world of its own, stored as an aborted episode unless it ends it."""
        return ObservationData(**await host.run(_step_alone, host.game(), request))

    @app.get("/state", responses={401: _ERRORS[401]})
    async def state() -> State:
        """The state of no episode: over HTTP none lasts."""
        return State()


def _step_alone(game: Game, request: StepRequest) -> dict[str, Any]:
    try:
        action = TaskAction.model_validate(request.action)
    except ValidationError as invalid:
        raise _as_config_error(invalid, "action") from invalid
    game.reset(ResetData(seed=request.seed))
    try:
        return game.step(action)
    except ConfigError as refused:
        raise ConfigError(str(refused), field=f"action.{refused.field}", public=refused.public) from refused
    finally:
        game.leave("a step alone")


def _as_config_error(invalid: ValidationError, prefix: str) -> ConfigError:
    problem = invalid.errors(include_url=False, include_input=False)[0]
    public = "unknown field" if problem["type"] == "extra_forbidden" else problem["msg"]
    field = public_field((*filter(None, [prefix]), *problem["loc"]))
    return ConfigError(public, field=field, public=public)


def _add_mcp(app: FastAPI, host: _Host) -> None:
    @app.post("/mcp", responses={401: _ERRORS[401], 413: _ERRORS[413], 202: {"description": "a notification"}})
    async def call(request: Request) -> Response:
        """JSON-RPC: `tools/list`, and `tools/call` in a world of its own."""
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            return JSONResponse(mcp.failed(mcp.PARSE_ERROR, "the body is not JSON"))
        said = await host.run(_call_alone, host.game(), body, host)
        return Response(status_code=202) if said is None else JSONResponse(said)


def _call_alone(game: Game, body: Any, host: _Host) -> dict[str, Any] | None:
    try:
        return mcp.answer(body, game, host.spec)
    finally:
        game.leave("a call alone")


class _Connection:
    """One client on `/ws` and its environment."""

    def __init__(self, socket: WebSocket, host: _Host) -> None:
        self._socket, self._host = socket, host
        self._game = host.game()

    async def serve(self) -> None:
        """Until the client closes, leaves or says nothing for too long; then its environment is free."""
        await self._socket.accept()
        host, most = self._host, self._host.config.server.max_sessions
        if host.connections >= most:
            await self._send(error("CAPACITY_REACHED", f"all {most} connections are taken", max_sessions=most))
            await self._socket.close(1013)
            return
        host.connections += 1
        cause = "left by its client"
        try:
            cause = await self._talk()
        except WebSocketDisconnect as gone:
            cause = "the server stopped" if gone.code == _SERVICE_RESTART else cause
        finally:
            host.connections -= 1
            await asyncio.shield(host.run(self._game.leave, cause))

    async def _talk(self) -> str:
        """Answer messages, one after another; why it ended."""
        ttl_s = self._host.config.server.session_ttl_s
        while True:
            try:
                async with asyncio.timeout(ttl_s):
                    text = await self._socket.receive_text()
            except TimeoutError:
                await self._send(error("SESSION_ERROR", f"nothing was said for {ttl_s:g} s"))
                await self._socket.close(1001)
                return f"not used for {ttl_s:g} s"
            except KeyError:  # a binary message
                await self._send(error("INVALID_JSON", "messages are text"))
                continue
            said = await self._answer(text)
            if said is None:
                await self._socket.close()
                return "closed by its client"
            await self._send(said)

    async def _answer(self, text: str) -> dict[str, Any] | None:
        if len(text) > self._host.config.server.max_body_bytes:
            return error("VALIDATION_ERROR", f"at most {self._host.config.server.max_body_bytes} bytes a message")
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return error("INVALID_JSON", "a message is a JSON object")
        if not isinstance(message, dict):
            return error("VALIDATION_ERROR", "a message is a JSON object")
        kinds: dict[Any, Callable[[Any], Awaitable[dict[str, Any] | None]]] = {
            "reset": self._reset, "step": self._step, "state": self._state, "close": self._close, "mcp": self._mcp,
        }  # fmt: skip
        kind = message.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            return error("UNKNOWN_TYPE", f"type is one of: {', '.join(kinds)}")
        if set(message) - {"type", "data"}:
            return error("VALIDATION_ERROR", "a message has type and data, nothing else")
        return await self._guarded(kinds[kind], message.get("data", {}))

    async def _guarded(
        self, work: Callable[[Any], Awaitable[dict[str, Any] | None]], data: Any
    ) -> dict[str, Any] | None:
        """What goes wrong, in the protocol's form and without what was sent."""
        try:
            return await work(data)
        except ValidationError as invalid:
            refused = _as_config_error(invalid, "")
            return error("VALIDATION_ERROR", refused.public, field=refused.field)
        except ConfigError as refused:
            return error("VALIDATION_ERROR", refused.public, field=public_field(refused.field.split(".")))
        except NoEpisode as problem:
            return error("EXECUTION_ERROR", str(problem))
        except (EnvError, StoreError):
            return error("EXECUTION_ERROR", "the environment or its store failed: a missing reward, not one of 0")

    async def _reset(self, data: Any) -> dict[str, Any]:
        observed = await self._host.run(self._game.reset, ResetData.model_validate(data))
        return {"type": "observation", "data": observed}

    async def _step(self, data: Any) -> dict[str, Any]:
        observed = await self._host.run(self._game.step, TaskAction.model_validate(data))
        return {"type": "observation", "data": observed}

    async def _state(self, data: Any) -> dict[str, Any]:
        return {"type": "state", "data": self._game.state()}

    async def _close(self, data: Any) -> None:
        return None

    async def _mcp(self, data: Any) -> dict[str, Any]:
        said = await self._host.run(mcp.answer, data, self._game, self._host.spec)
        return {"type": "mcp", "data": said or {}}

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self._socket.send_text(json.dumps(message, allow_nan=False))
