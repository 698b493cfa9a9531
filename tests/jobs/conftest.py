"""The training service in a process of its own on a real port, and jobs so small that they train in seconds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from task_app.jobs.process import EXIT, LOCK, PROCESS, is_held, send
from task_app.jobs.store import JobStore

KEY = "jk-1"
WAIT_S = 120


def tiny(**changes: Any) -> dict[str, Any]:
    """The content of a TOML that trains in about a second once torch is imported; `changes` are sections."""
    document: dict[str, Any] = {
        "seed": 3,
        "model": {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 2, "intermediate_size": 16},
        "rollout": {"seeds": "0:400", "group_size": 2, "max_decisions": 2},
        "training": {
            "updates": 2,
            "groups_per_update": 2,
            "checkpoint_every": 1,
            "run_dir": "../../runs/x",
            "guards": {"collapse_warn_after": 0, "collapse_stop_after": 0},
        },
        "sft": {"epochs": 1},
        "eval": {"seeds": "1000000:1000001"},
        "algorithm": {"type": "grpo", "nested": {"list": [1, 2.5, "three", True]}},
    }
    for name, section in changes.items():
        document[name] = document.get(name, {}) | section if isinstance(section, dict) else section
    return document


def line(**changes: Any) -> dict[str, Any]:
    """A decision to imitate."""
    call = {"name": "interact_many", "arguments": json.dumps({"actions": ["do"]})}
    return {
        "messages": [
            {"role": "system", "content": "Play."},
            {"role": "user", "content": "health 9"},
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "c", "function": call}]},
        ]
    } | changes


def lines(count: int = 4) -> bytes:
    return b"".join(json.dumps(line()).encode() + b"\n" for _ in range(count))


class Service:
    """One service process and its clients' view; `again` starts another over the same folder and port."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.folder, self._arguments, self._environ = folder, arguments, environ
        self.port = 0
        self._begin()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "task_app", "jobs", "serve", "--folder", str(self.folder), *self._arguments]
        env = os.environ | {"TASK_APP_JOBS_KEY": KEY, "COLUMNS": "400"} | self._environ
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True, env=env
        )
        assert self.process.stdout is not None
        said = re.search(r"http://\S+?:(\d+)/api", self.process.stdout.readline())
        assert said is not None, "the service did not begin"
        self.url, self.port = said[0], int(said[1])
        self.http = httpx.Client(base_url=self.url, headers={"X-API-Key": KEY}, timeout=30, trust_env=False)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.http.close()
        self.process.kill()
        self.process.communicate()

    def again(self) -> None:
        self._begin()

    def close(self) -> None:
        """End the service, then whatever trains; what has only just been started is waited for."""
        self.kill()
        with JobStore(self.folder / "jobs.db") as store:
            running = [self.folder / job.id for job in store.jobs(status="running")]
        deadline = time.monotonic() + 20
        for folder in running:
            while not ((folder / PROCESS).exists() or (folder / EXIT).exists()) and time.monotonic() < deadline:
                time.sleep(0.02)
            while is_held(folder / LOCK) and time.monotonic() < deadline:
                send(folder, signal.SIGKILL)
                time.sleep(0.02)

    def job(self, job_id: str) -> dict[str, Any]:
        kind = "rl" if job_id.startswith("rl-") else "learning"
        return self.http.get(f"/{kind}/jobs/{job_id}").raise_for_status().json()

    def wait(self, job_id: str, until: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any]:
        """The job, once it is over (or `until`)."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            job = self.job(job_id)
            if (until or (lambda one: one["status"] in ("succeeded", "failed", "cancelled")))(job):
                return job
            assert until is None or job["status"] not in ("failed", "succeeded", "cancelled"), job
            time.sleep(0.05)
        raise AssertionError(f"waited {WAIT_S} s: {job}")

    def post_rl(self, config: dict[str, Any], key: str = "", **data: Any) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return self.http.post("/rl/jobs", json={"job_type": "rl", "data": {"config": config, **data}}, headers=headers)

    def upload(self, content: bytes, name: str = "train.jsonl") -> httpx.Response:
        return self.http.post("/learning/files", files={"file": (name, content)}, data={"purpose": "fine-tune"})

    def events(self, job_id: str, after: int = 0) -> list[dict[str, Any]]:
        kind = "rl" if job_id.startswith("rl-") else "learning"
        params = {"since_seq": after, "limit": 500}
        return self.http.get(f"/{kind}/jobs/{job_id}/events", params=params).raise_for_status().json()["events"]

    def run_ids(self, job_id: str) -> set[str]:
        """The runs recorded in the job's ledger."""
        book = self.folder / job_id / "ledger.jsonl"
        return {json.loads(one)["run_id"] for one in book.read_text().splitlines()}


@pytest.fixture
def serve_jobs(tmp_path) -> Iterator[Callable[..., Service]]:
    """Start services; each ends with the test, and so does what it runs."""
    with ExitStack() as stack:

        def start(*arguments: str, folder: Path = tmp_path / "jobs", **environ: str) -> Service:
            service = Service(folder, *arguments, **environ)
            stack.callback(service.close)
            return service

        yield start


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Service]:
    """One service for all tests of a module that leave it as it is."""
    service = Service(tmp_path_factory.mktemp("service") / "jobs", "--jobs.cancel_grace_s=20")
    yield service
    service.close()
