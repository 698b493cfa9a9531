"""One JSON shape for every error: `{"error": {"code", "message", "field"}}`. Never echoes the input."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from task_app.core.errors import ConfigError, StoreError

__all__ = ["Busy", "InfrastructureFailure", "error_response", "install_error_handlers"]

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 409: "conflict", 413: "too_large"}


class Busy(Exception):
    """The server has as much to do as it accepts; try again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("busy")
        self.retry_after_s = retry_after_s


class InfrastructureFailure(Exception):
    """A rollout that broke: a missing reward, never a reward of 0. `details` is added to the body."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


def error_response(status: int, code: str, message: str, field: str = "", **extra: Any) -> JSONResponse:
    """The one error body; `field` is the dotted name of the offending field, or empty."""
    return JSONResponse({"error": {"code": code, "message": message, "field": field, **extra}}, status_code=status)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of `app` answer in the one shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = error.errors()[0]
        where = [str(part) for part in problem["loc"] if part not in ("body", "query")]
        if problem["type"] == "json_invalid":
            return error_response(400, "bad_json", "the body is not JSON")
        message = "unknown field" if problem["type"] == "extra_forbidden" else problem["msg"]
        return error_response(422, "invalid", message, ".".join(where))

    @app.exception_handler(ConfigError)
    async def refused(request: Request, error: ConfigError) -> JSONResponse:
        return error_response(422, "invalid", error.public, error.field)

    @app.exception_handler(StoreError)
    async def not_stored(request: Request, error: StoreError) -> JSONResponse:
        return error_response(503, "store_unavailable", "the trace database could not be written; nothing was lost")

    @app.exception_handler(InfrastructureFailure)
    async def broke(request: Request, error: InfrastructureFailure) -> JSONResponse:
        return error_response(503, "infra_error", str(error), **error.details)

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        response = error_response(429, "busy", "as many rollouts as allowed are running and waiting")
        response.headers["Retry-After"] = str(error.retry_after_s)
        return response

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "error")
        response = error_response(error.status_code, code, str(error.detail))
        response.headers.update(error.headers or {})
        return response
