"""Crafter as a task app: outcome, status, facts of a seed, words, and its options."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from task_app.apps.crafter import APP
from task_app.apps.crafter.engine.protocol import encode_state
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ACHIEVEMENTS, ACTIONS, ITEM_MAX
from task_app.core.errors import EnvError
from task_app.core.task import TaskSpec, TurnContext
from tests.apps.crafter.engine.scenes import lay, meadow

OPTIONS = CrafterOptions()


def test_the_outcome_counts_different_achievements(make_view):
    assert APP.outcome(make_view()) == 0.0
    assert APP.outcome(make_view(done={"collect_wood": 7, "wake_up": 1})) == 2.0
    assert APP.outcome(make_view(done=dict.fromkeys(ACHIEVEMENTS, 1))) == 22.0


def test_two_unlocks_in_one_step_are_two_though_the_game_pays_once():
    env: Any = APP.make_env(OPTIONS)
    env.reset(0)
    env._engine.load(encode_state(lay(meadow(sleeping=1), "tree", (32, 33))))
    result = env.step("do")
    assert APP.outcome(result.observation) == 2.0
    assert (len(result.events), result.reward) == (2, 1.0)


def test_status_fields_hold_counts_and_the_boolean_map(make_view):
    fields = APP.status_fields(make_view(items={"wood": 3}, done={"collect_wood": 2}))
    assert set(fields) == {"inventory", "achievements", "achievements_status"}
    assert (fields["inventory"]["wood"], set(fields["inventory"])) == (3, set(ITEM_MAX))
    assert fields["achievements"]["collect_wood"] == 2
    assert fields["achievements_status"]["collect_wood"] is True
    assert fields["achievements_status"]["wake_up"] is False
    assert set(fields["achievements_status"]) == set(ACHIEVEMENTS)


def test_facts_of_a_seed_come_from_its_world():
    first, second = APP.seed_info(1, OPTIONS), APP.seed_info(2, OPTIONS)
    assert first == APP.seed_info(1, OPTIONS) != second
    assert first["tree"]["tiles"] > 0


def test_a_picture_shows_the_world_as_it_is_now():
    env = APP.make_env(OPTIONS)
    with pytest.raises(EnvError, match="reset"):
        APP.picture(env)
    env.reset(0)
    before = APP.picture(env)
    env.step("move_left")
    after = APP.picture(env)
    assert before is not None
    assert after is not None
    assert (before.media_type, Image.open(io.BytesIO(before.data)).size) == ("image/png", (144, 144))
    assert before.data != after.data


def test_the_vocabulary_holds_answers_too_and_each_word_once():
    words = APP.vocabulary(OPTIONS)
    assert {*ACTIONS, "interact_many", "end"} <= set(words)
    assert len(set(words)) == len(words)
    assert not any(" " in word for word in words)


def test_the_options_reach_the_world_and_the_text(make_view):
    env = APP.make_env(CrafterOptions(max_steps=1, night_draws="none"))
    env.reset(0)
    assert env.step("noop").truncated
    (part,) = APP.observe(make_view(), (), TurnContext(2, 9, {}), OPTIONS)
    assert part["type"] == "text"
    assert part["text"].startswith("decisions left 8\n")


@pytest.mark.parametrize(
    "wrong",
    [
        {"history_calls": -1},
        {"history_calls": 51},
        {"history_clip": 19},
        {"max_steps": 0},
        {"max_steps": 10_001},
        {"max_steps": True},
        {"night_draws": "some"},
        {"difficulty": "hard"},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        CrafterOptions.model_validate(wrong)


@pytest.mark.parametrize(
    "other",
    [
        {"min_actions_per_decision": 5},
        {"max_actions_per_decision": 6},
        {"history_calls": 2},
        {"history_clip": 161},
        {"max_steps": 9_999},
        {"night_draws": "none"},
    ],
    ids=str,
)
def test_every_option_is_part_of_the_prompts_identity(other):
    assert TaskSpec(APP, CrafterOptions(**other)).prompt_hash != TaskSpec(APP, OPTIONS).prompt_hash
