"""The two scripts that train by a TOML and save the result, here and through a service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.conftest import KEY, Service, lines
from tests.jobs.test_launch import job, scripted, toml

pytest.importorskip("torch", reason="training needs the extra `train`")

ROOT = Path(__file__).parents[2]
RL, SFT = ROOT / "scripts/run_rl_and_save.py", ROOT / "scripts/run_fft_and_save.py"


def run(script: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "TASK_APP_JOBS_KEY": KEY}
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=200, check=False)


def test_reinforcement_here(tmp_path):
    path = toml(tmp_path / "in", training={"updates": 1, "run_dir": "run"})
    done = run(RL, "--config", path, "--output", "out/r.json", "--rollout.trace_db=t.db", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "out/r.json").read_text())
    assert (saved["status"], saved["result"]["updates"]) == ("succeeded", 1)
    assert Path(tmp_path, saved["checkpoint"]).is_dir()
    assert Path(saved["result"]["run_dir"]) == tmp_path / "in/run", "paths in the TOML are meant from there"


def test_imitation_through_a_service(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(lines(4))
    service = Service(tmp_path / "jobs")
    try:
        path = toml(tmp_path / "in")
        done = run(SFT, "--config", path, "--dataset", "d.jsonl", "--backend", service.url, cwd=tmp_path)
    finally:
        service.close()
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "runs/sft_result.json").read_text())
    assert saved["status"] == "succeeded"
    assert Path(saved["checkpoint"]).is_dir()
    assert saved["checkpoint"] in done.stdout


@pytest.mark.parametrize(("status", "code"), [("failed", 1), ("cancelled", 1), ("running", 3)])
def test_what_did_not_succeed_is_saved_and_exits_so(tmp_path, status, code):
    with scripted(job(status, reason="because")) as script:
        path = toml(tmp_path)
        done = run(
            RL, "--config", path, "--backend", script.url, "--output", "r.json", "--poll-timeout", "1", cwd=tmp_path
        )  # fmt: skip
    assert done.returncode == code, done.stderr
    saved = json.loads((tmp_path / "r.json").read_text())
    assert (saved["status"], saved["checkpoint"]) == ("timeout" if code == 3 else status, "")
    assert saved["reason"] == "because"


def test_an_output_that_cannot_be_written_is_said_before_anything_is_sent(tmp_path):
    (tmp_path / "file").write_text("mine")
    with scripted(job("succeeded")) as script:
        where = tmp_path / "file/r.json"
        done = run(RL, "--config", toml(tmp_path), "--backend", script.url, "--output", where, cwd=tmp_path)
        assert (done.returncode, script.posted) == (2, [])
    assert f"cannot write {where}" in done.stderr
