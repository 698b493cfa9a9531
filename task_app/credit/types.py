"""Values of the credit layer. Frozen; they hold numbers and names, nothing else.

A *group* is n episodes of one task, seed, prompt and policy version; `rewards[i][t]` is what
decision t of member i earned. Members may have different numbers of decisions, none included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from task_app.core.types import StepRewardsMode

__all__ = ["CreditResult", "CreditSettings", "GroupCredit", "GroupRewards", "Ragged", "Scale", "Singleton"]

Ragged = tuple[tuple[float, ...], ...]
"""One number per (member, decision)."""

Scale = Literal["none", "group_rms", "batch_rms"]
Singleton = Literal["running", "zero", "raw"]


@dataclass(frozen=True, slots=True)
class CreditSettings:
    """How advantages are made.

    estimator  a name of the registry
    gamma      discount per decision in the return-to-go
    scale      divide by the root mean square within each group or over the batch
    singleton  baseline of a decision that no other member has: a running mean of earlier batches,
               its own return-to-go (advantage 0), or 0
    mode       the step-reward mode the rewards came from; running means never mix modes
    """

    estimator: str = "rtg_alive_loo"
    gamma: float = 1.0
    scale: Scale = "none"
    singleton: Singleton = "running"
    mode: StepRewardsMode = "decision_stepwise"


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """One group's reward vectors. `task` names the task without its seed: running means are kept by it."""

    group_id: str
    task: str
    rewards: Ragged


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """One group's advantages, shaped as its rewards; all 0 where `zero_variance`.

    singletons  decisions (over all members) that had no other member to be compared with
    """

    group_id: str
    advantages: Ragged
    zero_variance: bool
    singletons: int


@dataclass(frozen=True, slots=True)
class CreditResult:
    """A batch's advantages, group by group in the order given, and its numbers for the log."""

    groups: tuple[GroupCredit, ...]
    statistics: dict[str, float]
