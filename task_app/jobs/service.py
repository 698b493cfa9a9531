"""What the routes do: take jobs and files, start and cancel, and describe. Synchronous; the runner trains.

A job that was taken is on disk, its folder and its row, before its answer leaves.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from task_app.config import Config
from task_app.http.errors import Conflict, NotFound
from task_app.jobs.accept import RUN, Known, accept_rl, accept_sft, check_task_app
from task_app.jobs.keys import KeyRules
from task_app.jobs.process import RESULT
from task_app.jobs.requests import RlJobRequest, SftJobRequest
from task_app.jobs.rows import Job, JobKind, TrainingFile
from task_app.jobs.runner import Runner
from task_app.jobs.store import JobStore
from task_app.jobs.upload import Upload, forget_partial, path_of

__all__ = ["JobService", "QueueFull"]


class QueueFull(Exception):
    """As many jobs wait as may."""


class JobService:
    """The service over one folder; `start` and `stop` its runner. `environ` holds the keys."""

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self._settings, self._environ = config.jobs, environ
        self._app_key = environ.get(config.server.api_key_env, "").strip()
        self._folder = config.jobs.folder.resolve()
        self._files = self._folder / "files"
        self._files.mkdir(parents=True, exist_ok=True)
        self.store = JobStore(self._folder / "jobs.db")
        self._keys = KeyRules(config)
        self._known = Known(
            self._keys, self._folder, self.store.job, self.store.file, lambda sha: path_of(self._files, sha)
        )
        self._runner = Runner(self.store, self._folder, config.jobs, environ)

    def start(self) -> None:
        """Begin to run jobs, those of an earlier service first; what it left of uploads under way is removed."""
        forget_partial(self._files)
        self._runner.start()

    def stop(self) -> None:
        """Stop watching; trainings go on."""
        self._runner.stop()
        self.store.close()

    # -- jobs ------------------------------------------------------------------------------------

    def create_rl(self, request: RlJobRequest, key: str) -> tuple[dict[str, Any], bool]:
        """The job described, and whether it is new. Raises ConfigError, Conflict, QueueFull, StoreError."""
        return self._create("rl", request, key)

    def create_sft(self, request: SftJobRequest, key: str) -> tuple[dict[str, Any], bool]:
        """The same; the job waits for `start_job`."""
        return self._create("sft", request, key)

    def start_job(self, job_id: str) -> dict[str, Any]:
        """Put a created job into the queue; one that is there or further stays as it is. Raises NotFound, Conflict."""
        self._job(job_id, "sft")
        self.store.move(job_id, ("created",), "queued")
        job = self._job(job_id, "sft")
        if job.status == "cancelled":
            raise Conflict("the job was cancelled")
        return self.describe(job)

    def cancel(self, job_id: str, kind: JobKind) -> dict[str, Any]:
        """End a job; a running one is cancelled once its processes have ended. Raises NotFound, Conflict."""
        self._job(job_id, kind)
        self.store.move(job_id, ("created", "queued"), "cancelled", "cancelled before it ran")
        self.store.ask_cancel(job_id)
        job = self._job(job_id, kind)
        if job.status in ("succeeded", "failed"):
            raise Conflict(f"the job has {job.status} already")
        return self.describe(job)

    def show(self, job_id: str, kind: JobKind) -> dict[str, Any]:
        """One job. Raises NotFound."""
        return self.describe(self._job(job_id, kind))

    def list_jobs(self, kind: JobKind, status: str | None, limit: int) -> dict[str, Any]:
        """The last jobs, newest first."""
        return {"jobs": [self.describe(job) for job in self.store.jobs(kind, status, limit)]}

    def describe(self, job: Job) -> dict[str, Any]:
        """A job as clients see it."""
        progress = self.store.last_event(job.id, "metrics")
        told: dict[str, Any] = {
            "id": job.id,
            "job_id": job.id,
            "job_type": job.kind,
            "status": job.status,
            "reason": job.reason,
            "cancelling": job.cancelled_at is not None and not job.over,
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
            "attempts": job.attempts,
            "ahead": self.store.ahead_of(job) if job.status == "queued" else None,
            "progress": progress.data if progress else None,
            "result": self._result(job),
            "ignored": job.ignored,
            "tags": job.request.get("tags", {}),
            "metadata": job.request.get("metadata", {}),
        }
        return told

    def counts(self) -> dict[str, int]:
        """Jobs that wait and that run."""
        return {status: self.store.count(status) for status in ("queued", "running")}

    @property
    def runs(self) -> bool:
        """Whether jobs are being run: the last look at the queue went well, and there will be further ones."""
        return self._runner.runs

    # -- files -----------------------------------------------------------------------------------

    def upload(self, content_type: str) -> Upload:
        """What takes a file. Raises ConfigError for a body that is no form."""
        return Upload(self._files, content_type, self._settings.max_line_bytes)

    def keep(self, upload: Upload) -> tuple[dict[str, Any], bool]:
        """The file uploaded, and whether it is new. Raises ConfigError for a faulty line."""
        file = upload.finish()
        new = self.store.add_file(file)
        return self.show_file(file.id), new

    def show_file(self, file_id: str) -> dict[str, Any]:
        """One file; it was checked when it came, so it is ready. Raises NotFound."""
        file = self.store.file(file_id)
        if file is None:
            raise NotFound("there is no such file", field="id")
        return _described(file)

    # -- inside ----------------------------------------------------------------------------------

    def _create(self, kind: JobKind, request: RlJobRequest | SftJobRequest, key: str) -> tuple[dict[str, Any], bool]:
        sent = request.model_dump(mode="json")
        body_hash = hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()
        scoped = f"{kind}:{key}" if key else None
        if scoped and (found := self.store.job_of_key(scoped)):
            return self._same(found, body_hash), False
        job_id = f"{kind}-{uuid.uuid4().hex[:16]}"
        folder = self._folder / job_id
        status: Literal["queued", "created"] = "queued"
        if isinstance(request, RlJobRequest):
            if request.data.endpoint_base_url:
                check_task_app(request.data.endpoint_base_url, self._app_key, self._keys)
            accepted = accept_rl(request, folder, self._known)
        else:
            accepted, status = accept_sft(request, folder, self._known), "created"
        job = Job(
            job_id, kind, status, "", time.time(), None, None, 0, 0, None, sent, accepted.command, accepted.ignored,
            body_hash,
        )  # fmt: skip
        kept: Job | None = None
        try:
            kept = self.store.add_job(job, scoped, max_queued=self._settings.max_queued)
        finally:
            if kept is None or kept.id != job.id:
                shutil.rmtree(folder, ignore_errors=True)  # what stays of it is no job: it has no row
        if kept is None:
            raise QueueFull
        return (self.describe(job), True) if kept.id == job.id else (self._same(kept, body_hash), False)

    def _same(self, job: Job, body_hash: str) -> dict[str, Any]:
        if job.body_hash != body_hash:
            raise Conflict("this Idempotency-Key was used with another body")
        return self.describe(job)

    def _job(self, job_id: str, kind: JobKind) -> Job:
        job = self.store.job(job_id, kind)
        if job is None:
            raise NotFound("there is no such job", field="id")
        return job

    def _result(self, job: Job) -> dict[str, Any] | None:
        """What a training that succeeded printed, and where its run is."""
        if job.status != "succeeded":
            return None
        folder = self._folder / job.id
        try:
            said = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = {}
        return {**said, "run_dir": str(folder / RUN)}


def _described(file: TrainingFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "file_id": file.id,
        "status": "ready",
        "sha256": file.sha256,
        "bytes": file.bytes,
        "lines": file.lines,
        "filename": file.filename,
        "purpose": file.purpose,
        "created_at": file.created_at,
    }
