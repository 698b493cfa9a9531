"""`create_jobs_app`: the training service as a FastAPI application. Routes only; the work is `service.py`'s."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from task_app import __version__
from task_app.config import Config
from task_app.core.errors import StoreError
from task_app.http import SERVICE
from task_app.http.auth import KeyCheck
from task_app.http.errors import error_response, install_error_handlers
from task_app.http.limits import BodyLimit
from task_app.http.logs import RequestLog, note
from task_app.jobs.requests import RlJobRequest, SftJobRequest
from task_app.jobs.rows import OVER, JobKind, JobStatus
from task_app.jobs.service import JobService, QueueFull

__all__ = ["OPEN_PATHS", "create_jobs_app"]

OPEN_PATHS = ("/", "/health")
"""What answers without a key."""
FILES = "/api/learning/files"
_LOOK_S = 0.25
_RETRY_S = 5

_SAID = {
    400: "the body is not JSON",
    401: "no valid key",
    404: "there is no such job or file",
    409: "the job's state or the Idempotency-Key forbids it",
    413: "the body is too large",
    422: "a field is unknown or holds a value that is not allowed; the body names it",
    429: "as many jobs wait as may; see Retry-After",
    503: "the jobs' folder or database cannot be used",
}

Key = Annotated[str, Header(alias="Idempotency-Key", max_length=255)]
Limit = Annotated[int, Query(ge=1, le=500)]
Since = Annotated[int | None, Query(ge=0, le=2**62, description="Answer JSON: the events after this one")]
Seen = Annotated[str, Header(alias="Last-Event-ID", pattern=r"^\d{0,18}$")]


def create_jobs_app(config: Config, *, environ: Mapping[str, str] = os.environ) -> FastAPI:
    """The application for one config; jobs run while its lifespan does. Raises StoreError."""
    service = JobService(config, environ)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await run_in_threadpool(service.stop)

    app = FastAPI(
        title="Training service", version=__version__, lifespan=lifespan, redirect_slashes=False, docs_url=None,
        redoc_url=None,
    )  # fmt: skip
    app.state.service = service
    install_error_handlers(app)
    _answer_own_errors(app)
    app.add_middleware(_LimitButForFiles, max_bytes=config.jobs.max_body_bytes)
    app.add_middleware(KeyCheck, keys=[environ.get(config.jobs.api_key_env, "").strip()], open_paths=OPEN_PATHS)
    app.add_middleware(RequestLog)
    _add_health(app, service)
    _add_rl(app, service)
    _add_files(app, service, config.jobs.max_file_bytes)
    _add_sft(app, service)
    return app


class _LimitButForFiles:
    """The limit of bodies that are read whole; an upload is read as a stream and limited there."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._limited = app, BodyLimit(app, max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streamed = scope["type"] == "http" and scope["path"] == FILES
        await (self._app if streamed else self._limited)(scope, receive, send)


def _answer_own_errors(app: FastAPI) -> None:
    @app.exception_handler(QueueFull)
    async def full(request: Request, error: QueueFull) -> JSONResponse:
        response = error_response(429, "busy", "as many jobs as allowed are waiting")
        response.headers["Retry-After"] = str(_RETRY_S)
        return response

    @app.exception_handler(StoreError)
    async def not_stored(request: Request, error: StoreError) -> JSONResponse:
        return error_response(
            503, "store_unavailable", "the jobs' folder or database cannot be used; nothing was changed"
        )


def _responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"description": _SAID[code]} for code in (401, 503, *codes)}


def _noted(body: dict[str, Any]) -> dict[str, Any]:
    """The answer, whose job or file the request's log line then names."""
    note(id=body["id"])
    return body


def _answer(told: tuple[dict[str, Any], bool]) -> JSONResponse:
    body, new = told
    return JSONResponse(_noted(body), status_code=201 if new else 200)


def _add_health(app: FastAPI, service: JobService) -> None:
    @app.get("/")
    def root() -> dict[str, Any]:
        """What this is; open to all."""
        return {"service": SERVICE, "kind": "jobs", "version": __version__, "health": "/health"}

    @app.get("/health", responses={503: {"description": f"{_SAID[503]}, or no job is run"}})
    def health() -> Any:
        """Whether jobs are taken and run, and how many wait and run; open to all."""
        counts = service.counts()
        if not service.runs:
            return error_response(503, "not_running", "jobs wait: the queue cannot be worked on; see the log")
        told = {"healthy": True, "status": "healthy", "service": SERVICE, "kind": "jobs", "version": __version__}
        return {**told, "pid": os.getpid(), "jobs": counts}


def _add_rl(app: FastAPI, service: JobService) -> None:
    @app.post("/api/rl/jobs", status_code=201, responses=_responses(400, 409, 413, 422, 429))
    def create(request: RlJobRequest, key: Key = "") -> Response:
        """Take a job of reinforcement learning; 200 where the Idempotency-Key has made it before."""
        return _answer(service.create_rl(request, key))

    _add_common(app, service, "/api/rl/jobs", "rl")


def _add_sft(app: FastAPI, service: JobService) -> None:
    @app.post("/api/learning/jobs", status_code=201, responses=_responses(400, 409, 413, 422, 429))
    def create(request: SftJobRequest, key: Key = "") -> Response:
        """Take a job of supervised training; it begins to wait for its turn when it is started."""
        return _answer(service.create_sft(request, key))

    @app.post("/api/learning/jobs/{job_id}/start", responses=_responses(404, 409))
    def start(job_id: str) -> dict[str, Any]:
        """Put a job into the queue."""
        return _noted(service.start_job(job_id))

    _add_common(app, service, "/api/learning/jobs", "sft")


def _add_common(app: FastAPI, service: JobService, path: str, kind: JobKind) -> None:
    @app.get(path, responses=_responses(422), operation_id=f"list_{kind}")
    def list_jobs(status: JobStatus | None = None, limit: Limit = 50) -> dict[str, Any]:
        """The last jobs, newest first."""
        return service.list_jobs(kind, status, limit)

    @app.get(path + "/{job_id}", responses=_responses(404), operation_id=f"show_{kind}")
    def show(job_id: str) -> dict[str, Any]:
        """One job."""
        return _noted(service.show(job_id, kind))

    @app.post(path + "/{job_id}/cancel", responses=_responses(404, 409), operation_id=f"cancel_{kind}")
    def cancel(job_id: str) -> dict[str, Any]:
        """End a job."""
        return _noted(service.cancel(job_id, kind))

    _add_events(app, service, path, kind)


def _add_files(app: FastAPI, service: JobService, max_bytes: int) -> None:
    form = {"schema": {"type": "object", "required": ["file"], "properties": {
        "file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}}}}  # fmt: skip
    body = {"requestBody": {"required": True, "content": {"multipart/form-data": form}}}

    @app.post(FILES, status_code=201, responses=_responses(400, 413, 422), openapi_extra=body)
    async def upload(request: Request) -> Response:
        """Take a file of JSON lines; 200 where the same was uploaded before."""
        taking = await run_in_threadpool(service.upload, request.headers.get("content-type", ""))
        try:
            received = 0
            async for chunk in request.stream():
                received += len(chunk)
                if received > max_bytes:
                    return error_response(413, "too_large", f"the body may have at most {max_bytes} bytes")
                await run_in_threadpool(taking.feed, chunk)
            return _answer(await run_in_threadpool(service.keep, taking))
        finally:
            await run_in_threadpool(taking.close)

    @app.get(FILES + "/{file_id}", responses=_responses(404))
    def show(file_id: str) -> dict[str, Any]:
        """One file."""
        return _noted(service.show_file(file_id))


def _add_events(app: FastAPI, service: JobService, path: str, kind: JobKind) -> None:
    @app.get(path + "/{job_id}/events", responses=_responses(404, 422), operation_id=f"events_{kind}")
    async def events(job_id: str, since_seq: Since = None, limit: Limit = 200, seen: Seen = "") -> Response:
        """What happens to a job, as server-sent events (`status`, `metrics`, `log`), until it is over.

        `Last-Event-ID` resumes; 204 says that nothing more will come, so that a reader stops asking.
        """
        job = await run_in_threadpool(service.show, job_id, kind)
        if since_seq is not None:
            found = await run_in_threadpool(service.store.events, job_id, since_seq, limit)
            listed = [{"seq": one.id, "event": one.event, "data": one.data, "at": one.at} for one in found]
            return JSONResponse({"events": listed})
        after = int(seen or 0)
        if job["status"] in OVER and not await run_in_threadpool(service.store.events, job_id, after, 1):
            return Response(status_code=204)
        return EventSourceResponse(_stream(service, job_id, kind, after), ping=15)


async def _stream(service: JobService, job_id: str, kind: JobKind, after: int) -> AsyncIterator[ServerSentEvent]:
    """Events from the store, which the runner fills; the state is asked before the events that lead to it."""
    while True:
        job = await run_in_threadpool(service.show, job_id, kind)
        found = await run_in_threadpool(service.store.events, job_id, after)
        for one in found:
            after = one.id
            yield ServerSentEvent(json.dumps({**one.data, "at": one.at}), event=one.event, id=str(one.id))
        if not found:
            if job["status"] in OVER:
                return
            await asyncio.sleep(_LOOK_S)
