"""Means, intervals and summaries, against hand-worked numbers."""

from __future__ import annotations

import pytest

from task_app.analyze.stats import Mean, mean_interval, summarise


def test_interval_of_four_values():
    # mean 3, sample deviation sqrt(20/3) = 2.58199, standard error 1.29099, t(.975, 3) = 3.18245 → ± 4.1085
    found = mean_interval([0.0, 2.0, 4.0, 6.0])
    assert found.n == 4
    assert found.mean == 3
    assert found.low == pytest.approx(-1.1085, abs=0.01)
    assert found.high == pytest.approx(7.1085, abs=0.01)


@pytest.mark.parametrize(
    ("n", "quantile"), [(2, 12.7062), (3, 4.3027), (4, 3.1824), (6, 2.5706), (11, 2.2281), (31, 2.0423), (64, 1.9983)]
)
def test_student_quantiles_are_those_of_the_tables(n, quantile):
    values = [0.0] * (n - 1) + [float(n)]
    found = mean_interval(values)
    assert found.mean is not None
    assert found.high is not None
    # n − 1 zeros and one n: mean 1, deviation sqrt(n), standard error 1.
    assert found.high - found.mean == pytest.approx(quantile, abs=0.004)


def test_too_few_values_have_no_interval():
    assert mean_interval([]) == Mean(0, None, None, None)
    assert mean_interval([2.0]) == Mean(1, 2.0, None, None)
    assert (str(mean_interval([])), str(mean_interval([2.0]))) == ("–", "2.00")


def test_summary_is_the_sum_of_its_episodes(play_scripted):
    episodes = play_scripted(range(2), 2, policy="expert", max_decisions=10)
    found = summarise(episodes)
    assert (found.episodes, found.rewarded) == (4, 4)
    assert found.outcome.mean == sum(e.outcome for e in episodes) / 4
    records = [d.rewards for e in episodes for d in e.decisions]
    assert found.unique_delta_sum == sum(r.unique_delta for r in records)
    assert found.ach_delta_sum == sum(r.ach_delta for r in records)
    first_turn = [r.unique_delta for r in records if r.turn == 1]
    assert found.by_turn[1][1] == sum(first_turn) / 4
    woods = sum("collect_wood" in e.event_counts for e in episodes)
    assert found.event_shares.get("collect_wood", 0.0) == woods / 4


def test_a_failed_episode_is_counted_but_never_scored(play_scripted):
    from dataclasses import replace

    good, bad = play_scripted(range(1), 2, policy="expert", max_decisions=4)
    bad = replace(bad, status="infra_error", cause="endpoint down", outcome=None, truncated=False)
    found = summarise([good, bad])
    assert (found.episodes, found.rewarded, found.outcome.n) == (2, 1, 1)
    assert found.outcome.mean == good.outcome
    assert found.statuses == {"infra_error": 1, "truncated": 1}
