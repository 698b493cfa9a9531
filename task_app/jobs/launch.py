"""A TOML sent to a training service, and followed to its end. What is sent is what the TOML says, key for key.

Paths of data in a TOML are meant from the TOML; the data itself is sent. Nothing is printed here.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from task_app.config import load_config
from task_app.config.load import read_document
from task_app.core.errors import ConfigError, PolicyError
from task_app.jobs.client import JobsClient, Kind, Unavailable, api_root, is_local, pauses
from task_app.rollout.client import HostedTaskApp

__all__ = [
    "Launch",
    "Outcome",
    "follow",
    "headline",
    "needed_secrets",
    "plain",
    "post",
    "prepare",
    "preview",
    "redacted",
]

_JOB_ID = re.compile(r"(rl|sft)-[0-9a-f]{16}")
_SECRET = re.compile(r"(^|_|-)(key|token|secret|password|passwd|credential|credentials|authorization)$", re.IGNORECASE)
_REDACTED = "[redacted]"
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Launch:
    """One job as it will be posted. `payload` of a supervised job lacks the ids of its files until they are sent.

    task_app     a task app elsewhere, empty for the trainer's own; app_key_env, key_env: the variables with the keys
    """

    kind: Kind
    backend: str
    payload: dict[str, Any]
    dataset: Path | None
    validation: Path | None
    task_app: str
    app_key_env: str
    key_env: str
    idempotency: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def url(self) -> str:
        """Where the job is posted."""
        return f"{self.backend}/{'rl' if self.kind == 'rl' else 'learning'}/jobs"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How following a job ended: its own status, or `timeout` when it was not over in time."""

    status: Literal["succeeded", "failed", "cancelled", "timeout"]
    job: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0 for a success alone, 3 for a job that may still succeed."""
        return {"succeeded": 0, "timeout": 3}.get(self.status, 1)


def prepare(
    kind: Kind,
    config: Path,
    backend: str,
    *,
    overrides: Mapping[str, Any] | None = None,
    dataset: Path | None = None,
    validation: Path | None = None,
    model: str | None = None,
    task_url: str | None = None,
    idempotency: str | None = None,
) -> Launch:
    """What will be posted for a TOML; reads that file alone. Raises ConfigError for one that cannot work."""
    settings = load_config(config, overrides)
    document = plain(read_document(config, overrides))
    url = task_url or settings.rollout.task_url or _text(document, "services", "task_url")
    url = url.rstrip("/")
    data: dict[str, Any] = {"config": document}
    if url:
        data["endpoint_base_url"] = url
    if model is not None:
        data["model" if _JOB_ID.fullmatch(model) else "base_model"] = model
    payload = {"job_type": kind, "compute": document.get("compute", {}), "data": data, "tags": {}, "metadata": {}}
    given = {} if idempotency is None else {"idempotency": idempotency}
    taught = bool(settings.sft.teacher.name)
    launch = Launch(
        kind=kind,
        backend=api_root(backend),
        payload=payload,
        dataset=dataset or settings.sft.dataset or _path(document, config, "job", "data"),
        validation=validation or settings.sft.validation or _path(document, config, "data", "validation_path"),
        task_app=url,
        app_key_env=settings.server.api_key_env,
        key_env=settings.jobs.api_key_env,
        **given,
    )
    if kind == "sft" and launch.dataset is None and not taught:
        raise ConfigError(
            "sft needs a dataset: --dataset, sft.dataset, or a teacher (sft.teacher.name)", field="sft.dataset"
        )
    return launch


def needed_secrets(launch: Launch) -> list[str]:
    """The variables whose keys must be known before anything is sent; this machine's own servers may have none."""
    needed = [] if is_local(launch.backend) else [launch.key_env]
    if launch.task_app and not is_local(launch.task_app):
        needed.append(launch.app_key_env)
    return needed


def post(launch: Launch, client: JobsClient, environ: Mapping[str, str]) -> dict[str, Any]:
    """Check the task app, send data, post and start: the job. Raises ConfigError, PolicyError."""
    if launch.task_app:
        key = environ.get(launch.app_key_env, "")
        with HostedTaskApp(launch.task_app, api_key=key, timeout_s=_ANSWER_S, tries=3) as app:
            app.health()
            app.task_info()
    if launch.kind == "rl":
        return client.create("rl", launch.payload, launch.idempotency)
    files = {}
    for name, path in (("training_file_id", launch.dataset), ("validation_file", launch.validation)):
        if path is not None:
            files[name] = _sent(client, path)
    job = client.create("sft", {**launch.payload, **files}, launch.idempotency)
    return client.start(str(job["id"]))


def preview(launch: Launch) -> dict[str, Any]:
    """Exactly what `post` would send, with secrets left out; opens no connection. Raises ConfigError for data that
    cannot be read."""
    files = {
        name: (path, _hash(path))
        for name, path in (("training_file_id", launch.dataset), ("validation_file", launch.validation))
        if path is not None and launch.kind == "sft"
    }
    body = {**launch.payload, **{name: f"file-{sha256}" for name, (_, sha256) in files.items()}}
    return {
        "asks": [f"{launch.task_app}{route}" for route in ("/health", "/task_info")] if launch.task_app else [],
        "uploads": [{"url": f"{launch.backend}/learning/files", "path": str(path)} for path, _ in files.values()],
        "url": launch.url,
        "headers": {"Idempotency-Key": launch.idempotency},
        "body": redacted(body),
    }


def headline(job: Mapping[str, Any]) -> str:
    """One line on where a job is."""
    parts = [str(job.get("status"))]
    if job.get("ahead"):
        parts.append(f"{job['ahead']} ahead")
    progress = job.get("progress")
    if isinstance(progress, Mapping):
        parts.append(f"{progress.get('kind')} {progress.get('update')}")
        shown = {"outcome/mean": "outcome", "reward/sum": "Σr", "mean": "held-out", "loss": "loss"}
        parts += [f"{label} {progress[key]:.3g}" for key, label in shown.items() if _is_number(progress.get(key))]
    return " · ".join(parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def follow(
    kind: Kind,
    job_id: str,
    client: JobsClient,
    *,
    timeout_s: float,
    interval_s: float,
    progress: Callable[[dict[str, Any]], None] = lambda job: None,
) -> Outcome:
    """Ask after a job until it is over, ever less often down to once in `interval_s`; `progress` is told each answer.

    A service that is away or busy for a while is asked again, `Retry-After` honoured. Raises PolicyError when it
    refuses.
    """
    deadline = time.monotonic() + timeout_s
    job: dict[str, Any] = {"id": job_id}
    for pause_s in pauses(0.5, interval_s):
        wait_s = pause_s
        try:
            job = client.job(kind, job_id, once_s=deadline - time.monotonic())
            progress(job)
            if job.get("status") in ("succeeded", "failed", "cancelled"):
                return Outcome(job["status"], job)
        except Unavailable as error:
            wait_s = max(pause_s, error.wait_s or 0.0)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return Outcome("timeout", job)
        time.sleep(min(wait_s, left_s))
    raise AssertionError("pauses never end")


def run_job(
    launch: Launch,
    environ: Mapping[str, str],
    *,
    timeout_s: float = 3_600.0,
    interval_s: float = 5.0,
    progress: Callable[[dict[str, Any]], None] = lambda job: None,
) -> Outcome:
    """Post a job and follow it to its end. Raises ConfigError, PolicyError."""
    with JobsClient(launch.backend, api_key=environ.get(launch.key_env, "")) as client:
        job = post(launch, client, environ)
        return follow(
            launch.kind, str(job["id"]), client, timeout_s=timeout_s, interval_s=interval_s, progress=progress
        )


def redacted(value: Any, name: str = "") -> Any:
    """The same with each text under a name such as `api_key` or `hub_token` left out; names of variables stay."""
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item, name) for item in value]
    return _REDACTED if isinstance(value, str) and value and _SECRET.search(name) else value


def plain(value: Any) -> Any:
    """TOML's values as JSON's: dates and times become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


def _sent(client: JobsClient, path: Path) -> str:
    """The id of a file that is there and ready."""
    file = client.upload(path)
    file = client.file(str(file["id"]))
    if file.get("status") != "ready":
        raise PolicyError(f"the service did not take {path}: status {file.get('status')}", retryable=False)
    return str(file["id"])


def _hash(path: Path) -> str:
    """The SHA-256 of a file, under which the service keeps it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"the data {path} cannot be read: {error}", field="dataset") from error


def _text(document: Mapping[str, Any], section: str, key: str) -> str:
    inside = document.get(section)
    found = inside.get(key) if isinstance(inside, Mapping) else None
    return found.strip() if isinstance(found, str) else ""


def _path(document: Mapping[str, Any], config: Path, section: str, key: str) -> Path | None:
    """A path of an older job file, meant from that file as every other."""
    written = _text(document, section, key)
    return config.parent / written if written else None
