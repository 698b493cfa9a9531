"""One JSON shape for every error: `{"error": {"code", "message", "field"}}`.

A body names the offending field and what is allowed; what was sent never comes back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from task_app.core.errors import ConfigError, EnvError, StoreError

__all__ = [
    "Busy",
    "Conflict",
    "InfrastructureFailure",
    "NotFound",
    "error_response",
    "install_error_handlers",
    "public_field",
]

logger = logging.getLogger(__name__)

_STATUS = {
    400: ("bad_request", "the body cannot be read"),
    404: ("not_found", "there is no such route"),
    405: ("method_not_allowed", "the route does not take this method"),
}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}|[0-9]{1,6}")


class Busy(Exception):
    """The server has as much to do as it accepts; try again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: int = 1) -> None:
        super().__init__("busy")
        self.retry_after_s = retry_after_s


class Conflict(Exception):
    """What is asked for contradicts what was done before; `field` names where. The sentence holds no input."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotFound(Exception):
    """There is nothing of the name that `field` holds. The sentence holds no input."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InfrastructureFailure(Exception):
    """Something broke: a missing reward, never a reward of 0. `details` is added to the body."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


def error_response(status: int, code: str, message: str, field: str = "", **details: Any) -> JSONResponse:
    """The one error body; `field` is the dotted name of the offending field, or empty."""
    return JSONResponse({"error": {"code": code, "message": message, "field": field, **details}}, status_code=status)


def public_field(parts: Iterable[Any]) -> str:
    """The dotted name made of `parts`, ended before the first that is no plain word.

    A field's name may itself be input (an unknown key); only what looks like a name is repeated.
    """
    names: list[str] = []
    for part in map(str, parts):
        if not _WORD.fullmatch(part):
            break
        names.append(part)
    return ".".join(names)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` answer in the one shape."""
    _answer_refusals(app)
    _answer_failures(app)


def _answer_refusals(app: FastAPI) -> None:
    """What the client can mend: 4xx."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = error.errors()[0]
        if problem["type"] == "json_invalid" or problem["loc"] == ("body",):
            return error_response(400, "bad_json", "the body must be a JSON object, sent as application/json")
        message = "unknown field" if problem["type"] == "extra_forbidden" else problem["msg"]
        place, *parts = problem["loc"]
        # A header that is asked for has a name of ours, hyphens and all.
        field = str(parts[0]) if place == "header" else public_field(parts)
        return error_response(422, "invalid", message, field)

    @app.exception_handler(ConfigError)
    async def refused(request: Request, error: ConfigError) -> JSONResponse:
        return error_response(422, "invalid", error.public, public_field(error.field.split(".")))

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        response = error_response(429, "busy", "as many rollouts as allowed are running and waiting")
        response.headers["Retry-After"] = str(error.retry_after_s)
        return response

    @app.exception_handler(Conflict)
    async def conflict(request: Request, error: Conflict) -> JSONResponse:
        return error_response(409, "conflict", str(error), error.field)

    @app.exception_handler(NotFound)
    async def not_found(request: Request, error: NotFound) -> JSONResponse:
        return error_response(404, "not_found", str(error), error.field)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        response = error_response(error.status_code, *_STATUS.get(error.status_code, ("error", "refused")))
        response.headers.update(error.headers or {})
        return response


def _answer_failures(app: FastAPI) -> None:
    """What the client cannot mend: 5xx."""

    @app.exception_handler(StoreError)
    async def not_stored(request: Request, error: StoreError) -> JSONResponse:
        logger.error("%s", error)
        sentence = "the trace database could not be written; this episode is lost, those before it are kept"
        return error_response(503, "store_unavailable", sentence)

    @app.exception_handler(EnvError)
    async def no_world(request: Request, error: EnvError) -> JSONResponse:
        return error_response(503, "infra_error", "the environment failed")

    @app.exception_handler(InfrastructureFailure)
    async def broke(request: Request, error: InfrastructureFailure) -> JSONResponse:
        return error_response(503, "infra_error", str(error), **error.details)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return error_response(500, "internal", "the server failed; its log says why")
