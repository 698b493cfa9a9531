"""Figures against their targets: which are missed, and the table that says so. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from task_app.cli.output import print_table

__all__ = ["Targets", "misses", "print_figures"]

Targets = Mapping[str, tuple[str, float]]
"""Figure → ">=" or "<=", and the number."""


def misses(figures: Mapping[str, Any], targets: Targets) -> list[str]:
    """The targets that are missed."""
    return [
        name
        for name, (sign, target) in targets.items()
        if (figures[name] < target if sign == ">=" else figures[name] > target)
    ]


def print_figures(title: str, figures: Mapping[str, Any], targets: Targets, missed: list[str]) -> None:
    """A row for every figure that is one number or word."""
    rows = [
        (name, value, " ".join(map(str, targets.get(name, ()))), "missed" if name in missed else "")
        for name, value in figures.items()
        if not isinstance(value, list)
    ]
    print_table(title, ("figure", "value", "target", ""), rows)
