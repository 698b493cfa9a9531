"""From a batch of reward vectors to advantages: estimator, zero variance, scale, statistics, baseline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from task_app.credit.baseline import RunningBaseline
from task_app.credit.estimators import Estimate, get_estimator
from task_app.credit.returns import mean, returns_to_go
from task_app.credit.types import CreditResult, CreditSettings, GroupCredit, GroupRewards, Ragged

__all__ = ["SCALE_FLOOR", "compute_advantages"]

SCALE_FLOOR = 1e-3
"""No root mean square below this divides: a tiny spread must not be blown up to unit size."""

ZERO_TOLERANCE = 1e-6


def compute_advantages(
    groups: Sequence[GroupRewards], settings: CreditSettings, baseline: RunningBaseline
) -> CreditResult:
    """Advantages of every group; `baseline` is read first and updated with this batch afterwards.

    A group whose advantages are all within 1e-6·max(1, largest return) is zero-variance: its
    advantages become exactly 0, so that rounding is never scaled up. Raises ConfigError for an
    unknown estimator.
    """
    estimator = get_estimator(settings.estimator)
    estimates = [estimator.compute(group, settings, baseline) for group in groups]
    flat = [_is_flat(group, estimate, settings.gamma) for group, estimate in zip(groups, estimates, strict=True)]
    raw = [_times(estimate.advantages, 0.0 if still else 1.0) for estimate, still in zip(estimates, flat, strict=True)]
    scaled = [_times(values, factor) for values, factor in zip(raw, _factors(raw, settings), strict=True)]
    credits = tuple(
        GroupCredit(group.group_id, values, still, estimate.singletons)
        for group, values, still, estimate in zip(groups, scaled, flat, estimates, strict=True)
    )
    statistics = _statistics(groups, credits, raw)
    baseline.update(groups, settings)
    return CreditResult(credits, statistics)


def _is_flat(group: GroupRewards, estimate: Estimate, gamma: float) -> bool:
    returns = [value for rewards in group.rewards for value in (*returns_to_go(rewards, gamma), math.fsum(rewards))]
    tolerance = ZERO_TOLERANCE * max(1.0, max(map(abs, returns), default=0.0))
    return all(abs(value) <= tolerance for value in _numbers([estimate.advantages]))


def _times(values: Ragged, factor: float) -> Ragged:
    # `+ 0.0` turns a negative zero into a plain one, so that stored zeros are all alike.
    return tuple(tuple(value * factor + 0.0 for value in row) for row in values)


def _numbers(groups: Iterable[Ragged]) -> list[float]:
    return [value for group in groups for row in group for value in row]


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values)) if values else 0.0


def _factors(raw: Sequence[Ragged], settings: CreditSettings) -> list[float]:
    if settings.scale == "none":
        return [1.0] * len(raw)
    if settings.scale == "group_rms":
        return [1.0 / max(_rms(_numbers([group])), SCALE_FLOOR) for group in raw]
    return [1.0 / max(_rms(_numbers(raw)), SCALE_FLOOR)] * len(raw)


def _statistics(
    groups: Sequence[GroupRewards], credits: Sequence[GroupCredit], raw: Sequence[Ragged]
) -> dict[str, float]:
    """What the log says of a batch. A zero-variance group is `high` when its members' mean return is
    above the batch's mean return, or, where the whole batch agrees, above 0; else `low`."""
    means = [mean([math.fsum(rewards) for rewards in group.rewards]) if group.rewards else 0.0 for group in groups]
    middle = mean(means) if means else 0.0
    if all(math.isclose(value, middle, rel_tol=ZERO_TOLERANCE, abs_tol=ZERO_TOLERANCE) for value in means):
        middle = 0.0
    still = [value for value, credit in zip(means, credits, strict=True) if credit.zero_variance]
    high = sum(value > middle for value in still)
    final = _numbers(credit.advantages for credit in credits)
    decisions = len(final)
    return {
        "adv/decisions": float(decisions),
        "adv/rms_unscaled": _rms(_numbers(raw)),
        "adv/rms": _rms(final),
        "adv/mean": mean(final) if final else 0.0,
        "adv/abs_max": max((abs(value) for value in final), default=0.0),
        "adv/singleton_frac": sum(credit.singletons for credit in credits) / decisions if decisions else 0.0,
        "adv/zero_variance_groups": float(len(still)),
        "adv/zero_variance_high": float(high),
        "adv/zero_variance_low": float(len(still) - high),
    }
