"""`task-app serve` in a process of its own on a free port, ended by its process id."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from task_app.store import TraceStore

__all__ = ["Served", "running"]


@dataclass(frozen=True)
class Served:
    """A served app. `http` keeps its connections; `post` makes one of its own, so that any worker may answer."""

    process: subprocess.Popen[str]
    url: str
    http: httpx.Client
    db: Path

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=60, trust_env=False)

    def health(self) -> dict:
        return httpx.get(f"{self.url}/health", timeout=20, trust_env=False).json()

    def is_idle(self, within_s: float = 10.0) -> bool:
        """Whether nothing runs or waits soon: what /health says may be a moment old."""
        deadline = time.monotonic() + within_s
        while any(self.health()["queue"][name] for name in ("running", "waiting")):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def worker_pids(self, number: int = 2) -> set[int]:
        """The processes that answer, once there are so many."""
        found: set[int] = set()
        deadline = time.monotonic() + 20
        while len(found) < number and time.monotonic() < deadline:
            try:
                found.add(self.health()["pid"])
            except httpx.HTTPError:
                time.sleep(0.05)
        return found

    def statuses(self) -> list[tuple[str, str]]:
        """Status and cause of each stored episode, in order of its start."""
        with TraceStore.open(self.db, read_only=True) as store:
            return [tuple(row) for row in store.query("SELECT status, cause FROM episodes ORDER BY started_at")]


@contextmanager
def running(db: Path, *arguments: str, **environ: str) -> Iterator[Served]:
    """Serve with these arguments and variables."""
    command = [sys.executable, "-m", "task_app", "serve", "crafter", "--port", "0", "--trace-db", str(db), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environ)
    assert process.stdout is not None
    try:
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        with httpx.Client(base_url=address[0], timeout=60, trust_env=False) as http:
            yield Served(process, address[0], http, db)
    finally:
        process.kill()
        process.communicate()
