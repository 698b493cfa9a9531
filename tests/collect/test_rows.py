"""From a database to JSON lines: the same bytes every time, `off` blind to decision records, nothing silent."""

from __future__ import annotations

import json
import sqlite3

import pytest

from task_app.collect import collect_rows, measure
from task_app.core.errors import StoreError
from task_app.core.types import StepRewardFlags
from task_app.store import TraceStore

OFF = StepRewardFlags(mode="off")


@pytest.fixture
def database(tmp_path, five):
    """Write episodes to a database; gives a function that reads a mode's lines from it."""
    path = tmp_path / "t.db"

    def write(*episodes) -> None:
        with TraceStore.open(path) as store:
            for episode in episodes:
                store.write_episode(episode)

    def lines(flags: StepRewardFlags) -> list[str]:
        with TraceStore.open(path, read_only=True) as store:
            return list(collect_rows(store.episodes(records=flags.mode != "off"), flags))

    def spoil(sql: str) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(sql)
        connection.close()

    write.lines, write.spoil = lines, spoil
    return write


def test_a_line_holds_the_episode_and_its_rewards(five):
    (line,) = collect_rows([five(update=3)], StepRewardFlags(kind="absolute"))
    assert json.loads(line) == {
        "run_id": "run",
        "update": 3,
        "group_id": "g",
        "member": 0,
        "episode_id": "ep",
        "seed": 7,
        "status": "truncated",
        "mode": "decision_stepwise",
        "decisions": 5,
        "outcome": 3.0,
        "rewards": [1.0, 2.0, 0.0, 1.0, 2.0],
        "return": 6.0,
    }


def test_sparse_lines_have_a_number_per_step(five):
    (line,) = collect_rows([five()], StepRewardFlags(mode="env_sparse"))
    assert json.loads(line)["rewards"] == [1.0, -0.1, 1.0, 0.1, 0.0, 0.9]


def test_an_empty_episode_has_an_empty_line_of_rewards(make_episode):
    (line,) = collect_rows([make_episode([])], OFF)
    assert '"rewards": [], "return": 0.0' in line


def test_failed_episodes_have_no_line(five):
    episodes = [five(status="infra_error", outcome=None), five(status="aborted", outcome=None)]
    assert list(collect_rows(episodes, OFF)) == []


@pytest.mark.parametrize("mode", ["off", "decision_stepwise", "env_sparse"])
def test_collecting_twice_gives_the_same_bytes(database, play_scripted, mode):
    database(*play_scripted(range(2), 2, max_decisions=10))
    flags = StepRewardFlags(mode=mode)
    first = database.lines(flags)
    assert first == database.lines(flags)
    assert len(first) == 4


def test_a_real_database_recorded_without_records_is_recomputed_and_says_so(database, play_scripted):
    recorded = list(collect_rows(play_scripted(range(3), 1, max_decisions=20), StepRewardFlags()))
    database(*play_scripted(range(3), 1, max_decisions=20, flags=OFF))
    recomputed = [json.loads(line) for line in database.lines(StepRewardFlags())]
    assert all(row.pop("recomputed") for row in recomputed)
    assert recomputed == [json.loads(line) for line in recorded]
    assert sum(row["return"] for row in recomputed) > 0


GARBAGE = {
    "another turn": "INSERT INTO decision_rewards SELECT id, 77, 1, 1, '[]', '[]' FROM episodes",
    "not JSON": "UPDATE decision_rewards SET all_events = '{{'",
    "not a list": "UPDATE decision_rewards SET all_events = '5'",
    "no number": "UPDATE decision_rewards SET unique_delta = 'many'",
    "a number of another type": "UPDATE decision_rewards SET unique_events = x'00ff'",
    "one missing": "DELETE FROM decision_rewards WHERE turn = 2",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_off_reads_no_decision_record_even_where_they_are_garbage(database, five, garbage):
    database(five())
    before = database.lines(OFF)
    database.spoil(garbage)
    assert database.lines(OFF) == before
    with pytest.raises((StoreError, ValueError)):
        database.lines(StepRewardFlags())


def test_metrics_say_how_many_were_recomputed(five):
    assert measure([five(records=False), five()], StepRewardFlags()).recomputed_episodes == 1
