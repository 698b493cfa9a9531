"""The step-reward flags: where they are written, what wins, what is refused."""

from __future__ import annotations

import pytest

from task_app.config.step_rewards import SHORT_NAMES, StepRewardSettings, from_request, resolve
from task_app.core.errors import ConfigError
from task_app.core.types import StepRewardFlags

EVERY_KEY = """
step_rewards_enabled = true
step_rewards_mode = "decision_stepwise"
event_rewards_kind = "absolute"
step_rewards_indicator_lambda = 0.5
step_rewards_beta = 0.25
step_rewards_horizon = "episode"
"""
EVERY_FLAG = StepRewardFlags("decision_stepwise", "absolute", 0.5, 0.25, "episode")


def test_nothing_written_pays_unique_events_per_decision(load):
    assert load("").step_rewards == StepRewardFlags("decision_stepwise", "unique", 0.0, 0.0, "configured")


@pytest.mark.parametrize("section", ["training", "rollout"])
def test_every_key_may_stand_in_either_section(load, section):
    assert load(f"[{section}]\n{EVERY_KEY}").step_rewards == EVERY_FLAG


def test_both_sections_may_say_the_same(load):
    assert load(f"[training]\n{EVERY_KEY}\n[rollout]\n{EVERY_KEY}").step_rewards == EVERY_FLAG


def test_each_section_may_say_a_part(load):
    text = "[training]\nevent_rewards_kind = 'absolute'\n[rollout]\nstep_rewards_beta = 0.25"
    assert load(text).step_rewards == StepRewardFlags(kind="absolute", beta=0.25)


@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("step_rewards_enabled", "true", "false"),
        ("step_rewards_mode", "'off'", "'env_sparse'"),
        ("event_rewards_kind", "'unique'", "'absolute'"),
        ("step_rewards_indicator_lambda", "0.0", "0.5"),
        ("step_rewards_beta", "0.1", "0.2"),
        ("step_rewards_horizon", "'configured'", "'episode'"),
    ],
)
def test_two_sections_that_differ_are_refused(load, key, first, second):
    with pytest.raises(ConfigError, match=f"{key} is .* under \\[training\\] and .* under \\[rollout\\]") as caught:
        load(f"[training]\n{key} = {first}\n[rollout]\n{key} = {second}")
    assert caught.value.field == f"training.{key}"


@pytest.mark.parametrize("mode", ["off", "decision_stepwise", "env_sparse"])
def test_not_enabled_is_off_whatever_the_mode(load, mode):
    text = f"[training]\nstep_rewards_enabled = false\nstep_rewards_mode = '{mode}'"
    assert load(text).step_rewards == StepRewardFlags(mode="off")


def test_enabled_does_not_overrule_off(load):
    assert load("[training]\nstep_rewards_enabled = true\nstep_rewards_mode = 'off'").step_rewards.mode == "off"


def test_another_mode_is_refused_with_the_list(load):
    with pytest.raises(ConfigError, match="'off', 'decision_stepwise' or 'env_sparse', got 'stepwise'"):
        load("[training]\nstep_rewards_mode = 'stepwise'")


@pytest.mark.parametrize("key", ["step_rewards_indicator_lambda", "step_rewards_beta"])
@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("step_rewards_mode = 'off'", "off"),
        ("step_rewards_mode = 'env_sparse'", "env_sparse"),
        ("step_rewards_enabled = false", "off"),
    ],
)
def test_lambda_and_beta_are_refused_where_they_would_do_nothing(load, written, mode, key):
    with pytest.raises(ConfigError, match=f"{key} = 0.5 has no effect in mode '{mode}'") as caught:
        load(f"[training]\n{written}\n{key} = 0.5")
    assert caught.value.field == f"training.{key}"
    load(f"[training]\n{written}\n{key} = 0.0")


def test_a_request_may_use_short_names_or_long_ones():
    short = {"enabled": True, "mode": "decision_stepwise", "kind": "absolute", "step_beta": 0.25}
    short |= {"indicator_lambda": 0.5, "horizon": "episode"}
    assert set(short) == set(SHORT_NAMES)
    assert set(SHORT_NAMES.values()) == set(StepRewardSettings.model_fields)
    assert resolve(from_request(short)) == EVERY_FLAG
    assert resolve(from_request({SHORT_NAMES[key]: value for key, value in short.items()})) == EVERY_FLAG


def test_a_request_may_not_use_both_names_of_a_key():
    with pytest.raises(ConfigError, match="sets step_rewards_mode twice") as caught:
        from_request({"mode": "off", "step_rewards_mode": "off"}, field="env.config.step_rewards")
    assert caught.value.field == "env.config.step_rewards.step_rewards_mode"


def test_an_unknown_key_of_a_request_is_left_for_the_model_to_refuse():
    assert from_request({"modus": "off"}) == {"modus": "off"}


def test_the_field_of_a_refusal_is_the_senders():
    with pytest.raises(ConfigError) as caught:
        resolve({"step_rewards_mode": "off", "step_rewards_beta": 1.0}, field="policy.config.step_rewards")
    assert caught.value.field == "policy.config.step_rewards.step_rewards_beta"
