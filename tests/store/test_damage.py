"""Damage is found and named, each kind of it, and a whole episode has none."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from task_app.store import TraceStore
from task_app.store.damage import DamageCheck


@pytest.fixture
def damaged(path, make_episode):
    """What the check says of an episode with tokens after some statements."""
    with TraceStore.open(path) as store:
        store.write_episode(make_episode("e1", tokens=True))
        store.write_episode(make_episode("e2"))

    def after(*statements: str) -> str:
        with closing(sqlite3.connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            for statement in statements:
                assert connection.execute(statement).rowcount > 0
            connection.commit()
            return DamageCheck(connection).of(1)

    return after


def test_a_whole_episode_has_none(damaged):
    assert damaged() == ""


def test_damage_of_another_episode_is_its_own(damaged):
    assert damaged("DELETE FROM steps WHERE episode = 2 AND step = 0") == ""


# The episode: turn 1 has steps 0, 1, 2 with events eat wake | – | eat; turn 2 did not parse.
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE steps SET reward = 'x' WHERE episode = 1 AND step = 1",
         "steps.reward holds a value of type str, float or int is stored there"),
        ("UPDATE episodes SET max_decisions = 'many' WHERE id = 1",
         "episodes.max_decisions holds a value of type str, int is stored there"),
        ("UPDATE decisions SET prompt_tokens = 'few' WHERE episode = 1 AND turn = 1",
         "decisions.prompt_tokens holds a value of type str, NoneType or int is stored there"),
        ("UPDATE steps SET terminated = 2 WHERE episode = 1 AND step = 2",
         "steps.terminated holds 2, 0 or 1 is stored there"),
        ("UPDATE episodes SET truncated = -1 WHERE id = 1", "episodes.truncated holds -1, 0 or 1 is stored there"),
        ("DELETE FROM decisions WHERE episode = 1 AND turn = 1", "turn 1 is missing, 2 stands in its place"),
        ("DELETE FROM decisions WHERE episode = 1 AND turn = 2",
         "decision_rewards has a row of turn 2, the episode has 1 decisions"),
        ("UPDATE decision_tokens SET turn = 3 WHERE episode = 1",
         "decision_tokens has a row of turn 3, the episode has 2 decisions"),
        ("UPDATE steps SET turn = 0 WHERE episode = 1 AND step = 0",
         "steps has a row of turn 0, the episode has 2 decisions"),
        ("DELETE FROM steps WHERE episode = 1 AND step = 1", "step 1 is missing, 2 stands in its place"),
        ("UPDATE steps SET turn = 2 WHERE episode = 1 AND step = 1",
         "step 2 belongs to turn 1, the step before it to turn 2"),
        ("UPDATE events SET step = 9 WHERE episode = 1 AND step = 2",
         "event 'eat' belongs to step 9, which the episode does not have"),
        ("UPDATE events SET turn = 2 WHERE episode = 1 AND step = 2",
         "event 'eat' of step 2 is stored under turn 2, the step's is 1"),
        ("UPDATE events SET ordinal = 1 WHERE episode = 1 AND step = 2",
         "step 2: event 0 is missing, 1 stands in its place"),
        ("UPDATE decisions SET prompt = '7' WHERE episode = 1 AND turn = 2",
         "turn 2: the prompt is no list of message ids"),
        ("UPDATE decisions SET prompt = '[1,\"2\"]' WHERE episode = 1 AND turn = 2",
         "turn 2: the prompt is no list of message ids"),
        ("UPDATE decisions SET prompt = '[1,77]' WHERE episode = 1 AND turn = 2", "turn 2: message 77 is missing"),
        ("UPDATE messages SET message = replace(message, 'water', 'lava') WHERE message LIKE '%water%'",
         "turn 1: the text of message 2 is not the one its hash was made of"),
        ("UPDATE messages SET role = 'assistant' WHERE id = 2",
         "turn 1: message 2 is stored under role 'assistant', it says otherwise"),
        ("UPDATE messages SET message = '[]', hash = '4f53cda18c2baa0c0354bb5f9a3ecbe5' WHERE id = 2",
         "turn 1: message 2 is no JSON object"),
        ("UPDATE tool_sets SET tools = '[]'", "row 1 of tool_sets is not what its hash was made of"),
        ("DELETE FROM tool_sets", "row 1 of tool_sets is missing"),
        ("UPDATE token_prefixes SET ids = x'00000000'", "row 1 of token_prefixes is not what its hash was made of"),
    ],
)  # fmt: skip
def test_each_damage_is_named(damaged, statement, said):
    assert damaged(statement) == said


def test_broken_json_is_raised(damaged):
    with pytest.raises(ValueError, match="Expecting"):
        damaged("UPDATE decisions SET prompt = '[' WHERE episode = 1 AND turn = 2")
