"""Play every task app's scripted players and print the SHA-256 of each episode's bytes as JSON.

Run in two processes by the fixture `episode_hashes`: the answers must not differ.
"""

from __future__ import annotations

import hashlib
import json

from task_app.apps import find_apps
from task_app.core.task import TaskSpec
from task_app.core.types import StepRewardFlags
from task_app.core.wire import episode_bytes
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play

SEEDS = range(100, 103)
DECISIONS = 40


def hashes() -> dict[str, str]:
    """`"app/policy/seed"` → hash of the episode that the policy plays of that seed."""
    found: dict[str, str] = {}
    for name, item in find_apps().items():
        spec = TaskSpec(item.app, item.app.options_model())
        for policy, factory in item.app.baselines(spec.options).items():
            player = ScriptedPolicy(item.app, policy, factory)
            plans = plan_groups(SEEDS, 1, run_id="hashes")
            episodes = play(plans, spec, player, Limits(DECISIONS), StepRewardFlags(), lambda episode: None)
            for episode in episodes:
                key = f"{name}/{policy}/{episode.task.seed}"
                found[key] = hashlib.sha256(episode_bytes(episode)).hexdigest()
    return found


if __name__ == "__main__":
    print(json.dumps(hashes()))
