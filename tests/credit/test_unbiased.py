"""Exact enumeration: over every group a small ragged world can produce, is the expected estimate the gradient?

The world: decide to stop or to go on; going on leads to a second choice, between a good and a bad end.

    stop           r = (1,)          go, bad    r = (.5, 0)          go, good    r = (.5, 2)

Two parameters, the log-odds of going on and of choosing well. The estimate of a group is the gradient
of the trainer's loss: Σ A·∇log π over its decisions, divided by members × a constant.
"""

import itertools
import math

import pytest

from task_app.credit import CreditSettings, GroupRewards, RunningBaseline, compute_advantages

GO, GOOD = 0.4, -0.3
TRAJECTORIES = ((1.0,), (0.5, 0.0), (0.5, 2.0))
MEMBERS = 3


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


P_GO, P_GOOD = sigmoid(GO), sigmoid(GOOD)
CHANCES = (1 - P_GO, P_GO * (1 - P_GOOD), P_GO * P_GOOD)
# ∂log π of each decision of each trajectory, with respect to its own log-odds
SCORES = ((-P_GO,), (1 - P_GO, -P_GOOD), (1 - P_GO, 1 - P_GOOD))


def true_gradient() -> tuple[float, float]:
    value_good = 0.5 + 2.0 * P_GOOD
    return P_GO * (1 - P_GO) * (value_good - 1.0), P_GO * P_GOOD * (1 - P_GOOD) * 2.0


def expected_estimate(advantages) -> tuple[float, float]:
    """E over all groups of (1/members)·Σ A·∇log π, by enumeration."""
    total = [0.0, 0.0]
    for group in itertools.product(range(3), repeat=MEMBERS):
        chance = math.prod(CHANCES[index] for index in group)
        values = advantages(tuple(TRAJECTORIES[index] for index in group))
        for index, row in zip(group, values, strict=True):
            for turn, (value, slope) in enumerate(zip(row, SCORES[index], strict=True)):
                total[turn] += chance * value * slope / MEMBERS
    return total[0], total[1]


def ratios(advantages) -> tuple[float, float]:
    truth, estimate = true_gradient(), expected_estimate(advantages)
    return estimate[0] / truth[0], estimate[1] / truth[1]


def ours(estimator: str, singleton: str = "running", earlier: float = 0.0):
    settings = CreditSettings(estimator, singleton=singleton)  # type: ignore[arg-type]

    def advantages(rewards):
        baseline = RunningBaseline()
        if earlier:
            baseline.update([GroupRewards("earlier", "task", ((0.0, earlier),))], settings)
        return compute_advantages([GroupRewards("g", "task", rewards)], settings, baseline).groups[0].advantages

    return advantages


def process_supervision(rewards):
    """Normalise every reward by the group's mean and deviation, then sum to go: biased, for comparison."""
    every = [value for row in rewards for value in row]
    middle = sum(every) / len(every)
    deviation = math.sqrt(sum((value - middle) ** 2 for value in every) / len(every)) or 1.0
    normalised = [[(value - middle) / deviation for value in row] for row in rewards]
    return [[sum(row[turn:]) for turn in range(len(row))] for row in normalised]


def test_the_enumeration_is_complete():
    assert sum(CHANCES) == pytest.approx(1)
    step = 1e-6
    values = [
        sum(chance * sum(row) for chance, row in zip((1 - g, g * (1 - w), g * w), TRAJECTORIES, strict=True))
        for g, w in ((sigmoid(GO + step), P_GOOD), (P_GO, sigmoid(GOOD + step)), (P_GO, P_GOOD))
    ]
    assert true_gradient() == pytest.approx([(values[0] - values[2]) / step, (values[1] - values[2]) / step], rel=1e-4)


@pytest.mark.parametrize(
    "advantages",
    [ours("return_loo"), ours("rtg_alive_loo", "raw"), ours("rtg_alive_loo"), ours("rtg_alive_loo", earlier=0.7)],
    ids=["return_loo", "raw", "running, first batch", "running, later batch"],
)
def test_unbiased(advantages):
    assert ratios(advantages) == pytest.approx((1.0, 1.0), abs=1e-9)


def test_zero_baseline_damps_decisions_reached_alone():
    first, second = ratios(ours("rtg_alive_loo", "zero"))
    assert first == pytest.approx(1.0, abs=1e-9)
    assert 0.5 < second < 0.95


def test_process_supervision_fails():
    first, second = ratios(process_supervision)
    assert abs(first / second - 1) > 0.2
    assert first < 0  # it is told to stop where going on pays


def test_dividing_by_the_groups_own_decisions_is_biased():
    """The normaliser matters: per-decision means weigh short groups more, and differently per decision."""

    def advantages(rewards):
        decisions = sum(map(len, rewards))
        return [[value * MEMBERS / decisions for value in row] for row in ours("return_loo")(rewards)]

    first, second = ratios(advantages)
    assert abs(first / second - 1) > 0.02
