"""Shared fixtures: real episodes of the real game, and two processes that play the same ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_app.apps import get_app
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play

PlayScripted = Callable[..., list[Episode]]
HASH_SEEDS = ("1", "2")


def crafter_spec(**options: Any) -> TaskSpec:
    app = get_app("crafter")
    return TaskSpec(app, app.options_model.model_validate(options))


def scripted(spec: TaskSpec, name: str = "random") -> ScriptedPolicy:
    return ScriptedPolicy(spec.app, name, spec.app.baselines(spec.options)[name])


@pytest.fixture
def spec_of() -> Callable[..., TaskSpec]:
    """Make the Crafter task of the given options."""
    return crafter_spec


@pytest.fixture
def player() -> Callable[..., ScriptedPolicy]:
    """Make the scripted policy of a task and a baseline's name."""
    return scripted


@pytest.fixture
def play_scripted() -> PlayScripted:
    """Play scripted Crafter episodes: seeds × group size, with fixed ids `ep-0`, `ep-1`, …"""

    def run(
        seeds: range = range(2),
        group_size: int = 2,
        *,
        policy: str = "random",
        flags: StepRewardFlags = StepRewardFlags(),
        max_decisions: int = 8,
        concurrency: int = 1,
        **options: Any,
    ) -> list[Episode]:
        spec = crafter_spec(**options)
        plans = plan_groups(seeds, group_size, run_id="run")
        limits = Limits(max_decisions=max_decisions)
        episodes = play(
            plans, spec, scripted(spec, policy), limits, flags, lambda episode: None, concurrency=concurrency
        )
        return [replace(episode, episode_id=f"ep-{index}") for index, episode in enumerate(episodes)]

    return run


@pytest.fixture(scope="session")
def episode_hashes() -> dict[str, dict[str, str]]:
    """What two fresh processes with different PYTHONHASHSEED made of the same seeds and actions.

    By hash seed: `"app/policy/seed"` → SHA-256 of the episode's bytes, from `play_every_app.py`.
    """
    script = Path(__file__).parent / "play_every_app.py"
    processes = {
        seed: subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in HASH_SEEDS
    }
    answers = {seed: process.communicate(timeout=120)[0] for seed, process in processes.items()}
    assert [process.returncode for process in processes.values()] == [0] * len(HASH_SEEDS)
    return {seed: json.loads(answer) for seed, answer in answers.items()}
