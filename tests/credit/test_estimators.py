"""Every estimator against worked numbers, and the registry's refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from task_app.core.errors import ConfigError
from task_app.core.types import StepRewardFlags
from task_app.credit import (
    CreditSettings,
    GroupRewards,
    RunningBaseline,
    check_credit,
    compute_advantages,
    estimator_names,
    get_estimator,
    register,
)

ORACLES: dict[str, Any] = json.loads(Path(__file__).with_name("oracles.json").read_text())
MICRO = 5.1e-7  # the oracles have six decimals


def group(rewards: Any) -> GroupRewards:
    return GroupRewards("g", "task", tuple(tuple(map(float, row)) for row in rewards))


def advantages(rewards: Any, baseline: RunningBaseline | None = None, **settings: Any) -> list[list[float]]:
    result = compute_advantages([group(rewards)], CreditSettings(**settings), baseline or RunningBaseline())
    return [list(row) for row in result.groups[0].advantages]


def close(actual: list[list[float]], expected: list[list[float]]) -> bool:
    assert [len(row) for row in actual] == [len(row) for row in expected]
    rows = zip(actual, expected, strict=True)
    return all(abs(a - b) <= MICRO for one, two in rows for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(("name", "key"), [("return_loo", "rloo"), ("return_std", "grpo_sample_eps1e-4")])
def test_outcome_estimators_give_every_decision_its_episodes_number(name, key):
    rewards = ORACLES["group"]["r"]
    expected = [[value] * len(row) for value, row in zip(ORACLES["outcome"][key], rewards, strict=True)]
    assert close(advantages(rewards, estimator=name), expected)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("rtg_alive_loo", {"singleton": "zero"}),
        ("rtg_alive_loo_raw", {"singleton": "raw"}),
        ("rtg_alive_loo_g0.9", {"gamma": 0.9}),
    ],
)
def test_return_to_go_against_members_still_alive(key, settings):
    assert close(advantages(ORACLES["group"]["r"], estimator="rtg_alive_loo", **settings), ORACLES[key])


@pytest.mark.parametrize("key", ["stop_go_extra_turn_worth_1", "stop_go_extra_turn_worth_0"])
def test_going_on_is_credited_with_what_it_is_worth(key):
    assert close(advantages(ORACLES[key]["r"]), ORACLES[key]["rtg_alive_loo"])


@pytest.mark.parametrize("singleton", ["zero", "raw"])
def test_lone_survivor_without_history(singleton):
    oracle = ORACLES["lone_survivor"]
    assert close(advantages(oracle["r"], singleton=singleton), oracle[f"rtg_alive_loo_{singleton}"])


def test_lone_survivor_against_earlier_batches():
    oracle = ORACLES["lone_survivor"]
    baseline = RunningBaseline()
    baseline.update([group([[0.2, 0.8]])], CreditSettings())  # b = [1.0, 0.8]
    assert close(advantages(oracle["r"], baseline), oracle["rtg_alive_loo_running_b=[1.0,0.8]"])


def test_running_equals_raw_before_any_batch():
    rewards = ORACLES["lone_survivor"]["r"]
    assert advantages(rewards, singleton="running") == advantages(rewards, singleton="raw")


def test_a_member_without_decisions_has_return_zero_and_no_advantages():
    assert advantages([[2.0], []], estimator="return_loo") == [[2.0], []]
    assert advantages([[2.0], []], estimator="rtg_alive_loo") == [[2.0], []]


def test_unknown_estimator_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"unknown estimator 'gae' \(known: .*return_loo.*rtg_alive_loo") as caught:
        get_estimator("gae")
    assert caught.value.field == "training.credit.estimator"
    assert {"return_loo", "return_std", "rtg_alive_loo"} <= set(estimator_names())


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register("return_loo", return_to_go=False, smallest_group=2)(get_estimator("return_loo").compute)


@pytest.mark.parametrize("name", ["return_loo", "return_std"])
def test_groups_of_one_have_nothing_to_compare(name):
    with pytest.raises(ConfigError, match="2 or more, got 1"):
        check_credit(CreditSettings(name), StepRewardFlags(), 1)
    check_credit(CreditSettings(name), StepRewardFlags(), 2)


def test_realised_horizon_is_refused_where_return_to_go_cannot_see_it():
    flags = StepRewardFlags(beta=0.1, horizon="episode")
    with pytest.raises(ConfigError, match="horizon 'configured'"):
        check_credit(CreditSettings("rtg_alive_loo"), flags, 8)
    check_credit(CreditSettings("return_loo"), flags, 8)
    check_credit(CreditSettings("rtg_alive_loo"), StepRewardFlags(beta=0.1), 8)
    check_credit(CreditSettings("rtg_alive_loo"), StepRewardFlags(horizon="episode"), 1)
