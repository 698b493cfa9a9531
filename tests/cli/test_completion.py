"""Shell completion: the script a shell is given, and what it then offers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown(shell):
    done = subprocess.run(
        [sys.executable, "-m", "task_app", "--show-completion", shell],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"complete_{shell}" in done.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("task-app mod", ["modal-serve"]), ("task-app traces ver", ["verify"]), ("task-app deploy --dry", ["--dry-run"])],
)
def test_commands_and_options_are_completed(typed, offered):
    program = "from task_app.cli import main; import sys; sys.argv = ['task-app']; main()"
    words = typed.split()
    environ = {"_TASK_APP_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == offered
