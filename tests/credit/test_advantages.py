"""Batches: zero variance, scale, statistics, and that the baseline is read before it is updated."""

import math
from typing import Any

import pytest

from task_app.credit import CreditSettings, GroupRewards, RunningBaseline, compute_advantages

ALL = ("return_loo", "return_std", "rtg_alive_loo")
SCALES = ("none", "group_rms", "batch_rms")


def batch(*groups: Any) -> list[GroupRewards]:
    return [
        GroupRewards(f"g{index}", "task", tuple(tuple(map(float, row)) for row in rows))
        for index, rows in enumerate(groups)
    ]


def credit(groups: list[GroupRewards], **settings: Any):
    return compute_advantages(groups, CreditSettings(**settings), RunningBaseline())


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("value", [0.0, 0.35, 1e7 + 0.1])
def test_equal_answers_give_exactly_zero(estimator, scale, value):
    result = credit(batch([[value, 0.1]] * 8), estimator=estimator, scale=scale)
    assert result.groups[0].zero_variance
    assert {number for row in result.groups[0].advantages for number in row} == {0.0}
    assert all(math.copysign(1, number) == 1 for row in result.groups[0].advantages for number in row)
    assert all(map(math.isfinite, result.statistics.values()))


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("scale", SCALES)
def test_one_better_answer_among_equals_is_not_blown_up(estimator, scale):
    """Seven times .35 and once .95: dividing by what rounding leaves of a spread once gave 3692."""
    result = credit(batch([[0.35]] * 7 + [[0.95]]), estimator=estimator, scale=scale)
    values = [row[0] for row in result.groups[0].advantages]
    assert values[7] == max(values) > 0 > min(values)
    assert max(map(abs, values)) < 3
    if estimator != "return_std" and scale == "none":
        assert values == pytest.approx([-0.6 / 7] * 7 + [0.6])


def test_stepwise_signal_survives_equal_returns():
    """Both earn 1 in all, one at once and one at the end: only the return-to-go tells them apart."""
    groups = batch([[1, 0], [0, 1]])
    assert credit(groups, estimator="return_loo").groups[0].zero_variance
    stepwise = credit(groups, estimator="rtg_alive_loo").groups[0]
    assert stepwise.advantages == ((0.0, -1.0), (0.0, 1.0))
    assert not stepwise.zero_variance


def test_tolerance_grows_with_the_returns():
    near = batch([[1e6], [1e6 + 0.4]])
    for scale in SCALES:
        flat = credit(near, estimator="return_loo", scale=scale).groups[0]
        assert flat.zero_variance
        assert flat.advantages == ((0.0,), (0.0,)), "what is within the tolerance is rounding, and is not scaled up"
    assert not credit(batch([[1.0], [1.4]]), estimator="return_loo").groups[0].zero_variance


def test_scales_by_hand():
    """Advantages ±1 and ±3: each group has its own root mean square, the batch has √5."""
    groups = batch([[0], [1]], [[0], [3]])
    assert credit(groups, estimator="return_loo").groups[1].advantages == ((-3.0,), (3.0,))
    for one in credit(groups, estimator="return_loo", scale="group_rms").groups:
        assert one.advantages == ((-1.0,), (1.0,))
    scaled = credit(groups, estimator="return_loo", scale="batch_rms")
    assert scaled.groups[0].advantages[1][0] == pytest.approx(1 / math.sqrt(5))
    assert scaled.groups[1].advantages[1][0] == pytest.approx(3 / math.sqrt(5))
    assert scaled.statistics["adv/rms_unscaled"] == pytest.approx(math.sqrt(5))
    assert scaled.statistics["adv/rms"] == pytest.approx(1)


def test_a_tiny_spread_is_not_blown_up_to_unit_size():
    values = credit(batch([[0.0], [1e-5]]), estimator="return_loo", scale="group_rms").groups[0].advantages
    assert values[1][0] == pytest.approx(1e-5 / 1e-3)


def test_statistics_by_hand():
    groups = batch([[0], [0]], [[4], [4]], [[1, 1], [0]])
    statistics = credit(groups, singleton="raw").statistics
    # Group means 0, 4, 1; the batch's is 5/3, so one still group lies below it and one above.
    assert statistics["adv/zero_variance_groups"] == 2
    assert (statistics["adv/zero_variance_low"], statistics["adv/zero_variance_high"]) == (1, 1)
    # The third group: (2, 1) and (0): advantages 2 and −2, and a lone 1 at turn 2.
    assert statistics["adv/singleton_frac"] == pytest.approx(1 / 7)
    assert statistics["adv/decisions"] == 7
    assert statistics["adv/abs_max"] == 2
    assert statistics["adv/mean"] == pytest.approx(1 / 7)


@pytest.mark.parametrize(("value", "high"), [(0.0, 0), (1.0, 2)])
def test_where_the_whole_batch_agrees_the_sign_decides(value, high):
    statistics = credit(batch([[value]] * 2, [[value]] * 2), estimator="return_loo").statistics
    assert (statistics["adv/zero_variance_high"], statistics["adv/zero_variance_low"]) == (high, 2 - high)


def test_an_empty_batch_and_an_empty_group():
    for scale in SCALES:
        assert credit([], scale=scale).statistics["adv/decisions"] == 0
        result = credit(batch([[], []]), scale=scale)
        assert result.groups[0].advantages == ((), ())
        assert result.statistics["adv/singleton_frac"] == 0
    assert credit([GroupRewards("g", "task", ())]).groups[0].advantages == ()


def test_the_baseline_is_read_before_it_learns_of_the_batch():
    baseline = RunningBaseline()
    groups = batch([[0, 5], [0]])
    first = compute_advantages(groups, CreditSettings(), baseline)
    second = compute_advantages(groups, CreditSettings(), baseline)
    assert first.groups[0].advantages[0][1] == 5.0
    assert second.groups[0].advantages[0][1] == 0.0  # 5 − b, b = 5 from the first batch
