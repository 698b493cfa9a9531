"""How varied a policy's actions are: shares, different actions per episode, windows, and repeated cycles.

Pure: names of actions in, numbers out. It judges nothing (that is `guards`) and knows no rewards. "Three in a row" is
no test of diversity: a policy that alternates two actions for ever never does anything three times in a row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CHANCE", "WINDOWS", "Behaviour", "cycle_steps", "measure_behaviour", "window_entropy"]

WINDOWS = range(6, 13)
"""Widths of the windows that are looked at, in actions."""

CHANCE = 1000
"""A window counts as a cycle only when even play over the action set would make it less than once in this many."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Of a set of episodes; None where no episode had enough actions to say.

    actions         name → share of all actions, the commonest `top` of them, ties by name
    unique_actions  different actions per episode, mean
    window_entropy  mean over windows and episodes, 0 (one action) to 1 (as even as the width allows)
    cycle_steps     share of all actions that lie in a repeated cycle
    cycling         share of episodes at least half of whose actions do
    """

    actions: dict[str, float]
    unique_actions: float | None
    window_entropy: float | None
    cycle_steps: float | None
    cycling: float | None


def measure_behaviour(episodes: Sequence[Sequence[str]], known_actions: int, *, top: int) -> Behaviour:
    """Measure episodes given as their actions in order; `known_actions` is how many the task has."""
    played = [actions for actions in episodes if actions]
    counts = Counter(name for actions in played for name in actions)
    total = counts.total()
    commonest = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:top]
    entropies = [entropy for actions in played if (entropy := window_entropy(actions, known_actions)) is not None]
    cycling = [(cycle_steps(actions, known_actions), len(actions)) for actions in played if len(actions) >= WINDOWS[0]]
    return Behaviour(
        actions={name: count / total for name, count in commonest},
        unique_actions=_mean([len(set(actions)) for actions in played]),
        window_entropy=_mean(entropies),
        cycle_steps=sum(steps for steps, _ in cycling) / sum(length for _, length in cycling) if cycling else None,
        cycling=_mean([2 * steps >= length for steps, length in cycling]),
    )


def window_entropy(actions: Sequence[str], known_actions: int) -> float | None:
    """Mean over all windows of all widths of the window's entropy over ln(min(width, known actions)).

    Entropy is −Σ p ln p of the actions' shares inside the window. None below the smallest width.
    """
    values: list[float] = []
    for width in WINDOWS:
        most = math.log(max(2, min(width, known_actions)))
        counts: Counter[str] = Counter()
        weight = 0.0  # Σ c ln c, kept up to date as the window slides: the entropy is ln width − weight / width
        for index, name in enumerate(actions):
            weight += _step(counts, name, +1)
            if index >= width:
                weight += _step(counts, actions[index - width], -1)
            if index >= width - 1:
                values.append(max(0.0, math.log(width) - weight / width) / most)
    return _mean(values)


def _step(counts: Counter[str], name: str, change: int) -> float:
    """Change one count; by how much Σ c ln c changes."""
    before = counts[name]
    counts[name] = after = before + change
    return _weight(after) - _weight(before)


def _weight(count: int) -> float:
    return count * math.log(count) if count > 1 else 0.0


def cycle_steps(actions: Sequence[str], known_actions: int) -> int:
    """How many of the actions lie in a window of 6 to 12 that repeats a cycle of n actions, n at most half of it.

    A cycle of n fills a window of w by chance with probability known_actions^(n − w); windows in which that is not
    below 1 / CHANCE prove nothing and do not count, so with few actions only longer windows do.
    """
    covered = bytearray(len(actions))
    for period in range(1, WINDOWS[-1] // 2 + 1):
        start = 0
        for index in range(period, len(actions) + 1):
            if index < len(actions) and actions[index] == actions[index - period]:
                continue
            # actions[start:index] has the period as far as it goes; the next stretch begins after the break.
            width = min(index - start, WINDOWS[-1])
            if width >= max(WINDOWS[0], 2 * period) and max(2, known_actions) ** (width - period) >= CHANCE:
                covered[start:index] = b"\x01" * (index - start)
            start = index - period + 1
    return sum(covered)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
