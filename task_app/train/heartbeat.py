"""A run's sign of life: one small file, replaced whole, that says where the run is and when it last moved.

It is written by the work itself, never by a thread that would go on beating beside work that hangs; and whoever wants
to know how a run is reads it, not the end of a log, which may lag without anything being wrong.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from task_app.core.errors import TrainError
from task_app.core.policy import Policy
from task_app.core.types import Completion, DecisionRequest

__all__ = ["FILE", "Heartbeat", "Phase", "Pulse", "RunStatus", "beating", "read_heartbeat"]

FILE = "heartbeat.json"

Phase = Literal["starting", "playing", "learning", "evaluating", "saving", "over"]
RunStatus = Literal["running", "done", "interrupted", "collapsed", "failed"]

_log = logging.getLogger(__name__)


class Heartbeat:
    """Writes `run_dir/heartbeat.json`: at each change of update, phase or status, else at most once in `every_s`."""

    def __init__(
        self, run_dir: Path, *, every_s: float = 1.0, clock: Callable[[], float] = time.time, pid: int | None = None
    ) -> None:
        self._path, self._every_s, self._clock = run_dir / FILE, every_s, clock
        self._pid = os.getpid() if pid is None else pid
        self._told: tuple[int, Phase, RunStatus] | None = None
        self._at, self._failed = 0.0, False
        self._lock = threading.Lock()

    def beat(self, update: int, phase: Phase, status: RunStatus = "running") -> bool:
        """Tell that the run moved; whether the file was written. A disk that refuses is warned of once.

        Safe to call from many threads.
        """
        with self._lock:
            return self._beat(update, phase, status)

    def _beat(self, update: int, phase: Phase, status: RunStatus) -> bool:
        now = self._clock()
        told: tuple[int, Phase, RunStatus] = (update, phase, status)
        if told == self._told and 0 <= now - self._at < self._every_s:
            return False
        self._told, self._at = told, now
        content = {"update": update, "phase": phase, "status": status, "at": now, "pid": self._pid, "host": _host()}
        partial = self._path.with_name(f".partial-{self._pid}-{FILE}")
        try:
            partial.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
            os.replace(partial, self._path)
        except OSError as error:
            if not self._failed:
                _log.warning("no heartbeat in %s: %s; the run goes on", self._path, error)
            self._failed = True
            return False
        return True


@dataclass(frozen=True, slots=True)
class Pulse:
    """A heartbeat as read. `age_s` is seconds since the run last moved; `update` counts steps in supervised runs."""

    age_s: float
    update: int
    phase: Phase
    status: RunStatus
    pid: int
    host: str
    process_gone: bool

    def is_dead(self, max_age_s: float) -> bool:
        """Whether a run that says it is running cannot be: its process is gone, or it has not moved for too long."""
        return self.status == "running" and (self.process_gone or self.age_s > max_age_s)

    def is_well(self, max_age_s: float) -> bool:
        """Whether it is done, or running and not dead."""
        return self.status == "done" or (self.status == "running" and not self.is_dead(max_age_s))

    def describe(self, max_age_s: float) -> str:
        """One line for a person."""
        state = "dead" if self.is_dead(max_age_s) else self.status
        cause = ""
        if state == "dead":
            cause = f", process {self.pid} is gone" if self.process_gone else f", the limit is {max_age_s:g} s"
        return f"{state} · update {self.update} · {self.phase} · last moved {self.age_s:.1f} s ago{cause}"


def read_heartbeat(run_dir: Path, *, clock: Callable[[], float] = time.time) -> Pulse:
    """The last heartbeat of the run in `run_dir`.

    The process is looked for only where the run was on this machine. Raises TrainError when there is no heartbeat or
    it is not one.
    """
    path = run_dir / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Pulse(
            age_s=clock() - float(found["at"]),
            update=int(found["update"]),
            phase=found["phase"],
            status=found["status"],
            pid=int(found["pid"]),
            host=found["host"],
            process_gone=found["host"] == _host() and not _exists(int(found["pid"])),
        )
    except FileNotFoundError as error:
        raise TrainError(f"{run_dir} has no {FILE}: no run was started there") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainError(f"{path} is not a heartbeat: {error!r}") from error


def beating(policy: Policy, beat: Callable[[], object]) -> Policy:
    """The same policy, which calls `beat` at every decision it is asked for."""
    return cast(Policy, _Beating(policy, beat))


class _Beating:
    """Stands for a policy; its version is read when asked for, since the trainer moves it on."""

    def __init__(self, policy: Policy, beat: Callable[[], object]) -> None:
        self._policy, self._beat = policy, beat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        self._beat()
        return self._policy.decide(requests)


def _host() -> str:
    return socket.gethostname()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
