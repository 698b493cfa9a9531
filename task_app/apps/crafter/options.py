"""What a Crafter task may set. Every field travels with the episode and names its task."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from task_app.core.task import TaskOptions

__all__ = ["CrafterOptions"]


class CrafterOptions(TaskOptions):
    """Options of one Crafter task. Raises pydantic's ValidationError naming field, value and limit."""

    min_actions_per_decision: int = Field(default=1, ge=1, le=50)
    """Fewest actions one `interact_many` call may hold."""
    max_actions_per_decision: int = Field(default=5, ge=1, le=50)
    """Most actions one call may hold; prompt, schema and code state this same number."""
    history_calls: int = Field(default=1, ge=0, le=50)
    """How many earlier tool calls the observation recalls; 0 shows none."""
    history_clip: int = Field(default=160, ge=20, le=10_000)
    """Most characters of each recalled call; longer ones are cut at a word and end in ` …`."""
    max_steps: int = Field(default=10_000, ge=1, le=10_000)
    """Environment steps after which the world itself truncates the episode."""
    night_draws: Literal["stock", "none"] = "stock"
    """`stock`: at night each step draws the noise a stock 64×64 render would, so the game is stock's."""

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        if self.min_actions_per_decision > self.max_actions_per_decision:
            raise ValueError(
                f"min_actions_per_decision ({self.min_actions_per_decision}) is above "
                f"max_actions_per_decision ({self.max_actions_per_decision})"
            )
        return self
