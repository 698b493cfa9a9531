"""What was written is what is read, and what SQL finds is what was written."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from task_app.core.errors import StoreError
from task_app.core.types import AssistantMessage, Completion, ToolCall
from task_app.store import TraceStore


@pytest.mark.parametrize("tokens", [False, True], ids=["without tokens", "with tokens"])
def test_an_episode_comes_back_equal(store, make_episode, tokens):
    episode = make_episode(tokens=tokens, update=4)
    store.write_episode(episode)
    assert store.episode("e1") == episode
    assert list(store.episodes()) == [episode]


def test_a_played_episode_comes_back_equal_from_another_connection(path, store, play_scripted):
    episodes = play_scripted(range(2), 2, max_decisions=6, history_calls=2)
    for episode in episodes:
        store.write_episode(episode)
    with TraceStore.open(path, read_only=True) as reader:
        assert list(reader.episodes()) == episodes


def test_an_episode_without_decisions_or_tools_comes_back_equal(store, make_episode):
    episode = make_episode(
        decisions=(), tools=(), status="infra_error", cause="no world", outcome=None, truncated=False
    )
    store.write_episode(episode)
    assert store.episode("e1") == episode


@pytest.mark.parametrize(
    ("status", "cause", "outcome"),
    [
        ("ok", "terminated", 3.0),
        ("truncated", "max_steps", 1.9),
        ("infra_error", "model endpoint h: HTTP 502", None),
        ("aborted", "interrupted", None),
    ],
)
def test_every_status_is_kept_with_its_cause(store, make_episode, status, cause, outcome):
    flags = {"terminated": status == "ok", "truncated": status == "truncated"}
    store.write_episode(make_episode(status=status, cause=cause, outcome=outcome, **flags))
    read = store.episode("e1")
    assert (read.status, read.cause, read.outcome) == (status, cause, outcome)
    (row,) = store.query("SELECT status, cause, outcome FROM episodes")
    assert tuple(row) == (status, cause, outcome)


def test_text_no_utf8_can_hold_is_kept_as_said(store, make_episode):
    episode = make_episode()
    said = AssistantMessage("half \ud83d of a pair", (ToolCall("go", '"\ud800"', "call_0"),))
    first = replace(episode.decisions[0], completion=Completion(said, "c1"))
    episode = replace(episode, decisions=(first, episode.decisions[1]))
    store.write_episode(episode)
    assert store.episode("e1") == episode


def test_causes_and_details_no_utf8_can_hold_are_kept_readable(store, make_episode):
    episode = make_episode(status="infra_error", outcome=None, cause="endpoint said \udc80")
    store.write_episode(episode)
    assert store.episode("e1").cause == "endpoint said \\udc80"


def test_records_are_not_read_when_not_asked_for(store, make_episode):
    store.write_episode(make_episode())
    (episode,) = store.episodes(records=False)
    assert [decision.rewards for decision in episode.decisions] == [None, None]
    assert episode == replace(
        make_episode(), decisions=tuple(replace(d, rewards=None) for d in make_episode().decisions)
    )


def test_episodes_are_found_by_id_and_by_the_beginning_of_one_id(store, make_episode):
    for episode_id in ("abc1", "abd2", "ab"):
        store.write_episode(make_episode(episode_id))
    assert store.episode("abc").episode_id == "abc1"
    assert store.episode("ab").episode_id == "ab"
    with pytest.raises(StoreError, match="3 episodes in .* begin with 'a'; give more of the id"):
        store.episode("a")
    with pytest.raises(StoreError, match="no episode 'x'"):
        store.episode("x")
    with pytest.raises(StoreError, match="no episode '%'"):
        store.episode("%")


def test_reading_goes_by_run_update_group_and_member_not_by_row(store, make_episode):
    places = [
        ("b", 1, "g", 0),
        ("a", 2, "g", 0),
        ("a", 1, "h", 0),
        ("a", 1, "g", 1),
        ("a", 1, "g", 0),
        ("a", None, "g", 0),
    ]
    for index, (run_id, update, group_id, member) in enumerate(places):
        store.write_episode(make_episode(str(index), run_id=run_id, update=update, group_id=group_id, member=member))
    read = [(e.run_id, e.update, e.group_id, e.member) for e in store.episodes()]
    assert read == sorted(places, key=lambda place: (place[0], place[1] or 0, place[2], place[3]))
    assert [e.episode_id for e in store.episodes(run_id="a", update=1)] == ["4", "3", "2"]


def test_episodes_are_filtered_by_policy(store, make_episode):
    store.write_episode(make_episode("1", policy="random"))
    store.write_episode(make_episode("2", policy="expert"))
    assert [e.episode_id for e in store.episodes(policy="expert")] == ["2"]


class TestInterning:
    def test_a_system_prompt_a_tool_set_and_a_token_prefix_are_stored_once(self, store, make_episode):
        for index in range(5):
            store.write_episode(make_episode(str(index), tokens=True))
        assert store.query("SELECT count(*) FROM messages WHERE role = 'system'")[0][0] == 1
        assert store.query("SELECT count(*) FROM messages")[0][0] == 5  # system, two users, two answers
        assert store.query("SELECT count(*) FROM tool_sets")[0][0] == 1
        assert store.query("SELECT count(*) FROM token_prefixes")[0][0] == 1

    def test_only_the_part_after_the_prefix_is_stored_per_decision(self, store, make_episode):
        store.write_episode(make_episode(tokens=True))
        row = store.query("SELECT * FROM decision_tokens")[0]
        assert row["prompt_ids"] == b"\x04\0\0\0\x05\0\0\0"
        assert row["completion_ids"] == b"\x01\0\0\0\x02\0\0\0\x03\0\0\0"
        assert row["logprobs"] == b"\0\0\0\0\0\0\0\xbf\0\0\xa0\xbf"
        assert row["mask"] == b"\0\x01\x01"


def test_aggregates_are_plain_sql(path, store, make_episode):
    store.write_episode(make_episode("1"))
    store.write_episode(make_episode("2", member=1, outcome=4.5))
    plain = sqlite3.connect(path)  # any SQLite client will do
    for sql, expected in {
        "SELECT sum(ach_delta), sum(unique_delta) FROM decision_rewards": (4, 4),
        "SELECT round(sum(reward), 9) FROM steps": (2.0,),
        "SELECT avg(outcome) FROM episodes WHERE run_id = 'run'": (3.25,),
        "SELECT count(*) FROM decisions WHERE failure_reason = 'no_call'": (2,),
        "SELECT count(*), count(DISTINCT name) FROM events": (6, 2),
        "SELECT max(step), turn FROM events WHERE name = 'eat'": (2, 1),
        "SELECT sum(unique_delta) FROM decision_rewards WHERE turn = 2": (0,),
        "SELECT count(*) FROM decisions, json_each(decisions.prompt)": (8,),
    }.items():
        assert plain.execute(sql).fetchone() == expected, sql
    plain.close()


class TestTraining:
    def test_the_latest_advantages_are_told(self, store, make_episode):
        store.write_episode(make_episode())
        store.write_advantages("run", 1, {"e1": [0.5, -0.25]})
        store.write_advantages("run", 2, {"e1": [1.5, -1.25]})
        assert store.advantages("e1") == {1: 1.5, 2: -1.25}
        assert store.advantages("other") == {}

    def test_advantages_of_an_unknown_episode_leave_none_of_the_others(self, store, make_episode):
        store.write_episode(make_episode())
        with pytest.raises(StoreError, match="no episode 'nope'"):
            store.write_advantages("run", 1, {"e1": [0.5, 0.5], "nope": [1.0]})
        assert store.advantages("e1") == {}

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_an_advantage_that_is_no_number_is_refused(self, store, make_episode, value):
        store.write_episode(make_episode())
        with pytest.raises(StoreError, match="was not written"):
            store.write_advantages("run", 1, {"e1": [0.5, value]})
        assert store.advantages("e1") == {}

    def test_superseded_episodes_leave_the_reading_but_stay_in_the_file(self, store, make_episode):
        for update in (1, 2, 3, None):
            store.write_episode(make_episode(f"u{update}", update=update))
        store.write_episode(make_episode("other", run_id="other", update=3))
        for update in (1, 2):
            store.write_advantages("run", update, {f"u{update}": [1.0, 1.0]})
        assert store.supersede("run", 2) == 2
        assert store.supersede("run", 2) == 0
        assert [e.episode_id for e in store.episodes()] == ["other", "uNone", "u1"]
        assert store.episode("u3").update == 3
        assert store.advantages("u2") == {}
        assert store.advantages("u1") == {1: 1.0, 2: 1.0}


def test_a_run_keeps_its_first_config(store):
    store.write_run("r", "train", {"seed": 1})
    store.write_run("r", "train", {"seed": 2})
    (row,) = store.query("SELECT run_id, command, config FROM runs")
    assert tuple(row) == ("r", "train", '{"seed": 1}')


def test_a_wrong_statement_and_a_closed_store_are_store_errors(store):
    with pytest.raises(StoreError, match="no such table: nope"):
        store.query("SELECT * FROM nope")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.query("SELECT 1")
