"""The registry of advantage estimators. An estimator sees one group and returns raw advantages;
zero variance, scale and statistics are the batch's business (`advantages.py`).

Rule for every unbiased one: the baseline of decision (i, t) may not depend on i's own action at t or later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from task_app.core.errors import ConfigError
from task_app.core.types import StepRewardFlags
from task_app.credit.baseline import RunningBaseline
from task_app.credit.returns import leave_one_out, mean, returns_to_go
from task_app.credit.types import CreditSettings, GroupRewards, Ragged

__all__ = ["Estimate", "Estimator", "check_credit", "estimator_names", "get_estimator", "register"]

STD_EPSILON = 1e-4


@dataclass(frozen=True, slots=True)
class Estimate:
    """Raw advantages of a group, and how many decisions had no other member to compare with."""

    advantages: Ragged
    singletons: int = 0


Compute = Callable[[GroupRewards, CreditSettings, RunningBaseline], Estimate]


@dataclass(frozen=True, slots=True)
class Estimator:
    """A registered estimator.

    return_to_go  credits decision t with rewards from t on (so non-causal rewards are refused)
    smallest_group  members a group must have for the formula to mean anything
    """

    name: str
    compute: Compute
    return_to_go: bool
    smallest_group: int


_REGISTRY: dict[str, Estimator] = {}


def register(name: str, *, return_to_go: bool, smallest_group: int) -> Callable[[Compute], Compute]:
    """Decorator that adds an estimator. Raises ValueError when the name is taken."""

    def add(compute: Compute) -> Compute:
        if name in _REGISTRY:
            raise ValueError(f"estimator {name!r} is registered already")
        _REGISTRY[name] = Estimator(name, compute, return_to_go, smallest_group)
        return compute

    return add


def estimator_names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(sorted(_REGISTRY))


def get_estimator(name: str) -> Estimator:
    """The estimator called `name`. Raises ConfigError with the list of names."""
    if name not in _REGISTRY:
        known = ", ".join(estimator_names())
        raise ConfigError(f"unknown estimator {name!r} (known: {known})", field="training.credit.estimator")
    return _REGISTRY[name]


def check_credit(settings: CreditSettings, flags: StepRewardFlags, group_size: int) -> None:
    """Refuse combinations that cannot work, before anything is played. Raises ConfigError."""
    estimator = get_estimator(settings.estimator)
    if group_size < estimator.smallest_group:
        raise ConfigError(
            f"estimator {estimator.name!r} compares the members of a group: rollout.group_size must be "
            f"{estimator.smallest_group} or more, got {group_size}",
            field="rollout.group_size",
        )
    if estimator.return_to_go and flags.horizon == "episode" and flags.beta > 0:
        # With the realised length as horizon a later decision changes earlier rewards, which no
        # return-to-go ever credits it with.
        raise ConfigError(
            f"step_rewards_horizon = 'episode' with step_rewards_beta = {flags.beta} cannot be used with the "
            f"return-to-go estimator {estimator.name!r}; use horizon 'configured' or estimator 'return_loo'",
            field="training.step_rewards_horizon",
        )


def _spread(group: GroupRewards, per_member: tuple[float, ...]) -> Ragged:
    """One number per member, given to each of its decisions."""
    return tuple((value,) * len(rewards) for value, rewards in zip(per_member, group.rewards, strict=True))


@register("return_loo", return_to_go=False, smallest_group=2)
def return_loo(group: GroupRewards, settings: CreditSettings, baseline: RunningBaseline) -> Estimate:
    """Return minus the mean return of the other members. Unbiased."""
    returns = [math.fsum(rewards) for rewards in group.rewards]
    return Estimate(_spread(group, leave_one_out(returns)))


@register("return_std", return_to_go=False, smallest_group=2)
def return_std(group: GroupRewards, settings: CreditSettings, baseline: RunningBaseline) -> Estimate:
    """(Return − group mean) / (sample standard deviation + 1e-4): the textbook form, biased."""
    returns = [math.fsum(rewards) for rewards in group.rewards]
    middle = mean(returns)
    deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in returns) / (len(returns) - 1))
    return Estimate(_spread(group, tuple((value - middle) / (deviation + STD_EPSILON) for value in returns)))


@register("rtg_alive_loo", return_to_go=True, smallest_group=1)
def rtg_alive_loo(group: GroupRewards, settings: CreditSettings, baseline: RunningBaseline) -> Estimate:
    """Return-to-go minus its mean over the other members that also have this decision.

    Unbiased with `singleton` running or raw; `zero` damps decisions that one member alone reaches.
    """
    to_go = [returns_to_go(rewards, settings.gamma) for rewards in group.rewards]
    columns: list[tuple[float, ...]] = []
    singletons = 0
    for turn in range(max((len(values) for values in to_go), default=0)):
        alive = [values[turn] for values in to_go if len(values) > turn]
        if len(alive) > 1:
            columns.append(leave_one_out(alive))
        else:
            singletons += 1
            columns.append((alive[0] - _lone_baseline(alive[0], group.task, turn + 1, settings, baseline),))
    readers = [iter(column) for column in columns]
    advantages = tuple(tuple(next(readers[turn]) for turn in range(len(values))) for values in to_go)
    return Estimate(advantages, singletons)


def _lone_baseline(own: float, task: str, turn: int, settings: CreditSettings, baseline: RunningBaseline) -> float:
    if settings.singleton == "zero":
        return own
    return baseline.value(task, turn, settings) if settings.singleton == "running" else 0.0
