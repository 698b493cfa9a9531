"""`deploy` and `modal-serve` as a user runs them, against a modal program that records how it was called."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from task_app.deploy.deployment import Deployment
from tests.deploy.conftest import ROOT

KEY = "a-key-nobody-may-see"
SERVER = ROOT / "configs/basic/crafter_server.toml"


@pytest.fixture
def env_file(tmp_path) -> Path:
    path = tmp_path / "secrets.env"
    path.write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    return path


@pytest.mark.parametrize("action", ["deploy", "modal-serve"])
def test_a_dry_run_connects_to_nothing_runs_nothing_and_writes_nothing(
    action, fake_modal, task_app, without_network, tmp_path, env_file
):
    fake = fake_modal("sys.exit(3)")
    done = task_app(action, "grpo-crafter", "--dry-run", "--json", "--modal-cli", fake.path, "--name", "mine",
                    "--env-file", env_file, "--config", SERVER, "--modal.max_containers=7",
                    **without_network)  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    verb = {"deploy": "deploy", "modal-serve": "serve"}[action]
    assert facts["command"] == [str(fake.path), verb, "-m", "task_app.deploy.modal_app", "--name", "mine"]
    assert facts["variables"]["TASK_APP_CONFIG"] == str(SERVER)
    assert facts["app"]["app"] == "crafter"
    assert facts["app"]["functions"]["endpoint"]["max_containers"] == 7
    assert facts["app"]["secret_names"] == ["ENVIRONMENT_API_KEY"]
    assert any(pin.startswith("torch>=") for pin in facts["app"]["image"]["train"])
    assert not any(pin.startswith("torch") for pin in facts["app"]["image"]["endpoint"])
    assert KEY not in done.stdout + done.stderr
    assert fake.calls() == []
    assert list((tmp_path / "work").iterdir()) == []


def test_the_network_stub_of_these_tests_does_end_what_connects(without_network):
    code = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')"
    environ = os.environ | without_network
    assert subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False).returncode == 99


def test_a_dry_run_can_be_read_by_people_and_its_command_copied(fake_modal, task_app):
    fake = fake_modal()
    done = task_app("deploy", "crafter", "--dry-run", "--modal-cli", fake.path)
    assert done.stdout.splitlines()[0] == f"{fake.path} deploy -m task_app.deploy.modal_app --name task-app-crafter"
    assert "max_containers" in done.stdout
    assert "TASK_APP_OVERRIDES" in done.stdout
    assert fake.calls() == []


def test_deploying_hands_over_the_key_as_a_variable_and_says_the_address(fake_modal, task_app, tmp_path, env_file):
    fake = fake_modal()
    done = task_app("deploy", "crafter", "--env-file", env_file, "--modal-cli", fake.path, "--json")
    assert done.returncode == 0, done.stderr
    address = "https://someone--task-app-crafter-endpoint.modal.run"
    assert json.loads(done.stdout) == {"name": "task-app-crafter", "address": address}
    (call,) = fake.calls()
    assert call["environ"]["ENVIRONMENT_API_KEY"] == KEY
    assert call["environ"]["TASK_APP_MODAL_SECRETS"] == "ENVIRONMENT_API_KEY"
    assert call["environ"]["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert KEY not in " ".join(call["argv"]) + done.stdout + done.stderr
    assert "the secret is ***" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []
    readable = task_app("deploy", "crafter", "--env-file", env_file, "--modal-cli", fake.path)
    assert f"endpoint: {address}" in readable.stdout


def test_provider_keys_go_along_only_where_the_named_file_sets_them(fake_modal, task_app, env_file):
    fake = fake_modal()
    arguments = ("deploy", "crafter", "--dry-run", "--json", "--env-file", env_file, "--modal-cli", fake.path)
    done = task_app(*arguments, OPENAI_API_KEY="set-for-something-else")
    assert json.loads(done.stdout)["app"]["secret_names"] == ["ENVIRONMENT_API_KEY"]
    env_file.write_text(f"ENVIRONMENT_API_KEY={KEY}\nOPENAI_API_KEY=sk-another\nOTHER=1\n")
    done = task_app(*arguments)
    assert json.loads(done.stdout)["app"]["secret_names"] == ["ENVIRONMENT_API_KEY", "OPENAI_API_KEY"]
    assert "sk-another" not in done.stdout + done.stderr


@pytest.mark.parametrize("place", ["env file", "environment"])
def test_the_next_key_goes_along_where_it_is_set(fake_modal, task_app, env_file, place):
    """While keys are changed two are valid, at Modal too."""
    fake = fake_modal("print(os.environ['ENVIRONMENT_API_KEY_NEXT'])")
    following = {"ENVIRONMENT_API_KEY_NEXT": "the-key-to-come"}
    if place == "env file":
        env_file.write_text(f"ENVIRONMENT_API_KEY={KEY}\nENVIRONMENT_API_KEY_NEXT=the-key-to-come\n")
    arguments = ("deploy", "crafter", "--json", "--env-file", env_file, "--modal-cli", fake.path)
    environ = following if place == "environment" else {}
    names = ["ENVIRONMENT_API_KEY", "ENVIRONMENT_API_KEY_NEXT"]
    assert json.loads(task_app(*arguments, "--dry-run", **environ).stdout)["app"]["secret_names"] == names
    done = task_app(*arguments, **environ)
    (call,) = fake.calls()
    assert call["environ"]["TASK_APP_MODAL_SECRETS"] == ",".join(names)
    assert call["environ"]["ENVIRONMENT_API_KEY_NEXT"] == "the-key-to-come"
    assert "the-key-to-come" not in done.stdout + done.stderr


def test_a_bare_modal_deploy_takes_the_next_key_along_too():
    told = {"ENVIRONMENT_API_KEY": KEY, "ENVIRONMENT_API_KEY_NEXT": "the-key-to-come"}
    assert Deployment.from_environ(told).secret_names == tuple(told)
    assert Deployment.from_environ({"ENVIRONMENT_API_KEY_NEXT": " "}).secret_names == ("ENVIRONMENT_API_KEY",)


def test_a_secret_kept_at_modal_needs_no_key_here(fake_modal, task_app):
    fake = fake_modal()
    done = task_app("deploy", "crafter", "--modal-cli", fake.path, "--modal.secret=kept-there")
    assert done.returncode == 0, done.stderr
    (call,) = fake.calls()
    assert json.loads(call["environ"]["TASK_APP_OVERRIDES"])["modal.secret"] == "kept-there"


@pytest.mark.parametrize(
    ("body", "arguments", "code", "said"),
    [
        ("print('Token missing. Could not authenticate client.'); sys.exit(1)", (), 1, "modal setup"),
        ("print('image build failed'); sys.exit(5)", (), 1, "modal deploy failed (exit code 5)"),
        ("", ("--modal.max_containers=0",), 2, "modal.max_containers"),
        ("", ("--modal.volumes=x",), 2, "did you mean"),
        ("", ("--policy.name=replay", "--policy.replay_db=here.db"), 2, "modal volume put"),
    ],
)
def test_what_fails_says_why_and_is_no_success(fake_modal, task_app, env_file, body, arguments, code, said):
    fake = fake_modal(body)
    done = task_app("deploy", "crafter", "--env-file", env_file, "--modal-cli", fake.path, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stderr
    assert len(fake.calls()) == (code == 1)


def test_missing_keys_and_programs_are_named(fake_modal, task_app, tmp_path, env_file):
    fake = fake_modal()
    done = task_app("deploy", "crafter", "--modal-cli", fake.path)
    assert done.returncode == 2
    assert "not set: ENVIRONMENT_API_KEY" in done.stderr
    assert fake.calls() == []
    done = task_app("deploy", "crafter", "--env-file", env_file, "--modal-cli", tmp_path / "nothing")
    assert (done.returncode, "nothing is no program" in done.stderr) == (2, True)
    done = task_app("deploy", "craftr", "--modal-cli", fake.path)
    assert (done.returncode, "did you mean 'crafter'" in done.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_modal_serve_shows_the_logs_until_interrupted_and_leaves_no_process(fake_modal, tmp_path, env_file, number):
    address = "https://someone--task-app-crafter-endpoint-dev.modal.run"
    fake = fake_modal(f"print('=> {address}', flush=True)\nprint('a log line', flush=True)\ntime.sleep(60)")
    command = [sys.executable, "-m", "task_app", "modal-serve", "crafter", "--env-file", env_file]
    command += ["--modal-cli", fake.path, "--config", SERVER]
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    shown = []
    for line in process.stdout:
        shown.append(line)
        if "a log line" in line:
            process.send_signal(number)
            break
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"endpoint: {address}" in "".join(shown)
    assert "user stopped" in rest
    (call,) = fake.calls()
    assert call["environ"]["TASK_APP_MODAL_WATCH"] == "1"
    deadline = time.monotonic() + 5
    while Path(f"/proc/{call['pid']}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{call['pid']}").exists()
