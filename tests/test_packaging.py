"""What an installation promises: the core works without the extras, versions agree, files are shipped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import task_app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

WITHOUT_EXTRAS = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ImportError(name + " is hidden")
sys.meta_path.insert(0, Hidden())
"""


def test_core_lists_rolls_out_and_builds_the_server_without_the_extras(tmp_path):
    hidden = ["torch", "transformers", "tokenizers", "safetensors", "matplotlib", "jinja2", "modal", "pytest"]
    program = WITHOUT_EXTRAS.format(hidden=hidden) + (
        "from pathlib import Path\n"
        "from task_app.config import load_config\n"
        "from task_app.runs import play_config\n"
        "from task_app.server import create_app\n"
        "import json\n"
        f"config = load_config(None, {{'rollout.trace_db': {str(tmp_path / 't.db')!r}, 'rollout.seeds': '0:1',"
        " 'rollout.group_size': 1, 'rollout.max_decisions': 3})\n"
        "episodes = play_config(config, run_id='r', command='c', progress=lambda e: None)\n"
        "paths = create_app(config, environ={}).openapi()['paths']\n"
        "print(json.dumps([len(episodes[0].decisions), '/rollout' in paths]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [3, True]


def test_both_commands_are_the_same_function():
    assert PROJECT["name"] == "crafter-task-app"
    assert set(PROJECT["scripts"].values()) == {"task_app.cli:main"}
    assert set(PROJECT["scripts"]) == {"task-app", "crafter-task-app"}


def test_every_dependency_has_a_reason_beside_it():
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"]]:
        line = next(line for line in text.splitlines() if f'"{requirement}"' in line)
        assert re.search(r"#\s*\w+", line), requirement


def test_the_version_is_said_once():
    assert re.fullmatch(r"\d+\.\d+\.\d+", task_app.__version__)
    assert f"## {task_app.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_databases_are_ignored_and_the_traces_folder_survives_a_clone():
    listed = subprocess.run(
        ["git", "check-ignore", "traces/demo.db", "traces/README.md", "runs/demo/report.html"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert listed.stdout.split() == ["traces/demo.db", "runs/demo/report.html"]


def test_readme_flags_table_names_every_flag():
    from task_app.config.step_rewards import StepRewardSettings

    readme = (ROOT / "README.md").read_text()
    rows = set(re.findall(r"^\| `(step_rewards_\w+|event_rewards_\w+)` \|", readme, re.MULTILINE))
    assert rows == set(StepRewardSettings.model_fields)
