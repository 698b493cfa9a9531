"""One process a run folder: a lock that the system itself takes back when its holder dies, however it dies.

The lock is the system's (`flock`) on the file `lock` in the folder; the file's text names the holder for people and
decides nothing, so a file left behind by a killed process is no obstacle. It guards one machine: two machines that
share a folder over a network may not see each other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from task_app.core.errors import TrainError

__all__ = ["LOCK", "run_lock"]

LOCK = "lock"


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold `run_dir` while inside; the folder is made, the lock file removed at the end.

    Raises TrainError when another process (or another run of this one) trains in it, or it cannot be written.
    """
    path = run_dir / LOCK
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = _acquired(path)
    except OSError as error:
        raise TrainError(f"run folder {run_dir} cannot be locked: {error}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # the run is over; what matters is that the descriptor is closed
            path.unlink()
        os.close(descriptor)


def _acquired(path: Path) -> int:
    """An open descriptor of the lock file, locked. Raises TrainError naming the holder."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                os.truncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        except BlockingIOError as error:
            holder = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
            os.close(descriptor)
            raise TrainError(
                f"process {holder or 'unknown'} is training in {path.parent}; wait until it ends, end it, or use "
                "another run_dir"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder before us removed the file between our opening and locking it


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the path names the file that was opened."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
