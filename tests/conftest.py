"""Shared fixtures: real episodes of the real game, a toy app to break, and two processes that play the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_app.apps import get_app
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.core.wire import episode_bytes
from task_app.policies import ScriptedPolicy
from task_app.rollout import EpisodePlan, Limits, plan_groups, play
from task_app.store import TraceStore
from tests import toy_app as toy_app_module
from tests.known_traces import write_known
from tests.policies.stub_endpoint import StubEndpoint

for told_by_ci in ("CI", "BUILD_NUMBER"):  # pytest compares in full where it finds one: minutes for two training logs
    os.environ.pop(told_by_ci, None)

PlayScripted = Callable[..., list[Episode]]
HASH_SEEDS = ("1", "2")


def crafter_spec(**options: Any) -> TaskSpec:
    app = get_app("crafter")
    return TaskSpec(app, app.options_model.model_validate(options))


def scripted(spec: TaskSpec, name: str = "random") -> ScriptedPolicy:
    return ScriptedPolicy(spec.app, name, spec.app.baselines(spec.options)[name])


@pytest.fixture
def endpoint() -> Iterator[StubEndpoint]:
    """A stub model endpoint on a port of this machine, closed afterwards."""
    with StubEndpoint() as running:
        yield running


@pytest.fixture
def known(tmp_path_factory) -> Path:
    """A database of the test's own, in a folder of its own, with the contents of tests/known_traces.py."""
    path = tmp_path_factory.mktemp("known") / "known.db"
    with TraceStore.open(path) as store:
        write_known(store)
    return path


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


@pytest.fixture
def same_bytes() -> Callable[[Sequence[Episode], Sequence[Episode]], bool]:
    """Whether two lists of episodes are the same, byte for byte."""
    return lambda first, second: [episode_bytes(e) for e in first] == [episode_bytes(e) for e in second]


@pytest.fixture
def toy_app() -> Any:
    """A fresh toy app, for setting its `faults`."""
    return toy_app_module.ToyApp()


@pytest.fixture
def toy(toy_app: Any) -> Callable[..., TaskSpec]:
    """Make the toy task of the given options."""
    return lambda **options: TaskSpec(toy_app, toy_app_module.ToyOptions(**options))


@pytest.fixture
def speaker() -> Any:
    """The policy that says what it is told: `speaker(lines, …)`."""
    return toy_app_module.Speaker


@pytest.fixture
def plan() -> Callable[..., EpisodePlan]:
    """Make the plan of one episode."""

    def make(seed: int = 0, member: int = 0, **changes: Any) -> EpisodePlan:
        return EpisodePlan("run", f"s{seed}", member, seed, f"0/-/{seed}/{member}", **changes)

    return make


@pytest.fixture
def play_one(toy: Any, plan: Any, speaker: Any) -> Callable[..., Episode]:
    """Play one toy episode of the given lines, or with the given policy."""

    def run(
        lines: Any,
        *,
        flags: StepRewardFlags = StepRewardFlags(),
        limits: Limits = Limits(4),
        seed: int = 0,
        **options: Any,
    ) -> Episode:
        policy = lines if isinstance(lines, speaker) else speaker(lines)
        (episode,) = play([plan(seed)], toy(**options), policy, limits, flags, lambda episode: None)
        assert len(policy.ended) == 1
        return episode

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
