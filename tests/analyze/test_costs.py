"""Costs by hand: tokens per million, latency per hour, and what cannot be known."""

from __future__ import annotations

import pytest

from task_app.analyze.costs import Cost, cost_of
from task_app.config.models import PriceSection


def cost(price, **changes):
    facts = {"prompt_tokens": 3_000_000, "completion_tokens": 500_000, "latency_s": 1800.0, "episodes": 4, "unlocks": 8}
    return cost_of(PriceSection(**price), **(facts | changes))


def test_tokens_and_time_add_up():
    # 3 M × 2 + .5 M × 8 = 10; half an hour × 4 = 2
    assert cost({"input": 2.0, "output": 8.0, "gpu_hour": 4.0}) == Cost(12.0, 10.0, 2.0, 3.0, 1.5)


@pytest.mark.parametrize(
    ("price", "total"), [({"input": 2.0}, 6.0), ({"output": 8.0}, 4.0), ({"gpu_hour": 4.0}, 2.0), ({"input": 0.0}, 0.0)]
)
def test_each_key_alone(price, total):
    assert cost(price).total == total


def test_a_priced_count_that_is_unknown_makes_the_cost_unknown():
    unknown = cost({"input": 2.0, "gpu_hour": 4.0}, prompt_tokens=None)
    assert (unknown.total, unknown.tokens, unknown.gpu) == (None, None, 2.0)
    assert (unknown.per_episode, unknown.per_achievement) == (None, None)
    assert cost({"output": 8.0}, prompt_tokens=None).total == 4.0


def test_nothing_unlocked_or_played_has_no_price_each():
    found = cost({"input": 2.0}, unlocks=0)
    assert (found.per_episode, found.per_achievement) == (1.5, None)
    assert cost({"input": 2.0}, episodes=0).per_episode is None
