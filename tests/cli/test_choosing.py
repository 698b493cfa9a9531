"""What a command asks for, in a real terminal and where there is none."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECRETS = """
import json, sys
from task_app.cli.choosing import secrets_for
from task_app.cli.common import run_guarded
def ask():
    found = secrets_for(["KEY_A", "KEY_B"], None, modal=True)
    print("GOT " + json.dumps([found.environ.get("KEY_A"), found.environ.get("KEY_B"), found.modal_secret]))
run_guarded(ask)
"""
CONFIG = """
from task_app.cli.choosing import chosen_config
from task_app.cli.common import run_guarded
run_guarded(lambda: print("GOT", chosen_config(None, ["sft"])))
"""


def without_terminal(code: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def in_terminal(code: str, folder: Path, answers: Sequence[str]) -> tuple[str, int]:
    """What the terminal shows when each question gets the next answer, and the exit code."""
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown, waiting = bytearray(), list(answers)
    try:
        while part := os.read(keyboard, 65_536):
            shown += part
            if waiting and part.endswith(b": "):  # typed ahead, an answer to a hidden question is thrown away
                os.write(keyboard, f"{waiting.pop(0)}\n".encode())
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(keyboard)
    return shown.decode().replace("\r", ""), process.wait(timeout=60)


def got(shown: str) -> list[str | None]:
    return json.loads(next(line for line in shown.splitlines() if line.startswith("GOT ")).removeprefix("GOT "))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ".env").write_text("KEY_A=file-a\n")
    (tmp_path / "both.env").write_text("KEY_A=both-a\nKEY_B=both-b\n")
    return tmp_path


def test_nobody_to_ask(folder):
    ended = without_terminal(SECRETS, folder, KEY_A="set")
    assert ended.returncode == 2
    assert "not set: KEY_B; name one with --env-file; found here:\n  .env\n  both.env" in ended.stderr
    assert ended.stdout == ""


def test_what_is_set_is_not_asked_for(folder):
    assert got(without_terminal(SECRETS, folder, KEY_A="1", KEY_B="2").stdout) == ["1", "2", None]


def test_a_file_is_picked(folder):
    shown, code = in_terminal(SECRETS, folder, ["2"])
    assert code == 0
    assert "Not set: KEY_A, KEY_B. Where from?\n  1  read .env\n  2  read both.env\n  3  enter by hand" in shown
    assert got(shown) == ["both-a", "both-b", None]


def test_a_file_that_lacks_one_asks_again(folder):
    shown, code = in_terminal(SECRETS, folder, ["1", "4", "both.env"])
    assert code == 0
    assert "Not set: KEY_B." in shown
    assert got(shown) == ["both-a", "both-b", None]


def test_a_secret_at_modal(folder):
    shown, _ = in_terminal(SECRETS, folder, ["5", "my-secret"])
    assert got(shown) == [None, None, "my-secret"]


def test_giving_up(folder):
    shown, code = in_terminal(SECRETS, folder, ["9", "6"])
    assert code == 2
    assert "error: given up; nothing was done" in shown


@pytest.mark.parametrize(("keep", "written"), [("n", False), ("y", True)])
def test_typed_in_and_kept_only_if_agreed(folder, keep, written):
    from task_app.config.found import read_env_file

    before = (folder / ".env").read_text()
    shown, code = in_terminal(SECRETS, folder, ["3", "it's a\\secret", "other", keep])
    assert code == 0
    assert got(shown) == ["it's a\\secret", "other", None]
    if written:
        assert read_env_file(folder / ".env") == {"KEY_A": "it's a\\secret", "KEY_B": "other"}
    else:
        assert (folder / ".env").read_text() == before


def test_a_new_file_is_its_owners(tmp_path):
    in_terminal(SECRETS, tmp_path, ["1", "one", "two", "y"])
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600


def test_configs_of_a_kind(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text("type = 'sft'")
    (tmp_path / "c.toml").write_text("type = 'rl'")
    ended = without_terminal(CONFIG, tmp_path)
    assert ended.returncode == 2
    assert "no --config given; found here:\n  a.toml  (sft)\n  b.toml  (sft)\n" in ended.stderr
    shown, code = in_terminal(CONFIG, tmp_path, ["2"])
    assert code == 0
    assert "GOT b.toml" in shown


def test_no_config_at_all(tmp_path):
    ended = without_terminal(CONFIG, tmp_path)
    assert ended.returncode == 2
    assert "no config file is here or in configs/" in ended.stderr
