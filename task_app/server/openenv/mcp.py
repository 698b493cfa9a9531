"""A task's tools as the Model Context Protocol has them (JSON-RPC 2.0; revision 2025-06-18), played on a `Game`.

`initialize`, `ping`, `tools/list` and `tools/call`; notifications need no answer. A call that the task cannot read,
and one without an episode, is a tool's error (`isError`), which a model may see and mend; it executes nothing.
Knows no connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from task_app import __version__
from task_app.core.errors import ConfigError, EnvError, StoreError
from task_app.core.task import TaskSpec
from task_app.http import SERVICE
from task_app.server.openenv.game import Game, NoEpisode
from task_app.server.openenv.wire import ResetData, TaskAction

__all__ = ["PARSE_ERROR", "answer", "failed", "tools_of"]

PROTOCOL = "2025-06-18"
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603


def tools_of(spec: TaskSpec) -> list[dict[str, Any]]:
    """The task's tools in the form of `tools/list`."""
    functions = [tool["function"] for tool in spec.app.tools(spec.options)]
    return [
        {"name": f["name"], "description": f.get("description", ""), "inputSchema": f["parameters"]} for f in functions
    ]


def failed(code: int, message: str, request_id: Any = None) -> dict[str, Any]:
    """An error response."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def answer(request: Any, game: Game, spec: TaskSpec) -> dict[str, Any] | None:
    """The response to one request, played on `game`; None for a notification. Raises nothing a client can cause."""
    if (
        not isinstance(request, Mapping)
        or request.get("jsonrpc") != "2.0"
        or not isinstance(request.get("method"), str)
    ):
        return failed(INVALID_REQUEST, 'a request is {"jsonrpc": "2.0", "method", "params", "id"}')
    request_id, params = request.get("id"), request.get("params", {})
    if not isinstance(request_id, str | int | None) or isinstance(request_id, bool):
        return failed(INVALID_REQUEST, "id is a string or a whole number")
    if "id" not in request:
        return None
    if not isinstance(params, Mapping):
        return failed(INVALID_PARAMS, "params is an object", request_id)
    match request["method"]:
        case "initialize":
            result: Any = {
                "protocolVersion": PROTOCOL,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": SERVICE, "version": __version__},
            }
        case "ping":
            result = {}
        case "tools/list":
            result = {"tools": tools_of(spec)}
        case "tools/call":
            return _call(params, game, spec, request_id)
        case _:
            return failed(NO_METHOD, "methods: initialize, ping, tools/list, tools/call", request_id)
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _call(params: Mapping[str, Any], game: Game, spec: TaskSpec, request_id: Any) -> dict[str, Any]:
    names = [tool["name"] for tool in tools_of(spec)]
    name, arguments = params.get("name"), params.get("arguments", {})
    if name not in names:
        return failed(INVALID_PARAMS, f"name is one of: {', '.join(names) or '(the task has no tools)'}", request_id)
    if not isinstance(arguments, dict):
        return failed(INVALID_PARAMS, "arguments is an object", request_id)
    call = {"function": {"name": name, "arguments": json.dumps(arguments)}}
    try:
        if game.state()["episode_id"] is None:
            game.reset(ResetData())
        result = _result(game.step(TaskAction(tool_calls=[call])))
    except ConfigError as error:
        result = _error(error.public)
    except NoEpisode as error:
        result = _error(str(error))
    except (EnvError, StoreError):
        return failed(INTERNAL, "the environment or its store failed: a missing reward, not one of 0", request_id)
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _result(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a model reads, and the whole observation for a program."""
    messages = data["observation"]["messages"]
    text = messages[-1]["content"] if messages else "The episode is over."
    said = text if isinstance(text, str) else json.dumps(text)
    return {"content": [{"type": "text", "text": said}], "structuredContent": data, "isError": False}


def _error(sentence: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": sentence}], "isError": True}
