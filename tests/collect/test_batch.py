"""Batches: a group is complete or dropped with a reason, and every metric is counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task_app.collect import build_batch, measure, outcome_is_unique_events
from task_app.core.types import StepRewardFlags, TaskRef

FLAGS = StepRewardFlags()
CRAFTER = TaskRef("crafter", "1", {}, 7)


@pytest.fixture
def pair(five):
    """A complete group of two in the wrong order; member 1 unlocked nothing."""
    empty = five(member=1, outcome=0.0)
    bare = tuple(replace(d, steps=(), rewards=replace(d.rewards, ach_delta=0, unique_delta=0)) for d in empty.decisions)
    return [replace(empty, decisions=bare[:3]), five()]


def test_members_and_groups_come_in_order(pair):
    later = [replace(episode, group_id="h", episode_id="later") for episode in pair]
    batch = build_batch([*later, *pair], FLAGS, 2)
    assert [group.group_id for group in batch.groups] == ["g", "h"]
    assert [member.episode.member for member in batch.groups[0].members] == [0, 1]
    assert [member.rewards for member in batch.groups[0].members] == [(1, 1, 0, 0, 1), (0, 0, 0)]
    assert batch.groups[0].seed == 7
    assert batch.dropped == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: [e[1]], "members 0 are not 0 to 1"),
        (lambda e: [e[0]], "members 1 are not 0 to 1"),
        (lambda e: [*e, e[1]], "members 0, 0, 1 are not 0 to 1"),
        (lambda e: [*e, replace(e[1], member=2)], "members 0, 1, 2 are not 0 to 1"),
        (
            lambda e: [e[1], replace(e[0], status="infra_error", cause="gone", outcome=None)],
            "member 1 ended in infra_error: gone",
        ),
        (
            lambda e: [e[1], replace(e[0], status="aborted", cause="late", outcome=None)],
            "member 1 ended in aborted: late",
        ),
        (lambda e: [e[1], replace(e[0], task=replace(e[0].task, seed=8))], "members differ in seed"),
        (lambda e: [e[1], replace(e[0], prompt_hash="x")], "members differ in seed, prompt hash or policy version"),
        (lambda e: [e[1], replace(e[0], policy="x")], "members differ in"),
        (lambda e: [e[1], replace(e[0], policy_version="2")], "members differ in"),
    ],
    ids=[
        "one missing",
        "first missing",
        "one twice",
        "one too many",
        "infrastructure",
        "aborted",
        "seeds",
        "prompts",
        "policies",
        "versions",
    ],
)
def test_any_other_group_is_dropped_whole_with_its_reason(pair, five, change, reason):
    good = [five(group_id="other", member=member) for member in (0, 1)]
    batch = build_batch([*change(pair), *good], FLAGS, 2)
    assert [group.group_id for group in batch.groups] == ["other"]
    assert list(batch.dropped) == ["g"]
    assert batch.dropped["g"].startswith(reason)
    assert batch.metrics.episodes == 2


def test_broken_records_raise_instead_of_being_dropped(pair):
    whole = pair[1]
    decisions = (*whole.decisions[:4], replace(whole.decisions[4], rewards=None))
    with pytest.raises(ValueError, match="no decision record for turn 5"):
        build_batch([pair[0], replace(whole, decisions=decisions)], FLAGS, 2)


def test_stepwise_metrics_counted_by_hand(pair):
    metrics = build_batch(pair, StepRewardFlags(indicator_lambda=0.5), 2).metrics
    assert (metrics.mode, metrics.kind, metrics.indicator_lambda) == ("decision_stepwise", "unique", 0.5)
    assert (metrics.beta, metrics.horizon) == (0.0, "configured")
    assert (metrics.episodes, metrics.decisions) == (2, 8)
    assert metrics.reward_sum == 4.5  # 1.5 at turns 1, 2 and 5 of one episode
    assert (metrics.ach_delta_sum, metrics.unique_delta_sum) == (6, 3)
    assert metrics.decisions_with_unique == 3
    assert (metrics.episodes_with_event, metrics.episode_event_share, metrics.has_event_reward) == (1, 0.5, True)
    assert (metrics.recomputed_episodes, metrics.misaligned) == (0, 0)
    assert metrics.by_turn == {1: (1.5, 1, 1), 2: (1.5, 2, 1), 3: (0, 0, 0), 4: (0, 1, 0), 5: (1.5, 2, 1)}
    assert list(metrics.by_turn) == [1, 2, 3, 4, 5]


def test_sparse_metrics_sum_the_steps(pair):
    metrics = build_batch(pair, StepRewardFlags(mode="env_sparse"), 2).metrics
    assert metrics.reward_sum == pytest.approx(1.0 - 0.1 + 1.0 + 0.1 + 0.9)
    assert metrics.by_turn[2] == (pytest.approx(0.9), 2, 1)
    assert metrics.episodes_with_event == 1


def test_off_pays_no_event_reward_and_compares_nothing(pair):
    pair[1] = replace(pair[1], outcome=99.0, task=CRAFTER)
    metrics = build_batch(pair, StepRewardFlags(mode="off"), 2).metrics
    assert (metrics.reward_sum, metrics.episodes_with_event, metrics.has_event_reward) == (99.0, 0, False)
    assert metrics.misaligned == 0
    assert metrics.unique_delta_sum == 3  # a fact of the environment, told in every mode


def test_an_outcome_beside_its_records_is_counted(pair):
    pair = [replace(episode, task=CRAFTER) for episode in pair]
    assert build_batch(pair, FLAGS, 2).metrics.misaligned == 0
    pair[1] = replace(pair[1], outcome=4.0)  # its records say 3
    assert build_batch(pair, FLAGS, 2).metrics.misaligned == 1


def test_only_an_app_whose_outcome_counts_unique_events_is_compared(pair):
    pair[1] = replace(pair[1], outcome=4.0)  # the app `toy` is not installed, so nobody says what its outcome is
    assert build_batch(pair, FLAGS, 2).metrics.misaligned == 0
    assert build_batch(pair, FLAGS, 2, unique_outcome=True).metrics.misaligned == 1
    crafter = [replace(episode, task=CRAFTER) for episode in pair]
    assert build_batch(crafter, FLAGS, 2, unique_outcome=False).metrics.misaligned == 0


def test_crafter_says_that_its_outcome_counts_unique_events():
    assert outcome_is_unique_events("crafter")
    assert not outcome_is_unique_events("toy")


def test_an_episode_without_records_has_nothing_to_compare(five):
    metrics = measure([five(records=False, outcome=99.0, task=CRAFTER)], FLAGS)
    assert (metrics.misaligned, metrics.recomputed_episodes) == (0, 1)


def test_an_empty_batch_has_zeros():
    metrics = build_batch([], FLAGS, 2).metrics
    assert (metrics.episodes, metrics.reward_sum, metrics.episode_event_share, metrics.by_turn) == (0, 0.0, 0.0, {})
    assert not metrics.has_event_reward


def test_an_episode_without_decisions_is_counted_and_earns_nothing(make_episode):
    metrics = measure([make_episode([])], FLAGS)
    assert (metrics.episodes, metrics.decisions, metrics.reward_sum, metrics.episodes_with_event) == (1, 0, 0.0, 0)


def test_measure_takes_every_rewarded_episode_whatever_its_group(five):
    failed = five(status="infra_error", outcome=None)
    assert measure([five(), five(member=5), failed], FLAGS).episodes == 2
