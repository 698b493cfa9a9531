"""Several processes that serve one port: started, watched, replaced when they die, ended together.

They share the listening socket; what they must agree on is in `shared.py`. When this process dies, however it does,
they end too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from socket import socket
from types import FrameType

from task_app.config import Config
from task_app.core.errors import TaskAppError
from task_app.server.metrics import FOLDER_VARIABLE

__all__ = ["WorkerMain", "run_workers"]

WorkerMain = Callable[[Config, Mapping[str, str], socket, Callable[[], None]], None]
"""What a worker runs: serves on the socket until it is told to end (SIGTERM), and calls the function once it serves."""

_spawn = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
_END_S = 15.0
_EARLY_S = 5.0
"""A worker that lives no longer than this died early; three such deaths in a row end the server."""
_READY = "ready"


class _Worker:
    """One process and the pipe that tells it that its parent lives."""

    def __init__(self, main: WorkerMain, config: Config, environ: Mapping[str, str], listener: socket) -> None:
        self._lifeline, theirs = _spawn.Pipe()
        arguments = (main, config, dict(environ), listener, theirs)
        self.process: SpawnProcess = _spawn.Process(target=_work, args=arguments, name="worker")
        self.process.start()
        self.began = time.monotonic()
        theirs.close()

    def is_ready(self, timeout_s: float) -> bool:
        """Whether it said that it serves, within the time."""
        try:
            return self._lifeline.poll(timeout_s) and self._lifeline.recv() == _READY
        except (EOFError, OSError):
            return False

    def end(self) -> None:
        """Ask it to end."""
        if self.process.is_alive():
            self.process.terminate()

    def close(self, timeout_s: float) -> None:
        """Wait for its end, and make it one after the time."""
        self.process.join(timeout_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._lifeline.close()


def run_workers(
    main: WorkerMain, config: Config, environ: Mapping[str, str], listener: socket, ready: Callable[[], None]
) -> None:
    """Serve with `server.workers` processes until SIGINT or SIGTERM. `ready` is called once all of them serve.

    Raises TaskAppError when workers die as soon as they are started.
    """
    with _numbers_together(), _signals() as told:
        workers = [_Worker(main, config, environ, listener) for _ in range(config.server.workers)]
        try:
            if _all_ready(workers, told):
                ready()
                _watch(workers, told, lambda: _Worker(main, config, environ, listener))
        finally:
            for worker in workers:
                worker.end()
            deadline = time.monotonic() + _END_S
            for worker in workers:
                worker.close(max(0.0, deadline - time.monotonic()))


def _all_ready(workers: list[_Worker], told: threading.Event) -> bool:
    for worker in workers:
        while not worker.is_ready(0.1):
            if told.is_set():
                return False
            if not worker.process.is_alive():
                raise TaskAppError(f"a worker process ended before it served (exit code {worker.process.exitcode})")
    return True


def _watch(workers: list[_Worker], told: threading.Event, start: Callable[[], _Worker]) -> None:
    """Replace workers that die until the end is told."""
    early = 0
    while not told.is_set():
        wait([worker.process.sentinel for worker in workers], timeout=0.2)
        for index, worker in enumerate(workers):
            if worker.process.is_alive() or told.is_set():
                continue
            early = early + 1 if time.monotonic() - worker.began < _EARLY_S else 0
            if early > 2:
                raise TaskAppError("worker processes end as soon as they are started; see what they said above")
            _forget_numbers(worker.process.pid)
            worker.close(0)
            workers[index] = start()


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _numbers_together() -> Iterator[None]:
    """A folder in which the workers' metrics add up, named to them by the environment."""
    with tempfile.TemporaryDirectory(prefix="task-app-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


def _forget_numbers(pid: int | None) -> None:
    """Take a dead worker out of what counts only the living; its totals stay."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)


def _work(main: WorkerMain, config: Config, environ: Mapping[str, str], listener: socket, lifeline: Connection) -> None:
    """A worker process from begin to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent passes it on in order

    def end_with_the_parent() -> None:
        try:
            lifeline.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_the_parent, daemon=True, name="lifeline").start()
    main(config, environ, listener, lambda: lifeline.send(_READY))
