"""docs/integrations.md: its routes are the apps' routes, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

from task_app.config import load_config
from task_app.integrations.trl import TaskEnvironment
from task_app.server import create_app
from task_app.server.openenv import create_openenv_app
from tests.rollout.conftest import serving

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
STEPWISE, OPENENV, TRL = (
    PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0] for name in ("Step by step", "OpenEnv", "TRL")
)


def test_the_routes_are_those_of_the_apps(tmp_path):
    config = load_config(None, {"rollout.trace_db": str(tmp_path / "t.db")})
    hosted, openenv = create_app(config, environ={}).openapi(), create_openenv_app(config, environ={}).openapi()
    named = set(re.findall(r"^\| `POST (/\S+)`", STEPWISE, flags=re.MULTILINE))
    assert named == {path for path in hosted["paths"] if path.startswith(("/env/", "/policy/"))}
    named = set(re.findall(r"`(?:GET|POST) (/\w+)`", OPENENV))
    assert named == openenv["paths"].keys() - {"/"}


def test_the_step_wise_example_plays_an_episode(tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", STEPWISE, flags=re.DOTALL)
    with serving(tmp_path / "t.db") as start:
        address = start({"ENVIRONMENT_API_KEY": "ek"})
        exec(code.replace("http://127.0.0.1:8010", address), {"key": "ek"})
    total, _, rewards = capsys.readouterr().out.partition(" ")
    assert len(eval(rewards)) == 3
    assert float(total) == sum(eval(rewards))


def test_the_attributes_are_the_environments():
    named = {
        name for row in re.findall(r"^\| (`.+?`) \|", TRL, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    properties = {name for name, value in vars(TaskEnvironment).items() if isinstance(value, property)}
    assert named == properties
