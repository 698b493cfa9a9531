"""Decision rewards: the record of one decision from the event counters around it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_app.core.rewards import decision_rewards, rewards_from_events
from task_app.core.types import DecisionRewards

names = st.sampled_from(("collect_wood", "place_table", "eat_cow", "wake_up"))
decisions = st.lists(st.lists(names, max_size=5), max_size=8)


def test_a_first_event_counts_in_both():
    record = decision_rewards(1, {}, {"collect_wood": 1})
    assert record == DecisionRewards(1, 1, 1, ("collect_wood",), ("collect_wood",))


def test_a_repeat_in_a_later_decision_counts_in_all_but_not_in_unique():
    record = decision_rewards(2, {"collect_wood": 1}, {"collect_wood": 2, "eat_cow": 1})
    assert record == DecisionRewards(2, 2, 1, ("collect_wood", "eat_cow"), ("eat_cow",))


def test_twice_within_one_decision_counts_once():
    record = decision_rewards(1, {"collect_wood": 0}, {"collect_wood": 2})
    assert record == DecisionRewards(1, 1, 1, ("collect_wood",), ("collect_wood",))


def test_lists_are_sorted_whatever_the_order_of_the_counters():
    record = decision_rewards(1, {}, {"wake_up": 1, "collect_wood": 1, "eat_cow": 3})
    assert record.all == record.unique == ("collect_wood", "eat_cow", "wake_up")


def test_nothing_rose():
    assert decision_rewards(3, {"eat_cow": 2}, {"eat_cow": 2}) == DecisionRewards(3, 0, 0, (), ())


@pytest.mark.parametrize("after", [{"wake_up": 1, "eat_cow": 1}, {"wake_up": 1}])
def test_a_counter_that_fell_or_vanished_raises_and_is_named(after):
    with pytest.raises(ValueError, match="decision 4: eat_cow$"):
        decision_rewards(4, {"eat_cow": 2}, after)


def test_an_episode_from_its_events():
    records = rewards_from_events([["collect_wood"], [], ["collect_wood", "collect_wood", "place_table"]])
    assert [(r.turn, r.ach_delta, r.unique_delta, r.all, r.unique) for r in records] == [
        (1, 1, 1, ("collect_wood",), ("collect_wood",)),
        (2, 0, 0, (), ()),
        (3, 2, 1, ("collect_wood", "place_table"), ("place_table",)),
    ]
    assert rewards_from_events([]) == []


@given(decisions)
def test_from_events_equals_running_counters(events):
    counts: Counter[str] = Counter()
    expected = []
    for turn, happened in enumerate(events, start=1):
        after = counts + Counter(happened)
        expected.append(decision_rewards(turn, counts, after))
        counts = after
    assert rewards_from_events(events) == expected


@given(decisions)
def test_unique_deltas_sum_to_the_number_of_different_events(events):
    records = rewards_from_events(events)
    assert sum(record.unique_delta for record in records) == len({name for happened in events for name in happened})
    assert all(set(record.unique) <= set(record.all) for record in records)
