"""What a training run looks like on a terminal while it goes on: a picture of its log's lines, and nothing else.

`picture` is a function of lines, so that what is shown can be had again from metrics.jsonl; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["live_view", "picture", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_GAP = "·"
_BAR_WIDTH = 30

Line = Mapping[str, Any]


@contextmanager
def live_view(updates: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the picture of the lines it is given; `updates` is how many the run is to make. On standard error, so that
    results can be piped."""
    lines: list[Line] = []
    console = Console(stderr=True, highlight=False)
    with Live(picture(lines, updates), console=console, auto_refresh=False) as live:

        def progress(line: dict[str, Any]) -> None:
            lines.append(line)
            live.update(picture(lines, updates), refresh=True)

        yield progress


def picture(lines: Sequence[Line], updates: int) -> Group:
    """Update k of n, curves, held-out scores, what the guards found, and where the time went."""
    made = [line for line in lines if line["kind"] == "update"]
    last: Line = made[-1] if made else {}
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    number = max((line["update"] for line in lines), default=0)
    table.add_row("update", f"{number}/{updates}  {_bar(number, updates)}")
    for label, key in (("outcome", "outcome/mean"), ("Σr", "reward/sum"), ("entropy", "policy/entropy")):
        table.add_row(label, f"{_number(last.get(key))}  {sparkline([line.get(key) for line in made])}")
    table.add_row("held out", _held_out(lines))
    table.add_row("time", _time_split(lines))
    findings = [Text(finding["text"], style="bold yellow") for finding in last.get("guard/findings") or ()]
    return Group(
        table, *(findings or [Text("guards: nothing found" if made else "guards: no update yet", style="dim")])
    )


def sparkline(values: Sequence[float | None], width: int = 60) -> str:
    """One bar per value from their lowest to their highest, the last `width` of them; a dot where there is none."""
    shown = values[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return _GAP * len(shown)
    low, size = min(known), max(known) - min(known)
    top = len(_BARS) - 1
    return "".join(
        _GAP if value is None else _BARS[round((value - low) / size * top) if size > 0 else 0] for value in shown
    )


def _bar(number: int, updates: int) -> str:
    filled = _BAR_WIDTH * number // max(1, updates)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)


def _held_out(lines: Sequence[Line]) -> str:
    scores = [line for line in lines if line["kind"] == "eval"]
    return "  ".join(f"{_number(line['mean'])} after {line['update']}" for line in scores) or "–"


def _time_split(lines: Sequence[Line]) -> str:
    """Share of the seconds of updates and evaluations, the largest first; what no clock covers is `other`."""
    split: dict[str, float] = {}
    for line in lines:
        if line["kind"] not in ("update", "eval"):
            continue
        seconds = dict(line["machine"]["seconds"])
        total = seconds.pop("total", 0.0)
        rest = "evaluation" if line["kind"] == "eval" else "other"
        seconds[rest] = max(0.0, total - sum(seconds.values()))
        for name, value in seconds.items():
            split[name] = split.get(name, 0.0) + value
    whole = sum(split.values())
    if not whole:
        return "–"
    parts = sorted(split.items(), key=lambda part: -part[1])
    return f"{whole:.0f} s: " + " · ".join(f"{name} {value / whole:.0%}" for name, value in parts)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
