"""The package `openenv` itself, from an interpreter that has it: its validator, and its client over a whole episode."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.server.openenv.test_wire import serving

INTERPRETER = os.environ.get("TASK_APP_OPENENV_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not INTERPRETER, reason="TASK_APP_OPENENV_PYTHON names no interpreter with the package openenv 0.10"
)

CLIENT = """
import json, sys
from openenv.core.generic_client import GenericEnvClient

with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    result = env.reset(seed=5, max_decisions=4)
    told = []
    while not result.done:
        result = env.step({"actions": ["do", "move_left"]})
        told.append([result.reward, result.observation["metadata"]["meta"]["decision_rewards"]["turn"]])
    print(json.dumps({"told": told, "state": env.state()}))
"""


def test_its_validator_passes_everything(tmp_path):
    with serving(tmp_path / "t.db") as env:
        command = [str(Path(INTERPRETER).with_name("openenv")), "validate", "--url", env.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    verdicts = [line.split()[0] for line in ended.stdout.splitlines() if line.startswith("  PASS ")]
    assert (len(verdicts), "FAIL" in ended.stdout, "Verdict: PASS" in ended.stdout) == (6, False, True), ended.stdout


def test_its_client_plays_a_whole_episode(tmp_path):
    with serving(tmp_path / "t.db") as env:
        command = [INTERPRETER, "-c", CLIENT, env.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        (stored,) = env.episodes(1)
    said = json.loads(ended.stdout)
    assert [turn for _, turn in said["told"]] == [1, 2, 3, 4]
    assert [reward for reward, _ in said["told"]] == [
        float(decision.rewards.unique_delta) for decision in stored.decisions if decision.rewards
    ]
    assert (said["state"]["step_count"], stored.cause) == (4, "max_decisions")
