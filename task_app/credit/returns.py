"""Returns-to-go and leave-one-out differences, in a form that keeps equal answers exactly equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["leave_one_out", "mean", "returns_to_go"]


def mean(values: Sequence[float]) -> float:
    """The correctly rounded sum divided by the count; ValueError for no values."""
    if not values:
        raise ValueError("mean of no values")
    return math.fsum(values) / len(values)


def returns_to_go(rewards: Sequence[float], gamma: float) -> tuple[float, ...]:
    """G[t] = r[t] + gamma·G[t+1]."""
    total = 0.0
    backwards = []
    for reward in reversed(rewards):
        total = reward + gamma * total
        backwards.append(total)
    return tuple(reversed(backwards))


def leave_one_out(values: Sequence[float]) -> tuple[float, ...]:
    """Each value minus the mean of the others. Raises ValueError for fewer than two values.

    Written as (x − mean of all)·n/(n − 1), the same number, because a mean of equal values is
    exact to a rounding, whatever their count.
    """
    count = len(values)
    if count < 2:
        raise ValueError(f"leave-one-out needs two values, got {count}")
    middle = mean(values)
    return tuple((value - middle) * count / (count - 1) for value in values)
