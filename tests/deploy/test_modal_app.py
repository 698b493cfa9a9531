"""The app as Modal's own package understands it, imported without credentials, a key or a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from task_app.deploy.deployment import RESOLVED, Deployment
from tests.deploy.conftest import ROOT

modal = pytest.importorskip("modal", reason="needs the extra `modal`")

LOOK = """
import json, os
import modal

given, concurrent = [], []
plain, plain_concurrent = modal.App.function, modal.concurrent
def function(self, **named):
    given.append(named)
    return plain(self, **named)
def concurrently(**named):
    concurrent.append(named)
    return plain_concurrent(**named)
modal.App.function, modal.concurrent = function, concurrently

import task_app.deploy.modal_app as module

simple = lambda named: {key: value for key, value in named.items() if isinstance(value, (int, float, str))}
print(json.dumps({
    "name": module.app.name,
    "functions": sorted(module.app._local_state.functions),
    "limits": [simple(named) for named in given],
    "concurrent": concurrent,
    "retries": given[1]["retries"].max_retries,
    "told": [named["env"] for named in given],
    "mounts": [list(map(str, named["volumes"])) for named in given],
    "dependencies": [[type(one).__name__ for one in getattr(module, name)._deps_(only_explicit_mounts=True)]
                     for name in ("endpoint", "train", "play_group")],
}))
"""


def look(without_network: dict[str, str], **environ: str) -> dict:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MODAL", "TASK_APP"))}
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env=inherited | {"HOME": "/nonexistent"} | without_network | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_what_the_dry_run_says_and_needs_no_credentials(without_network):
    config = str(ROOT / "configs/basic/crafter_server.toml")
    overrides = {"modal.min_containers": 1, "modal.gpu": "H100", "modal.gpu_retries": 2, "modal.name": "mine"}
    told = {"TASK_APP_CONFIG": config, "TASK_APP_OVERRIDES": json.dumps(overrides)}
    seen = look(without_network, **told)
    described = Deployment.from_environ(told).describe()["functions"]
    assert seen["name"] == "mine"
    assert seen["functions"] == ["endpoint", "play_group", "train"]
    limits = dict(zip(("endpoint", "train", "play_group"), seen["limits"], strict=True))
    limits["endpoint"] |= seen["concurrent"][0]
    limits["train"] |= {"retries": seen["retries"], "refused": None}
    assert limits == described
    assert (limits["endpoint"]["min_containers"], limits["train"]["gpu"], limits["train"]["retries"]) == (1, "H100", 2)
    assert seen["mounts"] == [["/vol"]] * 3


def test_a_container_finds_the_same_objects_and_the_same_config(without_network):
    deployed = look(without_network, TASK_APP_OVERRIDES='{"task.options.history_calls": 3}', ENVIRONMENT_API_KEY="k")
    told = deployed["told"][0]
    assert Deployment.from_environ(told).config.task.options == {"history_calls": 3}
    inside = look(without_network, **told)
    for key in ("name", "functions", "limits", "concurrent", "retries", "dependencies", "mounts", "told"):
        assert inside[key] == deployed[key], key
    assert deployed["dependencies"] == [["Secret", "Secret", "Image", "Volume"]] * 3


def test_no_secret_is_told_by_a_variable_that_is_no_secret(without_network):
    told = look(without_network, ENVIRONMENT_API_KEY="a-key-nobody-may-see")["told"]
    assert [list(variables) for variables in told] == [[RESOLVED]] * 3
    assert "a-key-nobody-may-see" not in json.dumps(told)


@pytest.mark.parametrize("command", ["deploy", "serve"])
def test_a_bare_modal_command_line_gets_as_far_as_its_credentials(command, tmp_path):
    """The real program imports the app and then asks for a token: what is left to do is Modal's."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MODAL", "TASK_APP"))}
    done = subprocess.run(
        [sys.executable, "-m", "modal", command, "-m", "task_app.deploy.modal_app"],
        cwd=tmp_path,
        env=inherited | {"PYTHONPATH": str(ROOT), "MODAL_CONFIG_PATH": str(tmp_path / "none.toml"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Token missing" in done.stdout + done.stderr
