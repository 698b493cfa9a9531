"""The routes: what is refused and how, idempotency, the queue's limits, and events that resume."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from typing import Any

import httpx
import pytest

from task_app.config import load_config
from task_app.http.ports import address_of, listen
from task_app.wiring import check
from tests.jobs.conftest import KEY, Service, line, lines, tiny
from tests.rollout.conftest import serving


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """A service whose one place is taken by a job that waits for nothing: further ones stay queued."""
    service = Service(tmp_path_factory.mktemp("busy") / "jobs", "--jobs.max_queued=6")
    taken = service.post_rl(endless()).raise_for_status().json()["id"]
    service.wait(taken, lambda job: job["status"] == "running")
    yield service
    service.close()


def endless() -> dict[str, Any]:
    return tiny(rollout={"seeds": "0:900000"}, training={"updates": 400_000})


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["field"]


# -- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/rl/jobs"),
        ("POST", "/api/rl/jobs"),
        ("GET", "/api/rl/jobs/x"),
        ("GET", "/api/rl/jobs/x/events"),
        ("POST", "/api/rl/jobs/x/cancel"),
        ("POST", "/api/learning/files"),
        ("GET", "/api/learning/files/x"),
        ("POST", "/api/learning/jobs"),
        ("POST", "/api/learning/jobs/x/start"),
        ("GET", "/openapi.json"),
    ],
)
def test_no_route_but_health_answers_without_the_key(service, method, path):
    root = service.url.removesuffix("/api")
    for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
        answer = httpx.request(method, root + path, headers=headers, trust_env=False)
        assert answer.status_code == 401
        assert KEY not in answer.text
    health = httpx.get(f"{root}/health", trust_env=False)
    assert (health.status_code, health.json()["healthy"]) == (200, True)
    assert httpx.get(root, trust_env=False).status_code == 200


def test_beyond_this_machine_a_key_is_needed(tmp_path, monkeypatch):
    from task_app.core.errors import ConfigError
    from task_app.jobs.serve import serve_jobs

    config = load_config(None, {"jobs.host": "0.0.0.0", "jobs.port": 0, "jobs.folder": str(tmp_path / "jobs")})
    with pytest.raises(ConfigError, match="without a key: set TASK_APP_JOBS_KEY") as caught:
        serve_jobs(config, ready=lambda address: None, environ={})
    assert caught.value.field == "jobs.host"
    assert not (tmp_path / "jobs").exists()


def test_two_services_do_not_share_a_folder(service):
    from task_app.core.errors import StoreError
    from task_app.jobs.serve import serve_jobs

    config = load_config(None, {"jobs.port": 0, "jobs.folder": str(service.folder)})
    with pytest.raises(StoreError, match="another service uses"):
        serve_jobs(config, ready=lambda address: None, environ={})


# -- what is refused ------------------------------------------------------------------------------

REFUSED = {
    "an unknown key": ({"training": {"updatez": 1}}, {}, "data.config.training.updatez"),
    "an unknown section": ({"secretword": {"a": 1}}, {}, "data.config.secretword"),
    "a value out of range": ({"training": {"updates": 0}}, {}, "data.config.training.updates"),
    "a null": ({"training": {"updates": None}}, {}, "data.config.training.updates"),
    "a combination": (
        {"training": {"credit": {"estimator": "secretword"}}},
        {},
        "data.config.training.credit.estimator",
    ),
    "too few worlds": ({"rollout": {"seeds": "0:1"}}, {}, "data.config.rollout.seeds"),
    "an unknown app": ({"task": {"app": "secretword"}}, {}, "data.config.task.app"),
    "a relative path": ({"training": {"init_from": "../secretword"}}, {}, "data.config.training.init_from"),
    "a relative model": ({"model": {"path": "./secretword"}}, {}, "data.config.model.path"),
    "a base model that no command can name": ({}, {"base_model": "secretword\0"}, "data.base_model"),
    "a relative base model": ({}, {"base_model": "./secretword"}, "data.base_model"),
    "a job that is not here": ({}, {"model": "rl-0123456789abcdef"}, "data.model"),
    "a task app elsewhere": ({}, {"endpoint_base_url": "https://secretword.example"}, "data.endpoint_base_url"),
    "a task app elsewhere, in the config": (
        {"rollout": {"task_url": "https://secretword.example"}},
        {},
        "data.config.rollout.task_url",
    ),
    "an unknown field": ({}, {"secretword": 1}, "data.secretword"),
    "an address that is none": ({}, {"endpoint_base_url": "ftp://secretword"}, "data.endpoint_base_url"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_job_that_cannot_work_is_refused_by_its_field(service, case):
    sections, data, field = REFUSED[case]
    folders = sorted(service.folder.iterdir())
    refused = service.post_rl(tiny(**sections), **data)
    assert error_of(refused) == (422, field)
    assert "secretword" not in refused.text.replace(field, "")
    assert sorted(service.folder.iterdir()) == folders
    assert service.http.get("/rl/jobs").json() == {"jobs": []}


def test_bodies_that_are_no_job(service):
    post = service.http.post
    assert post("/rl/jobs", content=b"{").status_code == 400
    assert error_of(post("/rl/jobs", json={"job_type": "sft", "data": {}})) == (422, "job_type")
    assert error_of(post("/rl/jobs", json={})) == (422, "data")
    assert error_of(post("/learning/jobs", json={"model": "embedded"})) == (422, "training_file_id")
    assert error_of(post("/learning/jobs", json={"training_file_id": "file-0"})) == (422, "training_file_id")
    assert post("/learning/jobs/rl-0/start").status_code == 404
    assert service.http.get("/rl/jobs", params={"status": "odd"}).status_code == 422


def test_a_file_made_by_another_prompt_form_is_refused(service):
    right = check(load_config()).prompt_hash
    for made_by, status in (("0" * 16, 422), (right, 201)):
        content = json.dumps(line(metadata={"prompt_hash": made_by})).encode() + b"\n"
        file_id = service.upload(content).json()["id"]
        answer = service.http.post("/learning/jobs", json={"training_file_id": file_id, "data": {"config": tiny()}})
        assert answer.status_code == status, answer.text
    cancelled = service.http.post(f"/learning/jobs/{answer.json()['id']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    assert service.http.post(f"/learning/jobs/{answer.json()['id']}/start").status_code == 409


def test_a_task_app_must_answer_with_its_key(serve_jobs, tmp_path):
    with listen("127.0.0.1", 0) as nobody:
        silent = address_of(nobody)
    with serving(tmp_path / "app.db") as start:
        app = start({"ENVIRONMENT_API_KEY": "ek"})
        wrong: Service = serve_jobs("--concurrency", "1", ENVIRONMENT_API_KEY="other")
        for url in (app, silent):
            refused = wrong.post_rl(tiny(), endpoint_base_url=url)
            assert error_of(refused) == (422, "data.endpoint_base_url")
            assert "/health and /task_info must answer 200" in refused.text
            assert url not in refused.text
    assert wrong.http.get("/rl/jobs").json() == {"jobs": []}


def test_health_says_when_no_job_is_run(serve_jobs):
    """A row that cannot be read stands in the queue: the service says so, and goes on once it is gone."""
    service: Service = serve_jobs()
    health = service.url.removesuffix("/api") + "/health"
    file_id = service.upload(lines()).json()["id"]
    job_id = service.http.post("/learning/jobs", json={"training_file_id": file_id}).json()["id"]

    def until(status: int) -> httpx.Response:
        deadline = time.monotonic() + 20
        while (answer := httpx.get(health, trust_env=False)).status_code != status:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)
        return answer

    def change(sentence: str) -> None:
        with closing(sqlite3.connect(service.folder / "jobs.db", timeout=30)) as db, db:
            db.execute(sentence, (job_id,))

    until(200)
    change("UPDATE jobs SET request = '{', status = 'queued' WHERE id = ?")
    assert until(503).json()["error"]["code"] == "not_running"
    change("UPDATE jobs SET request = '{}', status = 'cancelled' WHERE id = ?")
    assert until(200).json()["jobs"] == {"queued": 0, "running": 0}


# -- idempotency and the queue ----------------------------------------------------------------------


def test_the_same_key_gives_the_same_job_and_another_body_a_conflict(busy):
    first, again = busy.post_rl(tiny(), "k"), busy.post_rl(tiny(), "k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = busy.post_rl(tiny(seed=4), "k")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert busy.post_rl(tiny(), "l").json()["id"] != first.json()["id"]
    queued = busy.http.get("/rl/jobs", params={"status": "queued"}).json()["jobs"]
    assert first.json()["id"] in [job["id"] for job in queued]
    assert busy.post_rl(tiny(), "x" * 300).status_code == 422
    for job in queued:
        assert busy.http.post(f"/rl/jobs/{job['id']}/cancel").json()["status"] == "cancelled"


def test_a_full_queue_says_when_to_come_again(busy):
    made = [busy.post_rl(tiny()) for _ in range(7)]
    assert [one.status_code for one in made] == [201] * 6 + [429]
    assert made[-1].headers["Retry-After"] == "5"
    assert [busy.job(one.json()["id"])["ahead"] for one in made[:6]] == list(range(6))
    folders = [path for path in busy.folder.iterdir() if path.name.startswith("rl-")]
    assert len(folders) == len(busy.http.get("/rl/jobs", params={"limit": 500}).json()["jobs"])
    for one in made[:6]:
        assert busy.http.post(f"/rl/jobs/{one.json()['id']}/cancel").json()["status"] == "cancelled"


def test_start_puts_a_job_at_the_end_of_the_queue_once(busy):
    file_id = busy.upload(lines()).json()["id"]
    body = {"training_file_id": file_id, "data": {"config": tiny()}}
    created = busy.http.post("/learning/jobs", json=body).json()["id"]
    earlier = busy.post_rl(tiny()).json()["id"]
    assert busy.job(created)["status"] == "created"
    for _ in range(2):
        assert busy.http.post(f"/learning/jobs/{created}/start").json()["ahead"] == 1
    assert busy.http.post(f"/learning/jobs/{created}/cancel").json()["status"] == "cancelled"
    assert busy.http.post(f"/rl/jobs/{earlier}/cancel").json()["status"] == "cancelled"
    assert busy.http.get(f"/rl/jobs/{created}").status_code == 404


# -- events -------------------------------------------------------------------------------------------


def sse(service: Service, job_id: str, last: str = "", most: int = 10_000) -> list[dict[str, str]]:
    """Events as a reader of the stream gets them; leaves after `most`."""
    headers = {"Last-Event-ID": last} if last else {}
    found: list[dict[str, str]] = []
    with service.http.stream("GET", f"/rl/jobs/{job_id}/events", headers=headers) as response:
        if response.status_code == 204:
            return []
        assert response.headers["content-type"].startswith("text/event-stream")
        event: dict[str, str] = {}
        for text in response.iter_lines():
            name, _, value = text.partition(": ")
            if name in ("id", "event", "data"):
                event[name] = value
            elif not text and event:
                found.append(event)
                event = {}
                if len(found) == most:
                    break
    return found


def test_events_resume_where_a_reader_left_and_end_with_the_job(busy):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    (running,) = busy.http.get("/rl/jobs", params={"status": "running"}).json()["jobs"]
    job_id = running["id"]
    busy.wait(job_id, lambda job: (job["progress"] or {}).get("update", 0) >= 2)
    first = sse(busy, job_id, most=4)
    assert [json.loads(one["data"]).get("status") for one in first[:2]] == ["queued", "running"]
    more = sse(busy, job_id, last=first[-1]["id"], most=3)
    ids = [int(one["id"]) for one in first + more]
    assert ids == sorted(set(ids))
    listed = busy.events(job_id)
    assert [one["seq"] for one in listed[:7]] == ids
    assert busy.http.post(f"/rl/jobs/{job_id}/cancel").json()["cancelling"] is True
    rest = sse(busy, job_id, last=more[-1]["id"])
    assert rest[-1]["event"] == "status"
    assert json.loads(rest[-1]["data"])["status"] == "cancelled"
    assert {one["event"] for one in first + more + rest} == {"status", "metrics", "log"}
    assert sse(busy, job_id, last=rest[-1]["id"]) == [], "204: a reader need not ask again"
    assert busy.http.get(f"/rl/jobs/{job_id}/events", headers={"Last-Event-ID": "x"}).status_code == 422
    assert busy.http.post(f"/rl/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    assert json.loads((busy.folder / job_id / "run/heartbeat.json").read_text())["status"] == "interrupted"


def test_a_line_a_request_names_its_file_and_nothing_that_was_sent(tmp_path, capfd):
    with closing(Service(tmp_path / "jobs", "--log", "json")) as service:
        kept = service.upload(lines().replace(b"health 9", b"secret health"), "secret-name.jsonl")
        service.http.get("/rl/jobs/secret-id?secret=1")
    text = capfd.readouterr().err
    uploaded, missed = map(json.loads, text.splitlines())
    assert (uploaded["route"], uploaded["status"], uploaded["id"]) == ("/api/learning/files", 201, kept.json()["id"])
    assert (missed["route"], missed["status"]) == ("/api/rl/jobs/{job_id}", 404)
    assert "secret" not in text
