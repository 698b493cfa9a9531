"""What is refused before any work, and which settings may change on resume."""

import pytest

from task_app.core.errors import ConfigError
from task_app.train.plan import (
    before_changes,
    changed_values,
    check_config,
    config_json,
    credit_settings,
    differing_keys,
    update_seeds,
    warnings,
)


def test_updates_take_consecutive_worlds(config_in, tmp_path):
    config = config_in(tmp_path, rollout__seeds="10:40", training__groups_per_update=4)
    assert [update_seeds(config, update) for update in (1, 2, 3)] == [range(10, 14), range(14, 18), range(18, 22)]


def test_too_few_worlds_are_refused(config_in, tmp_path):
    config = config_in(tmp_path, rollout__seeds="10:15")
    with pytest.raises(ConfigError, match='holds 5 worlds, but 3 updates of 2 groups need 6; write "10:16"') as caught:
        check_config(config)
    assert caught.value.field == "rollout.seeds"
    check_config(config_in(tmp_path, rollout__seeds="10:16"))


@pytest.mark.parametrize(
    ("worlds", "overlap"), [("999990:1000001", True), ("1000005:1000020", True), ("999990:1000000", False)]
)
def test_held_out_worlds_must_be_held_out(config_in, tmp_path, worlds, overlap):
    config = config_in(tmp_path, rollout__seeds=worlds)
    if not overlap:
        check_config(config)
        return
    with pytest.raises(ConfigError, match="overlap") as caught:
        check_config(config)
    assert caught.value.field == "eval.seeds"


def test_low_seeds_are_no_held_out_worlds(config_in, tmp_path):
    with pytest.raises(ConfigError, match="held-out worlds have seeds of 1000000 and more") as caught:
        config_in(tmp_path, eval__seeds="999999:1000006")
    assert caught.value.field == "eval.seeds"


def test_credit_is_checked_too(config_in, tmp_path):
    config = config_in(tmp_path, training__credit__estimator="gae")
    with pytest.raises(ConfigError, match="unknown estimator 'gae'"):
        check_config(config)
    assert credit_settings(config_in(tmp_path, training__step_rewards_mode="off")).mode == "off"


def test_small_groups_warn(config_in, tmp_path):
    assert warnings(config_in(tmp_path)) == []
    assert "group_size is 7" in warnings(config_in(tmp_path, rollout__group_size=7))[0]


def test_what_may_change_between_two_starts(config_in, tmp_path):
    first = config_json(config_in(tmp_path))
    longer = config_in(tmp_path / "moved", rollout__trace_db=str(tmp_path / "traces.db"), training__updates=9,
                       rollout__seeds="0:200", eval__every=2, server__port=1, policy__model="m",
                       prices__m__input=1.0)  # fmt: skip
    assert differing_keys(first, config_json(longer)) == []
    changes = {"training__learning_rate": 0.5, "training__credit__gamma": 0.9, "policy__temperature": 2.0}
    other = config_in(tmp_path, seed=3, **changes)
    assert differing_keys(first, config_json(other)) == [
        "policy.temperature",
        "seed",
        "training.credit.gamma",
        "training.learning_rate",
    ]


def test_named_keys_may_change_and_their_values_are_told(config_in, tmp_path):
    changes = {"training__learning_rate": 0.5, "training__updates": 9, "policy__temperature": 2.0}
    first, second = config_json(config_in(tmp_path)), config_json(config_in(tmp_path, **changes))
    allowed = ["training.learning_rate"]
    assert differing_keys(first, second, allowed) == ["policy.temperature"]
    told = changed_values(first, second)
    assert told == {
        "policy.temperature": [1.0, 2.0],
        "training.learning_rate": [0.01, 0.5],
        "training.updates": [3, 9],
    }
    assert before_changes(second, [told]) == first
    assert (
        before_changes(second, [{"training.updates": [1, 2]}, {"training.updates": [2, 3]}])["training"]["updates"] == 1
    )


def test_a_misspelt_allowance_is_refused(config_in, tmp_path):
    config = config_in(tmp_path, training__allow_changed=["training.learning_rat"])
    with pytest.raises(ConfigError, match="did you mean 'training.learning_rate'") as caught:
        check_config(config)
    assert caught.value.field == "training.allow_changed"
    check_config(config_in(tmp_path, training__allow_changed=["training.credit.gamma", "task.options.anything"]))
