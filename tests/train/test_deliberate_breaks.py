"""Tests of the trainer fail when what they test is broken: each fault of `breaks`, one at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.train import broken_runs
from tests.train.breaks import BREAKS
from tests.train.broken_runs import HEALTHY, ROOT

pytestmark = pytest.mark.filterwarnings("default:fault .* was tried twice")

NO_FINDING = ("NameError", "SyntaxError", "ImportError", "AttributeError", "ModuleNotFoundError")
"""A fault that fails like this is no wrong number but code that does not run, and shows nothing."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> Path:
    """A file for each fault, and one for none."""
    folder = tmp_path_factory.mktemp("breaks")
    command = [sys.executable, broken_runs.__file__, str(folder)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CI": "true"},  # several run at once
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for twice in folder.glob("*.first"):
        warnings.warn(f"fault {twice.stem} was tried twice; the first time:\n{twice.read_text()}", stacklevel=1)
    return folder


def told(folder: Path, name: str) -> dict[str, list[str]]:
    path = folder / f"{name}.json"
    log = path.with_suffix(".log")
    assert path.exists(), log.read_text() if log.exists() else "it never began"
    return json.loads(path.read_text())


def test_unbroken_they_pass(outcomes):
    found = told(outcomes, HEALTHY)
    assert {name: failed for name, failed in found.items() if failed[0]} == {}
    for fault in BREAKS:
        for test in fault.tests:
            assert any(name == test or name.startswith(f"{test}[") for name in found), f"{test} does not exist"


@pytest.mark.parametrize("number", range(len(BREAKS)), ids=[fault.name.replace(" ", "_") for fault in BREAKS])
def test_broken_they_fail(outcomes, number):
    found = told(outcomes, str(number))
    for test in BREAKS[number].tests:
        ended = [failed for name, failed in found.items() if name == test or name.startswith(f"{test}[")]
        assert any(phase for phase, _ in ended), f"{test} does not notice: {found}"
        for phase, how in ended:
            assert not how.startswith(NO_FINDING), f"{test} failed in {phase} for another reason: {how}"
