"""The random player: every decision a fixed number of actions, each drawn uniformly from the 17."""

from __future__ import annotations

import random

from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ACTIONS
from task_app.apps.crafter.view import CrafterView

__all__ = ["RandomAgent"]


class RandomAgent:
    """Plays `max_actions_per_decision` uniform actions a decision; looks at nothing."""

    def __init__(self, options: CrafterOptions, seed: int) -> None:
        self._length = options.max_actions_per_decision
        self._random = random.Random(seed)

    def act(self, observation: CrafterView) -> list[str]:
        """The next decision's actions."""
        return self._random.choices(ACTIONS, k=self._length)
