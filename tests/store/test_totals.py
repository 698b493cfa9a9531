"""Totals and views: equal to what the typed record and the collector say, for new and for migrated files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import fsum

import pytest
from sqlite_utils import Database

from task_app.collect import reward_vector
from task_app.core.types import StepRewardFlags
from task_app.store import TraceStore
from task_app.store.migrations import apply_migrations
from task_app.store.schema import APPLICATION_ID
from task_app.store.totals import totals_of
from tests.known_traces import known_episodes, write_known

FLAGS = [
    StepRewardFlags("off"),
    StepRewardFlags("env_sparse"),
    *(
        StepRewardFlags("decision_stepwise", kind, lam, beta, horizon)
        for kind, (lam, beta), horizon in itertools.product(
            ("unique", "absolute"), ((0.0, 0.0), (0.5, 0.25)), ("configured", "episode")
        )
    ),
]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_return_in_sql_is_the_collectors(store, play_scripted, flags):
    played = play_scripted(range(2), 2, policy="expert", max_decisions=6, flags=flags)
    known = [replace(e, flags=flags, decisions=_without_records(e)) for e in known_episodes()]
    for episode in (*played, *known):
        store.write_episode(episode)
    returns = dict(store.query("SELECT episode_id, episode_return FROM episode_summaries"))
    expected = {e.episode_id: reward_vector(e, flags).total if e.rewarded else None for e in (*played, *known)}
    assert returns == pytest.approx(expected)


def _without_records(episode):
    return tuple(replace(decision, rewards=None) for decision in episode.decisions)


def test_an_episode_without_decisions_has_no_return_to_speak_of(store, make_episode):
    store.write_episode(make_episode(decisions=(), outcome=5.0))
    assert store.query("SELECT episode_return FROM episode_summaries")[0][0] == 0.0


def test_totals_by_hand():
    by_id = {episode.episode_id: totals_of(episode) for episode in known_episodes()}
    assert by_id["night-1a"] == {
        "model": "gpt-4o-mini",
        "decision_count": 3,
        "step_count": 6,
        "parse_failures": 0,
        "environment_return": 2.0,
        "ach_delta": 3,
        "unique_delta": 2,
        "unique_decisions": 2,
        "unique_index_sum": 2,
        "prompt_tokens": 300,
        "completion_tokens": 30,
        "latency_s": 1.5,
    }
    assert by_id["day-1"]["parse_failures"] == 1
    assert by_id["day-1"]["step_count"] == 2
    assert by_id["base-1"]["prompt_tokens"] is None
    assert by_id["night-2a"]["environment_return"] == pytest.approx(2.9)


def test_event_rewards_have_the_names_clients_know(store):
    write_known(store)
    rows = store.query(
        """SELECT turn, step, name, value FROM event_rewards JOIN episodes ON episodes.id = episode
           WHERE episode_id = 'night-1a' AND value <> 0 ORDER BY name, turn"""
    )
    assert [tuple(row) for row in rows] == [
        (1, None, "achievement_delta", 1.0),
        (3, None, "achievement_delta", 2.0),
        (1, 1, "collect_wood", 1.0),
        (3, 5, "place_table", 1.0),
        (1, 1, "sparse", 1.0),
        (3, 5, "sparse", 1.0),
        (1, None, "unique_achievement_delta", 1.0),
        (3, None, "unique_achievement_delta", 1.0),
    ]
    off = store.query(
        "SELECT DISTINCT name FROM event_rewards JOIN episodes ON episodes.id = episode WHERE episode_id = 'base-2'"
    )
    assert {row[0] for row in off} == {"sparse", "collect_wood"}  # no record, no row of its deltas


def test_an_older_database_gets_its_totals_when_it_is_opened(path):
    """Take a new file back to the first version, keeping its facts, and open it again."""
    with TraceStore.open(path) as store:
        write_known(store)
        expected = _totals(store)
    db = Database(path)
    for view in ("episode_summaries", "event_rewards"):
        db.execute(f"DROP VIEW {view}")
    for index in ("events_by_name", "episodes_listed"):
        db.execute(f"DROP INDEX {index}")
    for column in totals_of(known_episodes()[0]):
        db.execute(f"ALTER TABLE episodes DROP COLUMN {column}")
    db.execute("DELETE FROM _sqlite_migrations WHERE name = '0002_totals'")
    db.conn.commit()
    db.close()
    with TraceStore.open(path) as store:
        assert _totals(store) == expected


def _totals(store):
    columns = ", ".join(totals_of(known_episodes()[0]))
    rows = store.query(f"SELECT {columns}, episode_return FROM episode_summaries ORDER BY id")
    return [tuple(row) for row in rows]


def test_the_first_schema_is_what_it_was(tmp_path):
    """A released migration is never edited: the older file still opens because its tables are these."""
    db = Database(tmp_path / "old.db")
    apply_migrations(db.conn, stop_before="0002_totals")
    assert db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    assert "decision_count" not in {column.name for column in db["episodes"].columns}
    db.close()


def test_environment_return_is_summed_exactly(play_scripted):
    (episode,) = play_scripted(range(1), 1)
    assert totals_of(episode)["environment_return"] == fsum(step.reward for step in episode.steps)
