"""The queue: starts trainings, watches them, ends cancelled ones, and finds them again after the service was killed.

What is true stands in the store and in the job's folder; nothing that counts is held here alone. Trainings are
processes of their own and go on while no service runs.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from task_app.config.jobs import JobsSection
from task_app.core.errors import StoreError
from task_app.jobs.follow import Follower, last_error
from task_app.jobs.process import EXIT, LOCK, exit_code, is_held, send
from task_app.jobs.rows import Job, JobStatus
from task_app.jobs.store import JobStore

__all__ = ["Runner"]

_TICK_S = 0.2
_log = logging.getLogger(__name__)


class Runner:
    """Runs the jobs of `store`, whose folders are in `folder`, until `stop`.

    `environ` is what trainings get as their environment.
    """

    def __init__(self, store: JobStore, folder: Path, settings: JobsSection, environ: Mapping[str, str]) -> None:
        self._store, self._folder, self._settings = store, folder, settings
        self._environ = {name: value for name, value in environ.items() if name != settings.api_key_env}
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._followers: dict[str, Follower] = {}
        self._interrupted: set[str] = set()
        self._trouble = ""
        self._stopping, self._thread = threading.Event(), threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; trainings go on and are found again by the next service."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for keeper in self._keepers.values():
            keeper.returncode = keeper.poll() or 0  # it stays, on purpose: no warning that it does

    @property
    def runs(self) -> bool:
        """Whether the queue is worked on: the thread lives and its last look at the jobs met no fault."""
        return self._thread.is_alive() and not self._trouble

    def _run(self) -> None:
        """Whatever a look meets, the next one comes: what is true stands on disk, and a fault may pass."""
        while not self._stopping.wait(_TICK_S):
            try:
                self.tick()
                self._trouble = ""
            except (StoreError, OSError) as error:  # such as a full disk
                self._note(error, unforeseen=False)
            except Exception as error:
                self._note(error, unforeseen=True)

    def _note(self, error: Exception, *, unforeseen: bool) -> None:
        """In the log once, though every tick may meet it."""
        said = f"{type(error).__name__}: {error}"
        if said != self._trouble:
            _log.warning("jobs wait: %s", said, exc_info=error if unforeseen else None)
        self._trouble = said

    def tick(self) -> None:
        """Look once at every running job, then start what may start.

        Raises StoreError, and whatever else one of the jobs met, once all have had their turn.
        """
        faults = self._each(self._watch, self._store.jobs(status="running"))
        free = self._settings.concurrency - self._store.count("running")
        faults += self._each(self._start, self._store.first_queued(free))
        if faults:
            raise faults[0]

    def _each(self, act: Callable[[Job], None], jobs: Iterable[Job]) -> list[Exception]:
        """Do it to each job, whatever happens with another; what was met."""
        faults: list[Exception] = []
        for job in jobs:
            try:
                act(job)
            except Exception as error:
                faults.append(error)
        return faults

    def _start(self, job: Job) -> None:
        """The status first: a service killed between the two finds a job that runs nowhere, and queues it again."""
        started = {"attempts": job.attempts + 1, "started_at": job.started_at or time.time()}
        folder = self._folder / job.id
        (folder / EXIT).unlink(missing_ok=True)
        if not self._store.move(job.id, ("queued",), "running", f"attempt {job.attempts + 1}", **started):
            return  # cancelled meanwhile
        command = [sys.executable, "-m", "task_app.jobs.keeper", str(folder), *job.command]
        nowhere = subprocess.DEVNULL
        self._keepers[job.id] = subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=self._environ, start_new_session=True
        )

    def _watch(self, job: Job) -> None:
        folder = self._folder / job.id
        alive = self._is_alive(job.id, folder)
        follower = self._followers.setdefault(job.id, Follower(self._store, job.id, folder))
        try:
            follower.read()
        except (StoreError, OSError):
            raise  # the next tick reads the same again, before the job can be over
        except Exception:
            self._go_on(job, folder, alive)  # lines that cannot be told must not keep a job from its end
            raise
        self._go_on(job, folder, alive)

    def _go_on(self, job: Job, folder: Path, alive: bool) -> None:
        if alive and job.cancelled_at is not None:
            self._end(job.id, folder, time.time() - job.cancelled_at)
        elif not alive:
            self._conclude(job.id, folder)

    def _is_alive(self, job_id: str, folder: Path) -> bool:
        keeper = self._keepers.get(job_id)
        return (keeper is not None and keeper.poll() is None) or is_held(folder / LOCK)

    def _end(self, job_id: str, folder: Path, waited_s: float) -> None:
        """Ask once, as Ctrl-C does; then kill."""
        if waited_s >= self._settings.cancel_grace_s:
            send(folder, signal.SIGKILL)
        elif job_id not in self._interrupted and is_held(folder / LOCK):
            send(folder, signal.SIGINT)
            self._interrupted.add(job_id)

    def _conclude(self, job_id: str, folder: Path) -> None:
        """A running job has no process: what its training left says what becomes of it."""
        job = self._store.job(job_id)
        assert job is not None
        code = exit_code(folder)
        running: tuple[JobStatus, ...] = ("running",)
        if code == 0:
            self._store.move(job_id, running, "succeeded")
        elif job.cancelled_at is not None:
            self._store.move(job_id, running, "cancelled", "cancelled while it was running")
        elif code is not None and code > 0:
            self._store.move(job_id, running, "failed", last_error(folder) or f"the training ended with code {code}")
        elif job.deaths + 1 >= self._settings.max_deaths:
            how = f"by {_signal_name(-code)}" if code else "together with what kept it"
            reason = f"killed {how}, {job.deaths + 1} times without a new line of metrics"
            self._store.move(job_id, running, "failed", reason)
        else:
            self._store.move(job_id, running, "queued", "its process was killed; it resumes", deaths=job.deaths + 1)
        for kept in (self._keepers, self._followers):
            kept.pop(job_id, None)
        self._interrupted.discard(job_id)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
