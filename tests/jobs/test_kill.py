"""kill -9 of the service while a job trains: nothing is lost, nothing runs twice, and the job ends as it should."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from task_app.jobs.process import LOCK, PROCESS, is_held
from tests.jobs.conftest import WAIT_S, Service, tiny

pytest.importorskip("torch", reason="training needs the extra `train`")

UPDATES = 18


def lines_of(service: Service, job_id: str) -> list[dict]:
    text = (service.folder / job_id / "run/metrics.jsonl").read_text()
    return [json.loads(one) for one in text.splitlines(keepends=True) if one.endswith("\n")]


def until_update(service: Service, job_id: str, update: int) -> None:
    """Wait by the run's own log, as there may be no service to ask."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if (service.folder / job_id / "run/metrics.jsonl").exists() and lines_of(service, job_id)[-1][
            "update"
        ] >= update:
            return
        time.sleep(0.02)
    raise AssertionError(f"no update {update} in {WAIT_S} s")


def test_the_service_is_killed_alone_and_then_with_its_training(serve_jobs):
    service: Service = serve_jobs()
    config = tiny(training={"updates": UPDATES, "checkpoint_every": 5})
    job_id = service.post_rl(config, "key").json()["id"]
    waiting = service.post_rl(tiny(training={"updates": 1}), "other").json()["id"]
    until_update(service, job_id, 3)

    service.kill()
    lock = service.folder / job_id / LOCK
    assert is_held(lock), "the training goes on without the service"
    seen = lines_of(service, job_id)[-1]["update"]
    until_update(service, job_id, seen + 2)
    service.again()
    job = service.job(job_id)
    assert (job["status"], job["attempts"]) == ("running", 1)
    assert service.job(waiting)["status"] == "queued"
    assert service.post_rl(config, "key").json()["id"] == job_id

    until_update(service, job_id, 12)
    service.kill()
    os.killpg(json.loads((service.folder / job_id / PROCESS).read_text())["pid"], signal.SIGKILL)
    service.again()
    done = service.wait(job_id)
    assert (done["status"], done["attempts"]) == ("succeeded", 2), done
    lines = lines_of(service, job_id)
    assert [one["update"] for one in lines if one["kind"] == "update"] == list(range(1, UPDATES + 1))
    assert [one["kind"] for one in lines].count("resume") == 1, "it went on from its checkpoint"
    assert len(service.run_ids(job_id)) == 1
    told = [one["data"] for one in service.events(job_id) if one["event"] == "metrics"]
    assert [one["update"] for one in told if one["kind"] == "update"] == list(range(1, UPDATES + 1)), "each told once"
    assert service.wait(waiting, lambda job: job["status"] == "running")["attempts"] == 1, "the next one's turn"
