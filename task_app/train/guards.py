"""What a run watches itself for: figures of its updates in, findings out. Pure: it changes no update, stores nothing.

    collapse        members of a group earn (nearly) the same for several updates: there is nothing to learn from
    flat_goal       the total that is paid climbs while a goal does not: something else is being earned
    entropy         the policy has nearly stopped choosing, at the start (what it was initialised from) or later
    window_entropy  actions hardly vary within short stretches
    cycles          episodes mostly repeat one short cycle of actions

The counts go on from the log's last line, so a resumed run is judged as one that was never interrupted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from task_app.config.training import GuardsSection

__all__ = ["GOALS", "TOTAL", "Finding", "Grouped", "Guards", "Slope", "Verdict", "mean_of", "slope", "spread"]

Grouped = Sequence[Sequence[float]]
"""One number per (group, member)."""

TOTAL = "return"
GOALS = ("outcome", "unique_delta")
"""Layers that are wanted for themselves; the total is paid so that they rise."""

CLIMBS, FLAT = 3.0, 1.0
"""A series climbs from this many standard errors of its slope on, and is flat below that many."""

_FEWEST_POINTS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a guard has to say of an update; `stop` ends the run."""

    guard: str
    level: Literal["warn", "stop"]
    text: str


@dataclass(frozen=True, slots=True)
class Slope:
    """Least-squares rise per update, and how many of its standard errors that is."""

    per_update: float
    errors: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one update: what to add to its line, every finding, and those the last update did not have."""

    facts: dict[str, Any]
    findings: tuple[Finding, ...]
    new: tuple[Finding, ...]

    @property
    def stop(self) -> Finding | None:
        """The finding that ends the run, if there is one."""
        return next((finding for finding in self.findings if finding.level == "stop"), None)


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def spread(groups: Grouped) -> float | None:
    """Mean over groups of the population standard deviation of their members; None without a group.

    Equal members give exactly 0, whatever a rounded mean leaves.
    """
    return mean_of([_deviation(group) for group in groups if group])


def _deviation(values: Sequence[float]) -> float:
    if min(values) == max(values):
        return 0.0
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def slope(points: Sequence[tuple[float, float]]) -> Slope | None:
    """The least-squares line through (update, value); None below three points.

    A rise over the whole stretch within 1e-9 of the values' size is rounding, and counts as 0.
    """
    if len(points) < _FEWEST_POINTS:
        return None
    middle_x, middle_y = (math.fsum(column) / len(points) for column in zip(*points, strict=True))
    width = math.fsum((x - middle_x) ** 2 for x, _ in points)
    rise = math.fsum((x - middle_x) * (y - middle_y) for x, y in points) / width
    length = points[-1][0] - points[0][0]
    if abs(rise) * length <= 1e-9 * max(1.0, *(abs(y) for _, y in points)):
        return Slope(0.0, 0.0)
    left = math.fsum((y - middle_y - rise * (x - middle_x)) ** 2 for x, y in points)
    error = math.sqrt(left / (len(points) - 2) / width)
    return Slope(rise, rise / error if error > 0 else math.copysign(math.inf, rise))


class Guards:
    """Judges the updates of one run, in order."""

    def __init__(self, settings: GuardsSection, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        """`lines` are the update lines the log already holds."""
        self._settings = settings
        self._recent: deque[Mapping[str, Any]] = deque(lines, maxlen=settings.slope_window)

    def examine(self, update: int, facts: Mapping[str, Any]) -> Verdict:
        """Judge `update` by its line's figures; those that are missing or None judge nothing."""
        last = self._recent[-1] if self._recent else {}
        before = {finding["guard"] for finding in last.get("guard/findings", ())}
        line = {**facts, "update": update}
        self._recent.append(line)
        line["guard/collapsed_updates"] = self._collapsed(line, last)
        entry = last.get("policy/entry_entropy")
        line["policy/entry_entropy"] = line.get("policy/entropy") if entry is None else entry
        slopes = {name: self._slope(name) for name in _layer_names(line)}
        line |= {f"layer/{name}/slope": found.per_update if found else None for name, found in slopes.items()}
        candidates = (
            self._collapse(line),
            self._flat_goal(slopes),
            self._entropy(line),
            self._window_entropy(line),
            self._cycles(line),
        )
        findings = tuple(finding for finding in candidates if finding)
        line["guard/findings"] = [asdict(finding) for finding in findings]
        added = {key: value for key, value in line.items() if key not in facts and key != "update"}
        new = tuple(finding for finding in findings if finding.guard not in before or finding.level == "stop")
        return Verdict(added, findings, new)

    def _collapsed(self, line: Mapping[str, Any], last: Mapping[str, Any]) -> int:
        """Collapsed updates in a row, this one included; an update without a group leaves the count as it was."""
        count, now = int(last.get("guard/collapsed_updates", 0)), line.get(f"layer/{TOTAL}/spread")
        if now is None:
            return count
        return count + 1 if now < self._settings.collapse_spread or now == 0 else 0

    def _slope(self, name: str) -> Slope | None:
        key = f"layer/{name}/mean"
        return slope([(line["update"], line[key]) for line in self._recent if line.get(key) is not None])

    def _collapse(self, line: Mapping[str, Any]) -> Finding | None:
        count, settings = line["guard/collapsed_updates"], self._settings
        stops = bool(settings.collapse_stop_after) and count >= settings.collapse_stop_after
        warns = bool(settings.collapse_warn_after) and count >= settings.collapse_warn_after
        if not (stops or warns):
            return None
        high, low = line.get("adv/zero_variance_high", 0), line.get("adv/zero_variance_low", 0)
        text = (
            f"collapse: in {count} updates in a row the members of a group earned nearly the same (spread below "
            f"{settings.collapse_spread}), so there is nothing to learn from; groups without any difference in the "
            f"last one: {high:.0f} all high, {low:.0f} all low"
        )
        return Finding("collapse", "stop" if stops else "warn", text)

    def _flat_goal(self, slopes: Mapping[str, Slope | None]) -> Finding | None:
        total = slopes.get(TOTAL)
        full = len(self._recent) == self._settings.slope_window
        if not full or total is None or total.errors < CLIMBS:
            return None
        found = {name: slopes.get(name) for name in GOALS}
        flat = {name: goal.per_update for name, goal in found.items() if goal and goal.errors < FLAT}
        if not flat:
            return None
        told = ", ".join(f"{name} {rise:+.3g}" for name, rise in flat.items())
        text = (
            f"flat goal: over {self._settings.slope_window} updates the return climbs by {total.per_update:.3g} an "
            f"update, but not what it is paid for ({told})"
        )
        return Finding("flat_goal", "warn", text)

    def _entropy(self, line: Mapping[str, Any]) -> Finding | None:
        now, entry, floor = line.get("policy/entropy"), line["policy/entry_entropy"], self._settings.entropy_floor
        if now is None or now >= floor:
            return None
        text = f"entropy: {now:.3f} nats per chosen token, below {floor}"
        if entry is not None and entry < floor:
            text += f"; it was {entry:.3f} before the first update, so what training started from hardly explores"
        return Finding("entropy", "warn", text)

    def _window_entropy(self, line: Mapping[str, Any]) -> Finding | None:
        now, floor = line.get("behaviour/window_entropy"), self._settings.window_entropy_floor
        if now is None or now >= floor:
            return None
        return Finding("window_entropy", "warn", f"window entropy: {now:.3f} of the most possible, below {floor}")

    def _cycles(self, line: Mapping[str, Any]) -> Finding | None:
        now, limit = line.get("behaviour/cycling_episodes"), self._settings.cycle_share
        if now is None or now < limit:
            return None
        return Finding("cycles", "warn", f"cycles: {now:.0%} of episodes mostly repeat one short cycle of actions")


def _layer_names(line: Mapping[str, Any]) -> list[str]:
    return [key.split("/")[1] for key in line if key.startswith("layer/") and key.endswith("/mean")]
