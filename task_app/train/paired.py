"""Two evaluations compared world by world. It reads lines of the log, plays nothing and imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from task_app.analyze.stats import Mean, mean_interval

__all__ = ["by_world", "paired", "paired_interval"]


def paired_interval(before: Mapping[int, float], after: Mapping[int, float]) -> Mean:
    """The mean of after − before over the worlds both scored, with the 95 % interval over these worlds."""
    return mean_interval([after[world] - before[world] for world in sorted(before.keys() & after.keys())])


def paired(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Two evaluations' difference as plain JSON: `paired_interval`, and worlds won, lost and tied by the second."""
    one, two = by_world(before), by_world(after)
    signs = [(two[world] > one[world]) - (two[world] < one[world]) for world in one.keys() & two.keys()]
    counts = {"wins": signs.count(1), "losses": signs.count(-1), "ties": signs.count(0)}
    return asdict(paired_interval(one, two)) | counts


def by_world(line: Mapping[str, Any]) -> dict[int, float]:
    """World seed → outcome of an evaluation's line."""
    return dict(zip(line["worlds"], line["outcomes"], strict=True))
