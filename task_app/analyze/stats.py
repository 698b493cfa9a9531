"""Means with intervals, and what a set of episodes amounts to. Pure Python; reads no files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev

from task_app.core.rewards import rewards_from_events
from task_app.core.types import Episode

__all__ = ["Mean", "Spread", "Summary", "mean_interval", "spread", "summarise"]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of n values with its 95 % interval; the ends are None where n < 2, all None where n = 0."""

    n: int
    mean: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.mean is None:
            return "–"
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def mean_interval(values: Sequence[float]) -> Mean:
    """The mean and its two-sided 95 % Student interval (unknown variance, independent values)."""
    n = len(values)
    if n < 2:
        return Mean(n, values[0] if values else None, None, None)
    middle = fmean(values)
    half = _student_quantile(n - 1) * stdev(values) / math.sqrt(n)
    return Mean(n, middle, middle - half, middle + half)


@dataclass(frozen=True, slots=True)
class Spread:
    """A `Mean` with the median beside it; all None where n = 0."""

    n: int
    mean: float | None
    median: float | None
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread:
    """The mean, its 95 % interval and the median."""
    mean = mean_interval(values)
    return Spread(mean.n, mean.mean, median(values) if values else None, mean.low, mean.high)


def _student_quantile(freedom: int) -> float:
    """The .975 quantile of Student's t. Exact for 1 and 2 degrees of freedom, else the expansion in
    1/freedom of Abramowitz and Stegun 26.7.5 (error below .004 from 3 degrees on)."""
    if freedom == 1:
        return 12.706205
    if freedom == 2:
        return 4.302653
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a set of episodes amounts to. Means are over episodes that carry a reward.

    event_shares  of each event, the share of rewarded episodes it happened in
    by_turn       turn → mean over rewarded episodes of (AchΔ, UniqueΔ) at that turn
    """

    episodes: int
    rewarded: int
    outcome: Mean
    environment_return: Mean
    ach_delta_sum: int
    unique_delta_sum: int
    parse_failures: int
    decisions: int
    statuses: Mapping[str, int]
    event_shares: Mapping[str, float]
    by_turn: Mapping[int, tuple[float, float]]


def summarise(episodes: Iterable[Episode]) -> Summary:
    """Add up episodes; deltas come from the stored events, so any step-reward mode can be summarised."""
    every = list(episodes)
    rewarded = [episode for episode in every if episode.rewarded]
    ach: Counter[int] = Counter()
    unique: Counter[int] = Counter()
    happened: Counter[str] = Counter()
    for episode in rewarded:
        happened.update(set(episode.event_counts))
        for record in rewards_from_events(decision.events for decision in episode.decisions):
            ach[record.turn] += record.ach_delta
            unique[record.turn] += record.unique_delta
    count = max(1, len(rewarded))
    return Summary(
        episodes=len(every),
        rewarded=len(rewarded),
        outcome=mean_interval([episode.outcome for episode in rewarded if episode.outcome is not None]),
        environment_return=mean_interval([episode.environment_return for episode in rewarded]),
        ach_delta_sum=ach.total(),
        unique_delta_sum=unique.total(),
        parse_failures=sum(decision.failure is not None for episode in every for decision in episode.decisions),
        decisions=sum(len(episode.decisions) for episode in every),
        statuses=dict(sorted(Counter(episode.status for episode in every).items())),
        event_shares={name: n / count for name, n in sorted(happened.items(), key=lambda item: (-item[1], item[0]))},
        by_turn={turn: (ach[turn] / count, unique[turn] / count) for turn in sorted(ach)},
    )
