"""One self-contained HTML file about a training run: learning curve, reward by turn, achievements.

Built from numbers that are in the record, so it can be rebuilt at any time. Every plot holds the line
of the random policy: random play already earns something, and only what lies above it was learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task_app.analyze.plots import Level, Series, bar_plot, line_plot
from task_app.analyze.stats import Mean, Summary

__all__ = ["CurvePoint", "TrainingReport", "write_report"]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One update: mean outcome of its training episodes, and their summed r per episode."""

    update: int
    outcome: Mean
    reward_sum: float


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What the page shows. `held_out` holds one summary per policy on the same held-out worlds, by
    label: the random policy's under `random`, the one training began with under `first`, the trained one's under
    `after`; `facts` and `time_split` are name → value."""

    title: str
    curve: Sequence[CurvePoint]
    held_out: Mapping[str, Summary]
    facts: Mapping[str, Any] = field(default_factory=dict)
    time_split: Mapping[str, float] = field(default_factory=dict)
    first: str = "before"


def write_report(path: Path, report: TrainingReport) -> None:
    """Write the page to `path`."""
    from jinja2 import Environment, PackageLoader

    templates = Environment(loader=PackageLoader("task_app.analyze"), autoescape=True, trim_blocks=True)
    page = templates.get_template("report.html").render(
        report=report,
        curve=_curve(report),
        rewards=_reward_curve(report),
        by_turn=_by_turn(report),
        achievements=_achievements(report),
        events=_events(report),
    )
    path.write_text(page, encoding="utf-8")


def _level(report: TrainingReport, label: str, name: str) -> dict[str, Level]:
    """A policy's held-out score as a line called `name`, with its 95 % interval; nothing where it has none."""
    summary = report.held_out.get(label)
    if summary is None or summary.outcome.mean is None:
        return {}
    return {name: Level(summary.outcome.mean, summary.outcome.low, summary.outcome.high)}


def _random_line(report: TrainingReport) -> dict[str, Level]:
    return _level(report, "random", "random policy")


def _curve(report: TrainingReport) -> str:
    points = [point for point in report.curve if point.outcome.mean is not None]
    middle = [point.outcome.mean or 0.0 for point in points]
    low = [point.outcome.low if point.outcome.low is not None else y for point, y in zip(points, middle, strict=True)]
    high = [
        point.outcome.high if point.outcome.high is not None else y for point, y in zip(points, middle, strict=True)
    ]
    series = Series("training episodes, 95 %", [point.update for point in points], middle, (low, high))
    lines = _random_line(report)
    for label in (report.first, "after"):
        lines |= _level(report, label, f"held-out, {label}")
    return line_plot([series], x_label="update", y_label="achievements per episode", references=lines)


def _reward_curve(report: TrainingReport) -> str:
    series = Series("Σ r per episode", [p.update for p in report.curve], [p.reward_sum for p in report.curve])
    return line_plot([series], x_label="update", y_label="event reward per episode", references=_random_line(report))


def _by_turn(report: TrainingReport) -> str:
    turns = sorted({turn for summary in report.held_out.values() for turn in summary.by_turn})
    heights = {
        label: [summary.by_turn.get(turn, (0.0, 0.0))[1] for turn in turns]
        for label, summary in report.held_out.items()
    }
    return _bars(report.first, [str(turn) for turn in turns], heights, x_label="decision", y_label="mean UniqueΔ")


def _events(report: TrainingReport) -> list[str]:
    """Every event seen, most frequent after training first, then before it, then by any other policy."""
    labels = sorted(report.held_out, key=lambda label: {"after": 0, report.first: 1}.get(label, 2))
    return list(dict.fromkeys(name for label in labels for name in report.held_out[label].event_shares))


def _achievements(report: TrainingReport) -> str:
    events = _events(report)
    heights = {
        label: [100 * summary.event_shares.get(event, 0.0) for event in events]
        for label, summary in report.held_out.items()
    }
    return _bars(report.first, events, heights, x_label="", y_label="% of held-out episodes")


def _bars(
    first: str, labels: Sequence[str], heights: Mapping[str, Sequence[float]], *, x_label: str, y_label: str
) -> str:
    """Bars of the policy before and after training; the random policy is the dashed line."""
    bars = {label: heights[label] for label in (first, "after") if label in heights} or dict(heights)
    reference = ("random policy", heights["random"]) if "random" in heights else None
    return bar_plot(labels, bars, x_label=x_label, y_label=y_label, reference=reference)
