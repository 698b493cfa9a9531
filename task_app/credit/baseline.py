"""Running means of the return-to-go over earlier batches: the baseline where a member is alone.

A baseline for a decision must not depend on that decision's own action or anything after it, so the
means are read while a batch's advantages are made and updated only afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from task_app.credit.returns import mean, returns_to_go
from task_app.credit.types import CreditSettings, GroupRewards

__all__ = ["DECAY", "BaselineKey", "RunningBaseline"]

DECAY = 0.9
"""Weight of the past when a batch's mean is taken in."""


class BaselineKey(NamedTuple):
    """What one running mean belongs to; `turn` is 1-based."""

    task: str
    turn: int
    gamma: float
    mode: str


class RunningBaseline:
    """Exponential means of the return-to-go by task, turn, gamma and mode; 0 before the first batch."""

    def __init__(self) -> None:
        self._means: dict[BaselineKey, float] = {}

    def value(self, task: str, turn: int, settings: CreditSettings) -> float:
        """The mean of earlier batches at this turn; 0.0 where there was none."""
        return self._means.get(BaselineKey(task, turn, settings.gamma, settings.mode), 0.0)

    def update(self, groups: Sequence[GroupRewards], settings: CreditSettings) -> None:
        """Take in a batch: the first mean of a key is stored as it is, later ones decay the past."""
        seen: dict[BaselineKey, list[float]] = {}
        for group in groups:
            for rewards in group.rewards:
                for turn, value in enumerate(returns_to_go(rewards, settings.gamma), start=1):
                    seen.setdefault(BaselineKey(group.task, turn, settings.gamma, settings.mode), []).append(value)
        for key, values in seen.items():
            batch = mean(values)
            self._means[key] = DECAY * self._means[key] + (1 - DECAY) * batch if key in self._means else batch

    def to_dict(self) -> dict[str, Any]:
        """All means as plain JSON values, for a checkpoint; `from_dict` reads them back exactly."""
        return {"decay": DECAY, "means": [[*key, value] for key, value in sorted(self._means.items())]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunningBaseline:
        """Inverse of `to_dict`. Raises ValueError when the means were kept with another decay."""
        if stored["decay"] != DECAY:
            raise ValueError(f"running means were kept with decay {stored['decay']}, this version uses {DECAY}")
        baseline = cls()
        for task, turn, gamma, mode, value in stored["means"]:
            baseline._means[BaselineKey(str(task), int(turn), float(gamma), str(mode))] = float(value)
        return baseline
