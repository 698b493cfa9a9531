"""The processes of one job, seen from its folder: whether one lives, how the last one ended, and signals to them.

A job's processes hold a lock of the system's (`flock`) on the file `process.lock`, which ends with the last of them,
however they end. That, and no process id, says whether a job is being trained: an id alone may be another's by now.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_app.http.process import process_began

__all__ = ["EXIT", "LOCK", "LOG", "PROCESS", "RESULT", "exit_code", "is_held", "send", "write_json"]

LOCK, PROCESS, EXIT = "process.lock", "process.json", "exit.json"
LOG, RESULT = "log.txt", "result.json"


def is_held(lock: Path) -> bool:
    """Whether some process holds the lock file; one that is not there is held by none."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def exit_code(folder: Path) -> int | None:
    """How the job's training ended, minus the signal where one ended it; None while that is not known."""
    try:
        return int(json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def send(folder: Path, number: signal.Signals) -> None:
    """Send a signal to all processes of a job whose lock is held; to none otherwise."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        started = json.loads((folder / PROCESS).read_text(encoding="utf-8"))
        group = int(started["pid"])
        ours = process_began(group) in (started["start"], "")  # "": its first process is gone, others live on
        if ours and is_held(folder / LOCK):
            os.killpg(group, number)


def write_json(path: Path, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a file whole or not at all, and onto the disk."""
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
