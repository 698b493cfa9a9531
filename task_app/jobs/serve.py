"""The training service on a real port: checks first, then uvicorn, until it is told to stop.

Stopping it, however, stops no training: the next service over the same folder watches them again.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from task_app.config import Config
from task_app.core.errors import ConfigError, StoreError
from task_app.http.auth import check_guarded
from task_app.http.logs import log_to_stderr
from task_app.http.ports import address_of, listen
from task_app.http.serving import ReadyServer
from task_app.jobs.app import create_jobs_app

__all__ = ["serve_jobs"]


def serve_jobs(config: Config, *, ready: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
    """Serve until interrupted; `ready` is told the address once requests are answered.

    Raises ConfigError when the port is taken or the address reaches beyond this machine and no key is set, StoreError
    when the folder cannot be used or another service uses it.
    """
    jobs = config.jobs
    check_guarded(jobs.host, environ, [jobs.api_key_env], field="jobs.host")
    with _alone(jobs.folder), _listening(jobs.host, jobs.port) as listener:
        log_to_stderr(jobs.log)
        app = create_jobs_app(config, environ=environ)
        ReadyServer(app, lambda: ready(address_of(listener)), patience_s=5).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except ConfigError as error:
        field = error.field.replace("server.", "jobs.")
        raise ConfigError(str(error), field=field) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however it ends. Raises StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "service.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"the jobs' folder {folder} cannot be used: {error}") from error
    try:
        _take(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(f"another service uses the jobs' folder {folder}; stop it, or use another --folder") from error
