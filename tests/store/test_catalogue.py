"""The catalogue names everything the schema has; datasette's queries give hand-counted answers."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from task_app.core.errors import ConfigError, StoreError
from task_app.store import TraceStore
from task_app.store.catalogue import CATALOGUE
from task_app.store.datasette import QUERIES, metadata_for, write_metadata
from task_app.store.describe import describe_database
from task_app.store.migrations import apply_migrations
from task_app.store.schema import APPLICATION_ID, STATEMENTS
from tests.known_traces import write_known

DOC = (Path(__file__).parents[2] / "docs/trace_databases.md").read_text(encoding="utf-8")


@pytest.fixture
def known(path):
    with TraceStore.open(path) as store:
        write_known(store)
    return path


def test_every_table_view_and_column_has_its_sentence(store):
    real = {
        row["name"]: (row["type"], [column["name"] for column in store.query(f"PRAGMA table_info({row['name']})")])
        for row in store.query("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')")
    }
    assert {name: (told.kind, list(told.columns)) for name, told in CATALOGUE.items()} == real
    for told in CATALOGUE.values():
        assert told.meaning.endswith(".")
        assert all(column.meaning and not column.meaning.endswith(".") for column in told.columns.values())


def test_the_page_says_the_same():
    """docs/trace_databases.md has a section per table and view, with a row per column."""
    sections = dict(re.findall(r"^### `(\w+)`\n\n(.*?)(?=^##|\Z)", DOC, re.MULTILINE | re.DOTALL))
    assert list(sections) == [name for name in CATALOGUE if not name.startswith("_")]
    for name, text in sections.items():
        told = CATALOGUE[name]
        rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in re.findall(r"^\|.*", text, re.M)]
        assert text.startswith(f"{told.meaning}\n"), name
        assert rows[2:] == [(f"`{column}`", about.unit, about.meaning) for column, about in told.columns.items()], name


def test_the_page_names_every_query():
    for name, query in QUERIES.items():
        assert f"| `{name}` | {query.description} |" in DOC


def test_rows_size_and_migrations_of_known_traces(known):
    facts = describe_database(known)
    rows = {relation.name: relation.rows for relation in facts.relations}
    assert rows == {
        "runs": 3,
        "episodes": 8,
        "decisions": 19,
        "decision_rewards": 17,  # base-2 has none
        "steps": 36,  # two for each decision but the unreadable one
        "events": 13,
        "decision_tokens": 0,
        "advantages": 3,
        "messages": 27,  # a system prompt, 19 questions; answers: 4 of chat by turn, 2 of random, 1 unreadable
        "tool_sets": 1,
        "token_prefixes": 0,
        "_sqlite_migrations": len(STATEMENTS),
        "episode_summaries": None,
        "event_rewards": None,
    }
    assert facts.size_bytes == known.stat().st_size
    assert facts.bytes_per_decision == pytest.approx(facts.size_bytes / 19)
    assert [name for name, _ in facts.migrations] == list(STATEMENTS)
    assert not facts.upgraded
    assert json.loads(json.dumps(facts.to_json()))["relations"][1]["name"] == "episodes"


def test_no_decisions_no_bytes_per_decision(path, store):
    assert describe_database(path).bytes_per_decision is None


def test_an_older_file_is_upgraded_on_request_only(tmp_path):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        apply_migrations(db, stop_before="0002_totals")
        db.execute("INSERT INTO runs VALUES ('r', 'rollout', '{}', 1.0)")
        db.commit()
        assert db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    before = path.read_bytes()
    with pytest.raises(StoreError, match=re.escape(f"task-app traces schema --db {path} --upgrade")):
        describe_database(path)
    assert path.read_bytes() == before
    facts = describe_database(path, upgrade=True)
    assert facts.upgraded
    assert "brought up to date" in facts.heading()
    assert "0002_totals" in [name for name, _ in facts.migrations]
    assert facts.relations[0].rows == 1
    assert not describe_database(path, upgrade=True).upgraded


# -- datasette -------------------------------------------------------------------------------

CHAT, QWEN = ("chat", "gpt-4o-mini"), ("chat", "qwen/qwen3-32b")
RANDOM = ("random", "")

ANSWERS = {
    # night: three rewarded episodes, so night-2b's wood is not counted
    "achievements_by_policy": [
        (*CHAT, "collect_drink", 1, 3, 0.333, 1),
        (*CHAT, "collect_sapling", 1, 3, 0.333, 1),
        (*CHAT, "collect_wood", 1, 3, 0.333, 2),
        (*CHAT, "place_plant", 1, 3, 0.333, 1),
        (*CHAT, "place_table", 1, 3, 0.333, 1),
        (*CHAT, "wake_up", 1, 3, 0.333, 1),
        (*QWEN, "collect_drink", 1, 2, 0.5, 2),
        (*QWEN, "collect_wood", 1, 2, 0.5, 1),
        (*QWEN, "eat_cow", 1, 2, 0.5, 1),
        (*RANDOM, "collect_wood", 1, 2, 0.5, 1),
    ],
    "returns_by_run": [
        ("base", *RANDOM, 2, 2, 0.5, 0.0, 1.0, 0.5),
        ("day", *QWEN, 2, 2, 1.5, 1.0, 2.0, 1.5),
        ("night", *CHAT, 4, 3, 2.0, 1.0, 3.0, 2.0),
    ],
    "best_episodes": [
        ("night-2a", "night", *CHAT, 2, 3.0, 3.0, 4, "ok"),
        ("day-2", "day", *QWEN, 2, 2.0, 2.0, 3, "truncated"),
        ("night-1a", "night", *CHAT, 1, 2.0, 2.0, 3, "truncated"),
        ("base-2", "base", *RANDOM, 2, 1.0, 1.0, 2, "truncated"),
        ("day-1", "day", *QWEN, 1, 1.0, 1.0, 2, "truncated"),
        ("night-1b", "night", *CHAT, 1, 1.0, 1.0, 2, "truncated"),
        ("base-1", "base", *RANDOM, 1, 0.0, 0.0, 2, "truncated"),
    ],
    # turn 1: wood, –, sapling, wood, ✗, drink, –; turn 2: –, drink, plant, wood, cow, –; 3: wood+table, wake, drink
    "decision_rewards_by_turn": [(1, 7, 4, 4), (2, 6, 4, 4), (3, 3, 4, 2), (4, 1, 0, 0)],
    "parse_failures": [(*QWEN, 5, 1, "no_call")],
    "first_unlock_turn": [
        (*CHAT, "collect_sapling", 1, 1.0, 1, 1),
        (*CHAT, "collect_wood", 1, 1.0, 1, 1),
        (*CHAT, "collect_drink", 1, 2.0, 2, 2),
        (*CHAT, "place_plant", 1, 2.0, 2, 2),
        (*CHAT, "place_table", 1, 3.0, 3, 3),
        (*CHAT, "wake_up", 1, 3.0, 3, 3),
        (*QWEN, "collect_drink", 1, 1.0, 1, 1),
        (*QWEN, "collect_wood", 1, 2.0, 2, 2),
        (*QWEN, "eat_cow", 1, 2.0, 2, 2),
        (*RANDOM, "collect_wood", 1, 2.0, 2, 2),
    ],
    "infra_errors": [("infra_error", "endpoint gone", "night", *CHAT, 1, "1970-01-12 13:51:50")],  # 1,000,310 s
    "event_rewards_of_episode": [
        (1, None, "achievement_delta", 1.0),
        (1, None, "unique_achievement_delta", 1.0),
        (1, 1, "collect_wood", 1.0),
        (1, 1, "sparse", 1.0),
        (3, None, "achievement_delta", 2.0),
        (3, None, "unique_achievement_delta", 1.0),
        (3, 5, "place_table", 1.0),
        (3, 5, "sparse", 1.0),
    ],
    "decisions_of_episode": [
        (1, None, "noop do", 1, 1, '["collect_wood"]'),
        (2, None, "noop do", 0, 0, "[]"),
        (3, None, "noop do", 2, 1, '["place_table"]'),
    ],
}


def answers(path, name):
    with closing(sqlite3.connect(path)) as db:
        parameters = {"episode_id": "night-1a"} if ":episode_id" in QUERIES[name].sql else {}
        cursor = db.execute(QUERIES[name].sql, parameters)
        return [column[0] for column in cursor.description], cursor.fetchall()


@pytest.mark.parametrize("name", QUERIES)
def test_canned_queries_by_hand(known, name):
    columns, rows = answers(known, name)
    if name == "decisions_of_episode":
        assert all("I look around." in row[columns.index("said")] for row in rows)
        rows = [row[:1] + row[2:] for row in rows]
    assert rows == ANSWERS[name]


@pytest.mark.parametrize("name", [name for name in QUERIES if not name.endswith("_of_episode")])
def test_superseded_episodes_are_in_no_answer(known, name):
    with TraceStore.open(known) as store:
        for run in ("night", "day", "base"):
            store.query("UPDATE episodes SET superseded = 1 WHERE run_id = ?", (run,))
    assert answers(known, name)[1] == []


def test_metadata_names_the_database_by_its_stem_and_the_command(known):
    written = write_metadata(known)
    assert written.path == known.parent / "t.metadata.json"
    database = json.loads(written.path.read_text())["databases"]["t"]
    assert list(database["queries"]) == list(QUERIES)
    assert set(database["tables"]) == set(CATALOGUE)
    assert database["tables"]["episodes"]["columns"]["latency_s"] == "time waited for the policy (seconds)"
    assert database["tables"]["steps"]["columns"]["step"] == "index of the step in its episode, 0 for the first"
    assert written.command.startswith(f"datasette {known} --metadata {written.path}")
    assert written.installed == (find_spec("datasette") is not None)


def test_the_command_can_be_pasted_whatever_the_name(tmp_path):
    path = tmp_path / "two words.db"
    TraceStore.open(path).close()
    assert f"datasette '{path}' --metadata '{tmp_path}/two words.metadata.json'" in write_metadata(path).command


def test_an_output_that_cannot_be_written_is_said_and_an_old_one_kept(known, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        write_metadata(known, tmp_path / "folder")
    (tmp_path / "m.json").write_text("old")
    write_metadata(known, tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text()) == metadata_for(known)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["folder", "m.json", "traces"]


@pytest.mark.skipif(find_spec("datasette") is None, reason="the extra `viewer` is not installed")
def test_datasette_loads_it_and_answers_every_query(known):
    import subprocess
    import sys

    written = write_metadata(known)
    for name in QUERIES:
        address = f"/t/{name}.json?_shape=arrays&episode_id=night-1a"
        command = [sys.executable, "-m", "datasette", str(known), "--metadata", str(written.path), "--get", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert [tuple(row) for row in json.loads(done.stdout)["rows"]] == answers(known, name)[1]
