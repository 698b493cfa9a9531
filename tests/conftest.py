"""Shared fixtures: real episodes of the real game, made once per session and never changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from task_app.apps import get_app
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play

PlayScripted = Callable[..., list[Episode]]


def crafter_spec(**options: Any) -> TaskSpec:
    app = get_app("crafter")
    return TaskSpec(app, app.options_model.model_validate(options))


def scripted(spec: TaskSpec, name: str = "random") -> ScriptedPolicy:
    return ScriptedPolicy(spec.app, name, spec.app.baselines(spec.options)[name])


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
