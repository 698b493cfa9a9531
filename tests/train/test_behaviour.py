"""Cycles are flagged and even play is not, in windows of 6 to 12; entropies against hand and brute force."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from task_app.train.behaviour import CHANCE, WINDOWS, cycle_steps, measure_behaviour, window_entropy

SEVENTEEN = [f"action_{index}" for index in range(17)]


def repeated(cycle: str, length: int) -> str:
    return (cycle * length)[:length]


@pytest.mark.parametrize("width", WINDOWS)
@pytest.mark.parametrize("cycle", ["A", "AB", "ABC", "AAB"])
def test_cycles_of_one_to_three_are_flagged_in_every_width(cycle, width):
    assert cycle_steps(repeated(cycle, width), 17) == width
    measured = measure_behaviour([repeated(cycle, width)], 17, top=3)
    assert (measured.cycle_steps, measured.cycling) == (1.0, 1.0)


@pytest.mark.parametrize("cycle", ["ABCD", "ABCDE", "ABCDEF"])
def test_longer_cycles_need_two_whole_rounds(cycle):
    assert cycle_steps(repeated(cycle, 2 * len(cycle)), 17) == 2 * len(cycle)
    assert cycle_steps(repeated(cycle, 2 * len(cycle) - 1), 17) == 0


def test_a_rule_of_three_in_a_row_would_miss_them():
    """The rule this replaces: it sees the first of the four and none of the others."""

    def three_in_a_row(actions: str) -> bool:
        return any(actions[index] * 3 == actions[index : index + 3] for index in range(len(actions)))

    played = ["AAAAAA", "ABABAB", "ABCABC", "AABAAB"]
    assert [three_in_a_row(actions) for actions in played] == [True, False, False, False]
    assert [cycle_steps(actions, 17) for actions in played] == [6, 6, 6, 6]


@pytest.mark.parametrize("known", [2, 3, 5, 17])
def test_even_play_is_not_flagged(known):
    """Over 1000 seeds of 100 actions: no episode called cycling, under 2 % of all actions inside a cycle; of 12
    actions, under 1 % of episodes called cycling."""
    episodes = []
    for seed in range(1000):
        draw = random.Random(seed)
        episodes.append([SEVENTEEN[draw.randrange(known)] for _ in range(100)])
    measured = measure_behaviour(episodes, known, top=1)
    assert measured.cycling == 0
    assert measured.cycle_steps is not None
    assert measured.cycle_steps < 0.02
    short = measure_behaviour([actions[:12] for actions in episodes], known, top=1)
    assert short.cycling is not None
    assert short.cycling < 0.01
    assert measured.window_entropy is not None
    assert measured.window_entropy > 0.6


def test_short_windows_prove_nothing_with_few_actions():
    """ABABAB of two actions comes about once in sixteen; without the chance rule it would be flagged."""
    assert CHANCE > 2 ** (6 - 2)
    assert cycle_steps("ABABAB", 2) == 0
    assert cycle_steps(repeated("AB", 12), 2) == 12


def test_cycles_inside_other_play_are_found_where_they_are():
    before, after = SEVENTEEN[:5], SEVENTEEN[5:12]
    assert cycle_steps([*before, *"ABABABAB", *after], 17) == 8
    assert measure_behaviour([[*before, *"ABABABAB", *after]], 17, top=1).cycling == 0
    assert measure_behaviour([[*before, *"ABABABAB"]], 17, top=1).cycling == 1


def test_cycle_steps_equal_the_definition():
    """Against the windows looked at one by one."""
    draw = random.Random(3)
    for _ in range(200):
        known = draw.choice([3, 17])
        actions = [draw.choice("AB" if draw.random() < 0.7 else "ABC") for _ in range(draw.randrange(30))]
        covered: set[int] = set()
        for width in WINDOWS:
            for start in range(len(actions) - width + 1):
                window = actions[start : start + width]
                for period in range(1, width // 2 + 1):
                    repeats = all(window[index] == window[index - period] for index in range(period, width))
                    if repeats and known ** (width - period) >= CHANCE:
                        covered |= set(range(start, start + width))
        assert cycle_steps(actions, known) == len(covered)


def test_window_entropy_equals_the_definition():
    draw = random.Random(0)
    actions = [draw.choice("ABCDE") for _ in range(40)]
    values = []
    for width in WINDOWS:
        for start in range(len(actions) - width + 1):
            shares = [count / width for count in Counter(actions[start : start + width]).values()]
            values.append(-math.fsum(p * math.log(p) for p in shares) / math.log(min(width, 5)))
    assert window_entropy(actions, 5) == pytest.approx(math.fsum(values) / len(values), abs=1e-12)


def test_window_entropy_of_the_ends():
    assert window_entropy("A" * 20, 17) == 0
    assert window_entropy("ABCDEF", 17) == pytest.approx(1.0)
    assert window_entropy("ABABAB", 17) == pytest.approx(math.log(2) / math.log(6))
    assert window_entropy("ABCDE", 17) is None


def test_histogram_and_different_actions():
    measured = measure_behaviour(["AAAB", "ABCC", ""], 17, top=2)
    assert measured.actions == {"A": 0.5, "B": 0.25}  # B before C, which is as common
    assert measured.unique_actions == 2.5
    assert (measured.window_entropy, measured.cycle_steps, measured.cycling) == (None, None, None)


def test_no_actions_give_no_numbers():
    nothing = measure_behaviour([[], []], 17, top=2)
    assert nothing.actions == {}
    assert (nothing.unique_actions, nothing.window_entropy, nothing.cycling) == (None, None, None)
