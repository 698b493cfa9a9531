"""No request makes the service, or a training of its, send a key where the service's own config does not let it go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError
from task_app.jobs.keys import KeyRules
from task_app.jobs.store import JobStore
from tests.jobs.conftest import Service, lines, tiny

SECRETS = {"ENVIRONMENT_API_KEY": "app-key", "ENVIRONMENT_API_KEY_NEXT": "next-key", "AWS_SECRET": "aws-secretword"}


class Listener:
    """Something that is no task app and notes what it is sent."""

    def __init__(self) -> None:
        self.url, self.heard = "", list[str]()


@contextmanager
def listener() -> Iterator[Listener]:
    one = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            one.heard.append(str(self.headers))
            content = json.dumps({"healthy": True, "status": "healthy"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    one.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield one
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refused(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert "secretword" not in response.text
    return response.status_code, error["field"], error["message"]


# -- the whole way -------------------------------------------------------------------------------


def test_a_job_does_not_say_which_variable_is_the_task_apps_key(serve_jobs):
    """The variable it names is not read: the training's requests carry the key of the service's variable, or none."""
    pytest.importorskip("torch", reason="training needs the extra `train`")
    service: Service = serve_jobs(**SECRETS)
    named = {"server": {"api_key_env": "AWS_SECRET", "next_api_key_env": "AWS_SECRET"}}
    with listener() as one:
        made = service.post_rl(tiny(**named, training={"updates": 1}), endpoint_base_url=one.url)
        assert made.status_code == 201, made.text
        assert made.json()["ignored"] == ["data.config.server.api_key_env", "data.config.server.next_api_key_env"]
        asked = len(one.heard)
        done = service.wait(made.json()["id"])
    assert done["status"] == "failed", "it is no task app"
    assert len(one.heard) > asked, "the training asked it too"
    assert all("app-key" in heard for heard in one.heard)
    assert "secretword" not in "".join(one.heard)


def test_the_command_names_the_services_own_variables(serve_jobs):
    service: Service = serve_jobs("--server.api_key_env=OURS", "--server.next_api_key_env=", "--jobs.max_queued=1")
    file_id = service.upload(lines()).json()["id"]
    config = tiny(server={"api_key_env": "OURS", "next_api_key_env": "AWS_SECRET"})
    made = service.http.post("/learning/jobs", json={"training_file_id": file_id, "data": {"config": config}})
    assert made.json()["ignored"] == ["data.config.server.next_api_key_env"], "the first is the service's own"
    with JobStore(service.folder / "jobs.db") as store:
        job = store.job(made.json()["id"])
    assert job is not None
    assert {"--server.api_key_env=OURS", "--server.next_api_key_env="} < set(job.command)


def test_the_app_key_goes_to_listed_origins_and_nothing_to_others(serve_jobs):
    with listener() as listed, listener() as other:
        service: Service = serve_jobs(f'--jobs.task_app_origins=["https://app.example","{listed.url}"]', **SECRETS)
        for config, data, field in (
            ({}, {"endpoint_base_url": f"{other.url}/secretword"}, "data.endpoint_base_url"),
            ({"rollout": {"task_url": f"{other.url}/secretword"}}, {}, "data.config.rollout.task_url"),
        ):
            status, where, said = refused(service.post_rl(tiny(**config), **data))
            assert (status, where) == (422, field)
            assert "jobs.task_app_origins" in said
        assert service.http.get("/rl/jobs").json() == {"jobs": []}
        assert service.post_rl(tiny(), endpoint_base_url=f"{listed.url}/base").status_code == 201
        assert listed.heard
        assert other.heard == []


@pytest.mark.parametrize("section", ["policy", "sampler"])
def test_a_job_names_no_variable_but_those_allowed(serve_jobs, section):
    service: Service = serve_jobs('--jobs.key_variables=["PLANNED"]', "--jobs.max_queued=1", **SECRETS)
    for name in ("AWS_SECRET", "OPENAI_API_KEY", "ENVIRONMENT_API_KEY", "planned"):
        status, field, said = refused(service.post_rl(tiny(**{section: {"api_key_env": name}})))
        assert (status, field) == (422, f"data.config.{section}.api_key_env")
        assert "jobs.key_variables" in said
        assert name not in said
    assert service.http.get("/rl/jobs").json() == {"jobs": []}
    assert service.post_rl(tiny(**{section: {"api_key_env": "PLANNED"}})).status_code == 201


# -- the rules -------------------------------------------------------------------------------------

HERE = ["http://127.0.0.1:8010", "http://localhost/base", "https://127.8.8.8", "http://[::1]:9"]
AWAY = [
    "https://app.example", "http://10.0.0.5:8010", "http://127.0.0.1@app.example", "http://127.0.0.1.app.example",
    "http://localhost.app.example", "http://0.0.0.0:8010", "http://2130706433",
]  # fmt: skip
NONE = ["ftp://127.0.0.1", "127.0.0.1:8010", "", "http://", "http://[::1", "http://127.0.0.1:port"]


def rules(*origins: str) -> KeyRules:
    return KeyRules(load_config(None, {"jobs.task_app_origins": list(origins)}))


@pytest.mark.parametrize("url", HERE)
def test_without_origins_this_machine_is_asked(url):
    rules().check_origin(url, "x")


@pytest.mark.parametrize("url", [*AWAY, *NONE])
def test_without_origins_no_other_is(url):
    with pytest.raises(ConfigError, match="this machine|own machine|address is needed") as caught:
        rules().check_origin(url, "x")
    assert caught.value.field == "x"
    assert len(url) < 8 or url not in caught.value.public


def test_listed_origins_are_the_only_ones():
    few = rules("https://app.example", "http://10.0.0.5:8010")
    for url in ("https://app.example/base", "https://APP.example:443", "http://10.0.0.5:8010/"):
        few.check_origin(url, "x")
    others = ["http://app.example", "https://app.example:8443", "http://10.0.0.5", "https://app.example.org"]
    for url in [*others, "https://app.example@evil.example", *HERE, *NONE]:
        with pytest.raises(ConfigError):
            few.check_origin(url, "x")
