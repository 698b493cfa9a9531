"""The contract of existing training clients, driven request by request, by reinforcement and by imitation.

Their order of calls: the task app's /health and /task_info with its key, POST /rl/jobs, GET /rl/jobs/{id} until it is
over; and POST /learning/files, GET it, POST /learning/jobs, POST …/start, GET until it is over.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.jobs.conftest import KEY, Service, lines, tiny
from tests.rollout.conftest import serving

pytest.importorskip("torch", reason="training needs the extra `train`")

BEARER = {"Authorization": f"Bearer {KEY}"}


def test_a_client_trains_by_reinforcement(serve_jobs, tmp_path):
    with serving(tmp_path / "app.db") as start:
        app = start({"ENVIRONMENT_API_KEY": "ek"})
        service: Service = serve_jobs(ENVIRONMENT_API_KEY="ek")
        for path in ("/health", "/task_info"):
            assert httpx.get(app + path, headers={"X-API-Key": "ek"}, trust_env=False).status_code == 200
        config = tiny(services={"task_url": app})
        body = {
            "job_type": "rl",
            "compute": {"gpu_type": "none"},
            "data": {"endpoint_base_url": app, "config": config, "base_model": "embedded"},
            "tags": {"source": "train-cli"},
            "metadata": {"backend_base_url": service.url},
        }
        headers = BEARER | {"Idempotency-Key": "once"}
        made = httpx.post(f"{service.url}/rl/jobs", json=body, headers=headers, trust_env=False)
        assert made.status_code == 201, made.text
        job_id = made.json()["job_id"]
        done = service.wait(job_id)
    assert done["status"] == "succeeded", done
    assert (done["tags"], done["metadata"]) == (body["tags"], body["metadata"])
    assert "compute" in done["ignored"]
    assert Path(done["result"]["checkpoint"]).is_dir()
    folder = service.folder / job_id
    assert tomllib.loads((folder / "config.toml").read_text()) == config
    kinds = [json.loads(one)["kind"] for one in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert kinds == ["start", "eval", "update", "update", "eval"]
    assert (folder / "run/report.html").exists()
    told = [one["data"]["kind"] for one in service.events(job_id) if one["event"] == "metrics"]
    assert told == kinds
    assert done["progress"]["kind"] == "eval"


def test_a_client_fine_tunes_and_reinforcement_goes_on_from_there(serve_jobs):
    service: Service = serve_jobs()
    file = service.upload(lines())
    assert file.status_code == 201, file.text
    file_id = file.json()["id"]
    assert service.http.get(f"/learning/files/{file_id}").json()["status"] == "ready"
    body = {
        "model": "embedded",
        "training_file_id": file_id,
        "validation_file": file_id,
        "training_type": "sft_offline",
        "hyperparameters": {"n_epochs": 2, "batch_size": 2, "sequence_length": 512},
        "metadata": {"effective_config": {}},
        "data": {"config": tiny()},
    }
    made = service.http.post("/learning/jobs", json=body)
    assert made.status_code == 201, made.text
    job_id = made.json()["job_id"]
    assert made.json()["status"] == "created"
    assert made.json()["ignored"] == ["hyperparameters.sequence_length"]
    assert service.http.post(f"/learning/jobs/{job_id}/start", json={}).json()["status"] == "queued"
    done = service.wait(job_id)
    assert done["status"] == "succeeded", done
    assert done["result"]["steps"] == 4, "two passes over four lines, two at a time"
    assert Path(done["result"]["checkpoint"]).is_dir()

    after = service.post_rl(tiny(training={"updates": 1}), model=job_id)
    assert after.status_code == 201, after.text
    reinforced = service.wait(after.json()["id"])
    assert reinforced["status"] == "succeeded", reinforced
    start = json.loads((service.folder / reinforced["id"] / "run/metrics.jsonl").read_text().splitlines()[0])
    assert start["init_from"]["kind"] == "sft"
