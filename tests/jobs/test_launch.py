"""`train` with a service: dry runs that touch nothing, the verdict as exit code, and paths meant from the TOML."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from task_app.cli import main
from task_app.core.errors import ConfigError
from task_app.jobs.client import JobsClient, Unavailable, api_root, pauses
from task_app.jobs.launch import Outcome, follow, headline, needed_secrets, prepare, preview, redacted
from task_app.jobs.toml import to_toml
from tests.jobs.conftest import KEY, Service, lines, tiny
from tests.rollout.conftest import serving

ROOT = Path(__file__).parents[2]


def toml(folder: Path, name: str = "job.toml", **sections: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(to_toml(tiny(**sections)))
    return path


def files_in(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def command(monkeypatch, capsys):
    """`task-app train …` in this process: exit code, standard output and error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["task-app", "train", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as over:
            code = int(over.code or 0)
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return code, told.out, told.err

    return run


@pytest.fixture
def no_network(monkeypatch):
    """Any connection and any look-up of a name fails the test."""

    def refuse(*arguments: Any, **named: Any) -> Any:
        raise AssertionError(f"a connection was opened: {arguments}")

    for name in ("connect", "connect_ex", "bind", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


# -- fault 15: a dry run submits; a failed or timed-out job exits 0 ------------------------------------


def test_fault_15_a_dry_run_with_a_backend_sends_nothing_and_shows_what_it_would(command, no_network, tmp_path):
    services = {"task_url": "https://app.example/base/", "hub_token": "hf_secretword", "api_key_env": "NAME"}
    path = toml(
        tmp_path, services=services, hyperparameters={"unknown_to_us": [1, {"deep": "x"}]}, compute={"gpu_type": "H200"}
    )
    before = files_in(tmp_path)
    code, out, _ = command(
        "--config", path, "--backend", "https://jobs.example/api", "--idempotency", "k", "--dry-run"
    )  # fmt: skip
    assert code == 0
    told = json.loads(out)
    assert told["url"] == "https://jobs.example/api/rl/jobs"
    assert told["headers"] == {"Idempotency-Key": "k"}
    assert told["asks"] == ["https://app.example/base/health", "https://app.example/base/task_info"]
    document = tomllib.loads(path.read_text())
    document["services"]["hub_token"] = "[redacted]"
    assert told["body"]["data"]["config"] == document
    assert told["body"]["data"]["endpoint_base_url"] == "https://app.example/base"
    assert told["body"]["compute"] == {"gpu_type": "H200"}
    assert "secretword" not in out
    assert files_in(tmp_path) == before


def test_fault_15_a_local_dry_run_plans_and_leaves_no_trace(command, no_network, tmp_path):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    path = toml(tmp_path / "in", training={"updates": 3, "run_dir": str(tmp_path / "out/run")}, eval={"every": 2})
    before = files_in(tmp_path)
    code, out, _ = command("--config", path, "--dry-run", "--json", f"--rollout.trace_db={tmp_path / 'out/t.db'}")
    assert code == 0
    plan = json.loads(out)
    assert (plan["updates"], plan["groups"], plan["episodes"], plan["decisions at most"]) == (3, 6, 12, 24)
    assert plan["tokens at most"] == 24 * 1024
    assert (plan["worlds"], plan["held-out episodes"]) == ("0:6", 3)
    assert (plan["run folder"], plan["resumes"]) == (str(tmp_path / "out/run"), "nothing, it begins")
    assert files_in(tmp_path) == before
    code, out, _ = command("--config", path, "--dry-run")
    assert (code, "tokens at most" in out) == (0, True)
    code, _, err = command("--config", path, "--dry-run", "--training.credit.estimator=odd")
    assert (code, "return_loo" in err) == (2, True)


def test_a_supervised_dry_run_counts_its_lines(command, no_network, tmp_path):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    (tmp_path / "d.jsonl").write_bytes(lines(10))
    path = toml(tmp_path, sft={"dataset": "d.jsonl", "batch_rows": 4, "run_dir": "run"})
    before = files_in(tmp_path)
    code, out, _ = command("--type", "sft", "--config", path, "--dry-run", "--json")
    assert code == 0
    plan = json.loads(out)
    assert (plan["rows"], plan["steps"], plan["tokens at most"]) == (10, 3, 3 * 4 * 1024)
    assert files_in(tmp_path) == before
    taught = toml(tmp_path, "t.toml", sft={"teacher": {"name": "expert", "episodes": 3, "steps": 2, "rounds": 0}})
    code, out, _ = command("--type", "sft", "--config", taught, "--dry-run", "--json")
    assert (code, json.loads(out)["episodes"]) == (0, 3)


class Scripted:
    """A service that answers GET of a job with one answer after another, the last for ever."""

    def __init__(self, *answers: tuple[int, dict[str, Any], dict[str, str]]) -> None:
        self.answers, self.asked, self.posted = list(answers), 0, list[tuple[str, dict[str, Any]]]()
        self.url = ""
        self.wait_s = 0.0


@contextmanager
def scripted(*answers: tuple[int, dict[str, Any], dict[str, str]]) -> Iterator[Scripted]:
    script = Scripted(*answers)

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):  # a client that no longer waits
                self.wfile.write(content)

        def do_GET(self) -> None:
            time.sleep(script.wait_s)
            place = min(script.asked, len(script.answers) - 1)
            script.asked += 1
            self.answer(*script.answers[place])

        def do_POST(self) -> None:
            time.sleep(script.wait_s)
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Type"] == "application/json":
                script.posted.append((str(self.headers["Idempotency-Key"]), json.loads(sent)))
            self.answer(201, {"id": "rl-1", "status": "queued"}, {})

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_port}/api"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def job(status: str, **more: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    return 200, {"id": "rl-1", "status": status, **more}, {}


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([job("queued"), job("succeeded", result={"checkpoint": "/c"})], 0, ""),
        ([job("failed", reason="no luck")], 1, "error: job rl-1 failed: no luck"),
        ([job("cancelled", reason="stopped")], 1, "error: job rl-1 cancelled: stopped"),
        ([job("running")], 3, "goes on there"),
        ([(503, {}, {}), job("succeeded")], 0, ""),
        ([(404, {"error": {"message": "there is no such job"}}, {})], 1, "error: training service"),
        ([(401, {"error": {"message": "a valid key is needed"}}, {})], 1, "a valid key is needed"),
    ],
    ids=["succeeded", "failed", "cancelled", "timeout", "away for a moment", "unknown", "refused"],
)
def test_fault_15_the_exit_code_is_the_jobs_verdict(command, tmp_path, answers, code, said):
    with scripted(*answers) as script:
        found, _, err = command(
            "--config", toml(tmp_path), "--backend", script.url, "--idempotency", "k", "--poll-timeout", "1.5",
            "--poll-interval", "0.2",
        )  # fmt: skip
    assert found == code, err
    assert said in err.replace("\n", " ")
    assert [key for key, _ in script.posted] == ["k"]
    if code == 3:
        assert f"{script.url}/rl/jobs/rl-1" in err
        assert "--idempotency k" in err


def test_without_polling_it_leaves_once_the_job_is_taken(command, tmp_path):
    with scripted(job("failed")) as script:
        code, out, _ = command("--config", toml(tmp_path), "--backend", script.url, "--no-poll", "--json")
        assert (code, json.loads(out)["id"], script.asked) == (0, "rl-1", 0)


def test_a_service_that_nobody_serves_exits_1(command, tmp_path, monkeypatch):
    (tmp_path / "d.jsonl").write_bytes(lines(2))
    with scripted() as script:
        url = script.url
    monkeypatch.setattr(JobsClient.__init__, "__kwdefaults__", {"api_key": "", "timeout_s": 0.3})
    for more in ([], ["--type", "sft", "--dataset", tmp_path / "d.jsonl"]):
        begun = time.monotonic()
        code, _, err = command("--config", toml(tmp_path), "--backend", url, *more)
        assert (code, "it cannot be reached" in err) == (1, True)
        assert time.monotonic() - begun < 10


def test_an_upload_under_way_may_take_longer_than_other_calls(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(lines(2))
    with scripted() as script, JobsClient(script.url, timeout_s=0.3) as client:
        script.wait_s = 1.0
        assert client.upload(tmp_path / "d.jsonl")["id"] == "rl-1"
        with pytest.raises(Unavailable):
            client.create("rl", {}, "k")


def test_a_service_that_hangs_does_not_keep_a_follower_past_its_time():
    with scripted(job("running")) as script, JobsClient(script.url, timeout_s=5.0) as client:
        script.wait_s = 4.0
        begun = time.monotonic()
        assert follow("rl", "rl-1", client, timeout_s=0.5, interval_s=0.1).status == "timeout"
        assert time.monotonic() - begun < 2


# -- fault 26: paths are meant from the TOML -----------------------------------------------------------


def test_fault_26_data_named_in_a_toml_is_found_beside_it(command, no_network, tmp_path, monkeypatch):
    (tmp_path / "in/data").mkdir(parents=True)
    (tmp_path / "in/data/d.jsonl").write_bytes(lines(2))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ways = {
        "ours.toml": {"sft": {"dataset": "data/d.jsonl", "validation": "data/d.jsonl"}},
        "older.toml": {"job": {"data": "data/d.jsonl"}, "data": {"validation_path": "data/d.jsonl"}},
    }
    for name, sections in ways.items():
        path = toml(tmp_path / "in", name, **sections)
        code, out, err = command("--type", "sft", "--config", path, "--backend", "http://127.0.0.1:9", "--dry-run")
        assert code == 0, err
        told = json.loads(out)
        assert [Path(one["path"]).resolve() for one in told["uploads"]] == [tmp_path / "in/data/d.jsonl"] * 2
        assert told["body"]["training_file_id"].startswith("file-")
        assert told["body"]["data"]["config"] == tomllib.loads(path.read_text()), "sent as written"
    code, _, err = command("--type", "sft", "--config", path, "--backend", "http://127.0.0.1:9", "--dry-run",
                           "--dataset", "data/d.jsonl")  # fmt: skip
    assert (code, "cannot be read" in err) == (2, True), "one given on the command line is meant from here"


def test_a_missing_dataset_is_named(command, no_network, tmp_path):
    code, _, err = command("--type", "sft", "--config", toml(tmp_path), "--backend", "http://127.0.0.1:9", "--dry-run")
    assert (code, "sft needs a dataset" in err) == (2, True)


# -- the rest of the command -----------------------------------------------------------------------------


def test_no_config_lists_those_found(tmp_path):
    toml(tmp_path, "a.toml", type="rl")
    toml(tmp_path / "configs", "b.toml", type="sft")
    for more in ([], ["--backend", "http://127.0.0.1:9/api"]):
        done = subprocess.run(
            [sys.executable, "-m", "task_app", "train", *more],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "a.toml" in done.stderr
        assert "b.toml" not in done.stderr


def test_keys_are_asked_for_beyond_this_machine_only(command, tmp_path, monkeypatch):
    monkeypatch.delenv("TASK_APP_JOBS_KEY", raising=False)
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)
    path = toml(tmp_path, services={"task_url": "https://app.example"})
    assert needed_secrets(prepare("rl", path, "http://127.0.0.1:8000")) == ["ENVIRONMENT_API_KEY"]
    both = ["TASK_APP_JOBS_KEY", "ENVIRONMENT_API_KEY"]
    assert needed_secrets(prepare("rl", path, "https://jobs.example")) == both
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("OTHER=1\n")
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    code, _, err = command("--config", path, "--backend", "https://jobs.example")
    assert (code, "not set: TASK_APP_JOBS_KEY, ENVIRONMENT_API_KEY" in err, ".env" in err) == (2, True, True)
    sys.stdin.close()


def test_a_whole_job_from_the_command_line(serve_jobs, tmp_path, capsys):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    with serving(tmp_path / "app.db") as start:
        app = start({"ENVIRONMENT_API_KEY": "ek"})
        service: Service = serve_jobs(ENVIRONMENT_API_KEY="ek")
        path = toml(tmp_path / "in", training={"updates": 1}, services={"task_url": app})
        env = tmp_path / "keys.env"
        env.write_text(f"TASK_APP_JOBS_KEY={KEY}\nENVIRONMENT_API_KEY=ek\n")
        done = subprocess.run(
            [sys.executable, "-m", "task_app", "train", "--config", str(path), "--backend", service.url, "--env-file",
             str(env), "--poll-interval", "0.5", "--json"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "succeeded"
    assert Path(told["result"]["checkpoint"]).is_dir()
    assert "succeeded · eval 1" in done.stderr
    assert tomllib.loads((service.folder / told["id"] / "config.toml").read_text()) == tomllib.loads(path.read_text())
    assert KEY not in done.stdout + done.stderr
    assert not any(KEY in one.read_text(errors="replace") for one in service.folder.rglob("*.t*") if one.is_file())


# -- parts -----------------------------------------------------------------------------------------------


def test_retry_after_is_honoured(tmp_path):
    waits: list[float] = []
    busy = (429, {"error": {"message": "busy"}}, {"Retry-After": "1"})
    with scripted(busy, job("succeeded")) as script, JobsClient(script.url) as client:
        begun = time.monotonic()
        found = follow("rl", "rl-1", client, timeout_s=10, interval_s=0.01, progress=lambda job: waits.append(1))
        assert time.monotonic() - begun >= 1
    assert (found.status, found.exit_code, len(waits)) == ("succeeded", 0, 1)


def test_pauses_grow_to_the_longest():
    taken = pauses(0.5, 2.0)
    assert [next(taken) for _ in range(6)] == [0.5, 0.75, 1.125, 1.6875, 2.0, 2.0]


@pytest.mark.parametrize("backend", ["jobs.example", "ftp://x/api", "http://", "http://x/api?y=1", "http://u:p@x"])
def test_a_backend_that_is_no_address(backend):
    with pytest.raises(ConfigError) as caught:
        api_root(backend)
    assert caught.value.field == "backend"


def test_a_backend_may_lack_its_api():
    assert api_root("http://127.0.0.1:8000") == api_root("http://127.0.0.1:8000/api/") == "http://127.0.0.1:8000/api"


def test_a_model_is_a_job_here_or_a_name(tmp_path):
    path = toml(tmp_path)
    assert prepare("rl", path, "http://x", model="sft-0123456789abcdef").payload["data"]["model"][:4] == "sft-"
    assert prepare("rl", path, "http://x", model="Qwen/Qwen3-0.6B").payload["data"]["base_model"] == "Qwen/Qwen3-0.6B"
    told = preview(prepare("rl", path, "http://x", overrides={"training.updates": 7}))
    assert told["body"]["data"]["config"]["training"]["updates"] == 7


def test_secrets_are_left_out_and_nothing_else():
    told = {
        "api_key": "s",
        "hub-token": "s",
        "list": [{"password": "s"}],
        "max_tokens": 5,
        "api_key_env": "N",
        "key": "",
    }
    left = {"api_key": "[redacted]", "hub-token": "[redacted]", "list": [{"password": "[redacted]"}]}
    assert redacted(told) == told | left


def test_a_headline_says_what_there_is():
    assert headline({"status": "queued", "ahead": 2}) == "queued · 2 ahead"
    progress = {"kind": "update", "update": 3, "outcome/mean": 1.5, "reward/sum": None}
    assert headline({"status": "running", "progress": progress}) == "running · update 3 · outcome 1.5"
    assert [Outcome(s, {}).exit_code for s in ("succeeded", "failed", "cancelled", "timeout")] == [0, 1, 1, 3]
