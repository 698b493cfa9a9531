"""Reward vectors, each mode worked out by hand on the five decisions of `conftest.five`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from task_app.collect import reward_vector
from task_app.core.types import DecisionRewards, Episode, StepRewardFlags

OFF = StepRewardFlags(mode="off")
SPARSE = StepRewardFlags(mode="env_sparse")


def with_records(episode: Episode, records: list[DecisionRewards | None]) -> Episode:
    """The episode with other stored decision records."""
    decisions = (replace(d, rewards=r) for d, r in zip(episode.decisions, records, strict=True))
    return replace(episode, decisions=tuple(decisions))


class TestOff:
    def test_everything_is_at_the_last_decision(self, five):
        vector = reward_vector(five(), OFF)
        assert vector.values == vector.decisions == (0.0, 0.0, 0.0, 0.0, 3.0)
        assert vector.source == "outcome"

    def test_no_record_is_looked_at(self, five):
        episode = five()
        broken = with_records(episode, [DecisionRewards(99, -5, 7, (), ())] * 5)
        assert reward_vector(broken, OFF) == reward_vector(episode, OFF)

    def test_one_decision(self, make_episode):
        assert reward_vector(make_episode([[(1.0, ["wood"])]]), OFF).values == (1.0,)


class TestDecisionStepwise:
    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            # UniqueΔ 1 1 0 0 1, AchΔ 1 2 0 1 2: they differ at turns 2, 4 and 5, where wood repeats
            ({}, (1, 1, 0, 0, 1)),
            ({"kind": "absolute"}, (1, 2, 0, 1, 2)),
            # lambda only where UniqueΔ > 0: turns 1, 2, 5
            ({"indicator_lambda": 0.5}, (1.5, 1.5, 0, 0, 1.5)),
            ({"kind": "absolute", "indicator_lambda": 0.5}, (1.5, 2.5, 0, 1, 2.5)),
            # beta · (T − t) at t = 0, 1, 4: T = 20 gives 20, 19, 16; T = 5 gives 5, 4, 1
            ({"beta": 0.25}, (6, 5.75, 0, 0, 5)),
            ({"beta": 0.25, "horizon": "episode"}, (2.25, 2, 0, 0, 1.25)),
            ({"kind": "absolute", "beta": 0.25, "horizon": "episode"}, (2.25, 3, 0, 1, 2.25)),
            ({"indicator_lambda": 0.5, "beta": 0.25}, (6.5, 6.25, 0, 0, 5.5)),
            (
                {"kind": "absolute", "indicator_lambda": 0.5, "beta": 0.25, "horizon": "episode"},
                (2.75, 3.5, 0, 1, 2.75),
            ),
        ],
        ids=str,
    )
    def test_worked_vectors(self, five, flags, expected):
        vector = reward_vector(five(), StepRewardFlags(**flags))
        assert vector.values == vector.decisions == expected
        assert vector.source == "records"
        assert all(isinstance(value, float) for value in vector.values)

    def test_the_stored_record_decides_not_the_events(self, five):
        episode = five()
        records = [d.rewards for d in episode.decisions]
        records[2] = DecisionRewards(3, 4, 2, (), ())
        assert reward_vector(with_records(episode, records), StepRewardFlags()).values == (1, 1, 2, 0, 1)

    @pytest.mark.parametrize("flags", [{}, {"kind": "absolute"}, {"indicator_lambda": 0.5, "beta": 0.25}], ids=str)
    def test_without_records_the_same_comes_from_the_events(self, five, flags):
        recorded = reward_vector(five(), StepRewardFlags(**flags))
        recomputed = reward_vector(five(records=False), StepRewardFlags(**flags))
        assert recomputed.values == recorded.values
        assert (recorded.source, recomputed.source) == ("records", "events")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({2: 2}, "two decision records for turn 2"),
            ({2: 0}, "record for turn 0, but the episode has turns 1 to 5"),
            ({2: 6}, "record for turn 6, but the episode has turns 1 to 5"),
            ({2: None}, "no decision record for turn 3"),
            ({4: None}, "no decision record for turn 5"),
        ],
        ids=["duplicate", "zero", "beyond", "missing", "last missing"],
    )
    def test_broken_turns_raise(self, five, changes: dict[int, Any], message):
        episode = five()
        records: list[DecisionRewards | None] = [d.rewards for d in episode.decisions]
        for index, turn in changes.items():
            record = records[index]
            assert record is not None
            records[index] = None if turn is None else replace(record, turn=turn)
        with pytest.raises(ValueError, match=message):
            reward_vector(with_records(episode, records), StepRewardFlags())


class TestEnvSparse:
    def test_one_number_per_step_and_the_sum_per_decision(self, five):
        vector = reward_vector(five(), SPARSE)
        assert vector.values == (1.0, -0.1, 1.0, 0.1, 0.0, 0.9)
        assert vector.decisions == pytest.approx((1.0, 0.9, 0.0, 0.1, 0.9))
        assert sum(vector.values) == pytest.approx(sum(vector.decisions))
        assert vector.source == "steps"

    def test_records_make_no_difference(self, five):
        assert reward_vector(five(records=False), SPARSE) == reward_vector(five(), SPARSE)

    def test_a_decision_without_steps_earns_zero(self, make_episode):
        vector = reward_vector(make_episode([[], []]), SPARSE)
        assert vector.values == ()
        assert vector.decisions == (0.0, 0.0)


@pytest.mark.parametrize("flags", [OFF, StepRewardFlags(beta=1.0), SPARSE], ids=lambda flags: flags.mode)
def test_an_episode_without_a_decision_has_no_rewards(make_episode, flags):
    vector = reward_vector(make_episode([]), flags)
    assert vector.values == vector.decisions == ()


@pytest.mark.parametrize("flags", [OFF, StepRewardFlags(), SPARSE], ids=lambda flags: flags.mode)
@pytest.mark.parametrize("status", ["infra_error", "aborted"])
def test_a_failed_episode_never_gets_a_number(five, flags, status):
    with pytest.raises(ValueError, match=f"episode ep has status {status} and carries no reward"):
        reward_vector(five(status=status, outcome=None), flags)


def test_an_unknown_mode_is_refused_with_the_list(five):
    flags = replace(StepRewardFlags(), mode="stepwise")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'stepwise'; modes: off, decision_stepwise, env_sparse"):
        reward_vector(five(), flags)
