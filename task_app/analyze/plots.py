"""The one plotting module: numbers in, SVG text out. Readable on light and on dark pages; the same
numbers give the same bytes. Knows nothing of episodes; matplotlib is imported only when a plot is made.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Level", "Series", "bar_plot", "line_plot"]

INK = "#7a828e"  # readable on white and on near-black
COLOURS = ("#2f81f7", "#e5534b", "#57ab5a", "#c69026", "#986ee2")
SIZE_INCHES = (7.2, 3.2)


@dataclass(frozen=True, slots=True)
class Series:
    """One line: y over x, with an optional band (low, high per point)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal reference, with its interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def line_plot(
    series: Sequence[Series], *, x_label: str, y_label: str, references: Mapping[str, Level] | None = None
) -> str:
    """Lines with bands, and dashed horizontal references such as the random policy's score."""
    from matplotlib.ticker import MaxNLocator

    axes = _axes(x_label, y_label)
    for index, one in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(one.x, one.y, color=colour, label=one.label, linewidth=1.8, marker="o", markersize=3)
        if one.band is not None:
            axes.fill_between(one.x, *one.band, color=colour, alpha=0.18, linewidth=0)
    for index, (label, level) in enumerate((references or {}).items(), start=len(series)):
        colour = COLOURS[index % len(COLOURS)]
        axes.axhline(level.value, color=colour, linestyle="--", linewidth=1.4, label=label)
        if level.low is not None and level.high is not None:
            axes.axhspan(level.low, level.high, color=colour, alpha=0.1, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    return _svg(axes)


def bar_plot(
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    reference: tuple[str, Sequence[float]] | None = None,
) -> str:
    """Grouped bars: one group per label, one bar per entry of `groups`; the reference is a mark over each group."""
    axes = _axes(x_label, y_label)
    width = 0.8 / max(1, len(groups))
    for index, (label, heights) in enumerate(groups.items()):
        left = [position - 0.4 + width * (index + 0.5) for position in range(len(labels))]
        axes.bar(left, heights, width=width, color=COLOURS[index % len(COLOURS)], label=label)
    crowded = max((len(label) for label in labels), default=0) > 3
    axes.set_xticks(range(len(labels)), labels, rotation=60 if crowded else 0, ha="right" if crowded else "center")
    if reference is not None:
        name, heights = reference
        left, right = ([position + side for position in range(len(labels))] for side in (-0.45, 0.45))
        axes.hlines(heights, left, right, color=INK, linestyle="--", linewidth=1.4, label=name)
    return _svg(axes)


def _axes(x_label: str, y_label: str) -> Axes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained", facecolor="none")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.tick_params(colors=INK)
    axes.grid(color=INK, alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    return axes


def _svg(axes: Axes) -> str:
    from matplotlib import rc_context

    figure = axes.figure
    axes.legend(frameon=False, labelcolor=INK, fontsize="small")
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "task-app", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})  # type: ignore[union-attr]
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # A page scales the picture itself; fixed sizes in points would not fit a narrow window.
    return re.sub(r'(<svg[^>]*?) width="[^"]*pt"', r'\1 width="100%"', re.sub(r' height="[^"]*pt"', "", text, count=1))
