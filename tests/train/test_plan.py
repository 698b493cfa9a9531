"""What is refused before any work, and which settings may change on resume."""

import pytest

from task_app.core.errors import ConfigError
from task_app.train.plan import check_config, config_json, credit_settings, differing_keys, update_seeds, warnings


def test_updates_take_consecutive_worlds(config_in, tmp_path):
    config = config_in(tmp_path, rollout__seeds="10:40", training__groups_per_update=4)
    assert [update_seeds(config, update) for update in (1, 2, 3)] == [range(10, 14), range(14, 18), range(18, 22)]


def test_too_few_worlds_are_refused(config_in, tmp_path):
    config = config_in(tmp_path, rollout__seeds="10:15")
    with pytest.raises(ConfigError, match='holds 5 worlds, but 3 updates of 2 groups need 6; write "10:16"') as caught:
        check_config(config)
    assert caught.value.field == "rollout.seeds"
    check_config(config_in(tmp_path, rollout__seeds="10:16"))


@pytest.mark.parametrize(("held_out", "overlap"), [("99:105", True), ("0:1", True), ("100:106", False)])
def test_held_out_worlds_must_be_held_out(config_in, tmp_path, held_out, overlap):
    config = config_in(tmp_path, eval__seeds=held_out)
    if not overlap:
        check_config(config)
        return
    with pytest.raises(ConfigError, match="overlap") as caught:
        check_config(config)
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
