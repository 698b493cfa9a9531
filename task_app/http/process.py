"""A process by its id and when it began: ids are used again, and another process is not the one that died."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["identity_of", "is_running", "process_began"]


def process_began(pid: int) -> str:
    """When a process began, in the system's own ticks since it started.

    Empty for one that is gone, or has ended and waits for its parent, and where the system does not tell.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def identity_of(pid: int) -> str:
    """What tells the process from every other one of this machine: `<id>:<when it began>`."""
    return f"{pid}:{process_began(pid)}"


def is_running(identity: str) -> bool:
    """Whether the process of an identity still runs."""
    pid, _, began = identity.partition(":")
    if not pid.isdecimal() or int(pid) == 0 or process_began(int(pid)) != began:
        return False
    if began:
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return not Path("/proc/self").exists()  # else the system would have told when it began
