"""`python -m task_app.jobs.keeper FOLDER COMMAND…`: runs one job's training and notes how it ended.

It outlives the service that started it, so that a training ends with its exit code on record whoever was there to see
it. It is the first process of a session of its own; the training inherits its lock (see process.py). A job that ended
is not run again, and one that another process runs is left to that.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from task_app.http.process import process_began
from task_app.jobs.process import EXIT, LOCK, LOG, PROCESS, RESULT, write_json

__all__ = ["NOT_RUN", "keep"]

NOT_RUN = 75
"""Exit code where the job is run by another process or has ended already."""
_TRIES, _WAIT_S = 40, 0.05


def keep(folder: Path, command: list[str]) -> int:
    """Run `command` for the job in `folder`; the exit code of this process."""
    lock = _locked(folder / LOCK)
    if lock is None or (folder / EXIT).exists():
        return NOT_RUN
    # A handler, not SIG_IGN: the training would inherit that, and is to end by this signal where this process stays.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    write_json(folder / PROCESS, {"pid": os.getpid(), "start": process_began(os.getpid())})
    with (folder / LOG).open("ab") as log, (folder / RESULT).open("wb") as result:
        training = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=result, stderr=log, pass_fds=[lock])
        code = training.wait()
    write_json(folder / EXIT, {"code": code})
    return 0


def _locked(path: Path) -> int | None:
    """A descriptor that holds the lock, or None where another process keeps it; whoever only looks is waited for."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            time.sleep(_WAIT_S)
    os.close(descriptor)
    return None


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), sys.argv[2:]))
