"""`traces verify` as a user runs it: the table, the lines of failing episodes, exit codes, bad input."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from task_app.core.types import StepRewardFlags
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore
from tests.conftest import crafter_spec, scripted


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "task_app", "traces", "verify", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """24 episodes of two decisions, `e00` … `e23`."""
    path = tmp_path_factory.mktemp("cli") / "t.db"
    spec = crafter_spec(min_actions_per_decision=5)
    plans = plan_groups(range(2), 12, run_id="mine")
    episodes = play(plans, spec, scripted(spec), Limits(2), StepRewardFlags(), lambda episode: None)
    with TraceStore.open(path) as store:
        for index, episode in enumerate(episodes):
            store.write_episode(replace(episode, episode_id=f"e{index:02d}"))
    return path


@pytest.fixture
def path(original, tmp_path) -> Path:
    return Path(shutil.copy(original, tmp_path / "t.db"))


def tamper(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(sql).rowcount > 0
        connection.commit()


def test_all_pass(path):
    done = run("--db", path)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert done.stdout.splitlines()[-1] == "all 24 episodes replay exactly: 48 decisions, 240 steps"
    assert "ok" in done.stdout


def test_a_failing_episode_has_a_line_that_says_where(path):
    tamper(path, "UPDATE steps SET reward = 0.5 WHERE step = 7 AND episode = 3")
    done = run("--db", path)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "e02  reward: turn 2, step 7: reward 0.5 stored, 0.0 replayed" in lines
    assert lines[-1] == "1 of 24 episodes failed"
    (counted,) = [line for line in lines if line.strip().startswith("reward")]
    assert counted.split()[2] == "1"


def test_twenty_lines_are_shown_and_the_others_counted(path):
    tamper(path, "UPDATE episodes SET outcome = 22")
    done = run("--db", path, "--workers", "2")
    assert done.returncode == 1
    lines = [line for line in done.stdout.splitlines() if line.startswith("e")]
    assert [line[:3] for line in lines] == [f"e{index:02d}" for index in range(20)]
    assert "… and 4 more (--json lists them all)" in done.stdout


def test_json_has_everything(path):
    tamper(path, "UPDATE episodes SET outcome = 22")
    done = run("--db", path, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["passed"], report["counts"]["end"], len(report["failed"])) == (1, False, 24, 24)


def test_one_run_or_one_episode(path):
    tamper(path, "UPDATE episodes SET outcome = 22 WHERE episode_id = 'e01'")
    assert run("--db", path, "--episode", "e00").returncode == 0
    assert run("--db", path, "--episode", "e01").returncode == 1
    assert run("--db", path, "--run-id", "mine").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--run-id", "mime"), 1, "no episodes of run 'mime' (did you mean 'mine'?)"),
        (("--episode", "zz"), 1, "no episode 'zz'"),
        (("--workers", "0"), 2, "--workers"),
    ],
)
def test_bad_input_is_named(path, arguments, code, said):
    done = run("--db", path, *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_to_verify_is_no_pass(tmp_path):
    TraceStore.open(tmp_path / "empty.db").close()
    for name, said in (("empty.db", "no episodes in"), ("none.db", "does not exist")):
        done = run("--db", tmp_path / name)
        assert (done.returncode, said in done.stderr) == (1, True)
    assert not (tmp_path / "none.db").exists()
