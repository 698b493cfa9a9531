"""What is known to go wrong with traces elsewhere, held against the whole chain here.

One served app, eight clients at once, a model that says something beside each call and collects a sapling sooner or
later; then the database through the tools a user has. One test a fault, named by what would be seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from task_app.analyze.database import DatabaseReport, analyze_database
from task_app.core.types import Episode
from task_app.export import EpisodeFilters, SftOptions, export_sft
from task_app.store import TraceStore
from task_app.verify import verify_database
from tests.policies.stub_endpoint import StubEndpoint
from tests.server.served import running

CLIENTS, ROLLOUTS, DECISIONS = 8, 16, 6
SAID = "I will look for a sapling."


@dataclass(frozen=True)
class Night:
    """What eight clients left behind."""

    answers: list[dict[str, Any]]
    db: Path
    log: str
    requests: int

    def episodes(self) -> list[Episode]:
        with TraceStore.open(self.db, read_only=True) as store:
            return list(store.episodes())

    def report(self) -> DatabaseReport:
        with TraceStore.open(self.db, read_only=True) as store:
            return analyze_database(store)


def body(endpoint: StubEndpoint, number: int, **record: Any) -> dict[str, Any]:
    config = {"model": "stub-1", "inference_url": endpoint.url, "max_llm_calls": DECISIONS}
    return {
        "run_id": "night",
        "env": {"seed": number // 2},
        "policy": {"policy_name": "chat", "config": config},
        "record": {"trajectories": True, "return_trace": True, "trace_format": "full"} | record,
    }


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> Iterator[Night]:
    db = tmp_path_factory.mktemp("night") / "t.db"
    call = {"name": "interact_many", "arguments": json.dumps({"actions": ["do"] * 5})}
    message = {"content": SAID, "tool_calls": [{"id": "a", "type": "function", "function": call}]}
    with StubEndpoint() as endpoint, running(db) as app:
        endpoint.otherwise = endpoint.completion(message, usage={"prompt_tokens": 11, "completion_tokens": 7})

        def play(number: int) -> dict[str, Any]:
            answer = app.http.post("/rollout", json=body(endpoint, number))
            assert answer.status_code == 200, answer.text
            return answer.json()

        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(play, range(ROLLOUTS)))
        app.process.terminate()
        log = app.process.communicate(timeout=30)[0]
        yield Night(answers, db, log, len(endpoint.received))


def test_every_trace_of_concurrent_clients_is_kept_whole_and_true(night):
    told = {answer["trace"]["episode"]["episode_id"] for answer in night.answers}
    kept = {episode.episode_id: len(episode.decisions) for episode in night.episodes()}
    assert kept.keys() == told
    assert set(kept.values()) == {DECISIONS}
    assert verify_database(night.db).passed


def test_messages_are_stored_once_as_often_as_they_are_counted(night):
    with TraceStore.open(night.db, read_only=True) as store:
        (messages,) = store.query("SELECT count(*) FROM messages")[0]
        (distinct,) = store.query("SELECT count(DISTINCT message) FROM messages")[0]
    assert messages == distinct > 2
    said = [d.completion.message.content for e in night.episodes() for d in e.decisions]
    assert said == [SAID] * (ROLLOUTS * DECISIONS)
    assert night.requests == ROLLOUTS * DECISIONS


def test_analysis_and_filters_find_the_achievements_that_were_written(night, tmp_path):
    saplings = [e for e in night.episodes() if "collect_sapling" in e.event_counts]
    assert saplings, "five tries a decision on grass find one in ten"
    (player,) = night.report().players
    found = {row.name: row for row in player.events}
    assert found["collect_sapling"].episodes == len(saplings)
    filters = EpisodeFilters(require_achievement=("collect_sapling",), min_unique=1)
    report = export_sft(night.db, tmp_path / "f.jsonl", filters, SftOptions())
    assert (report.selected, sum(report.rows)) == (len(saplings), len(saplings) * DECISIONS)


def test_turns_are_one_based_in_every_record(night, tmp_path):
    turns = list(range(1, DECISIONS + 1))
    for answer in night.answers:
        steps = answer["trajectories"][0]["steps"]
        assert [step["info"]["meta"]["turn"] for step in steps] == turns
        assert [step["info"]["meta"]["decision_rewards"]["turn"] for step in steps] == turns
    (player,) = night.report().players
    assert [row.turn for row in player.turns] == turns
    export_sft(night.db, tmp_path / "f.jsonl", EpisodeFilters(limit=1), SftOptions())
    rows = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert [row["metadata"]["turn"] for row in rows] == turns


def test_an_end_is_told_as_what_it_was(night):
    for answer in night.answers:
        steps = answer["trajectories"][0]["steps"]
        assert [step["done"] for step in steps] == [False] * (DECISIONS - 1) + [True]
        assert [step["truncated"] for step in steps] == [False] * (DECISIONS - 1) + [True]


def test_times_and_ids_are_there_and_in_order(night):
    with TraceStore.open(night.db, read_only=True) as store:
        nulls = store.query(
            """SELECT count(*) FROM episodes JOIN decisions ON episodes.id = episode
               WHERE episodes.started_at < 1e9 OR finished_at < episodes.started_at
                  OR decisions.started_at NOT BETWEEN episodes.started_at AND finished_at OR completion_id = ''"""
        )
    assert nulls[0][0] == 0


def test_one_run_id_of_many_clients_is_one_run_of_many_episodes(night):
    with TraceStore.open(night.db, read_only=True) as store:
        runs = store.query("SELECT run_id FROM runs")
    assert [row[0] for row in runs] == ["night"]
    assert len({episode.episode_id for episode in night.episodes()}) == ROLLOUTS


def test_healthy_traces_raise_no_warning(night):
    assert night.report().warnings == ()
    totals = [(sum(r.unique_delta for r in records(e)), e.outcome) for e in night.episodes()]
    assert all(total == outcome for total, outcome in totals)


def records(episode: Episode) -> list[Any]:
    return [decision.rewards for decision in episode.decisions if decision.rewards is not None]


def test_nothing_of_a_conversation_is_printed(night):
    assert SAID not in night.log
    assert len(night.log) < 2_000


def test_with_the_flags_off_no_zero_is_written_or_returned(tmp_path):
    db = tmp_path / "off.db"
    with running(db) as app:
        request = {
            "run_id": "off",
            "env": {"seed": 1, "config": {"step_rewards": {"enabled": False}}},
            "policy": {"policy_name": "random", "config": {"max_llm_calls": 3}},
        }
        answer = app.http.post("/rollout", json=request).json()
    steps = answer["trajectories"][0]["steps"]
    assert all("decision_rewards" not in step["info"]["meta"] for step in steps)
    with TraceStore.open(db, read_only=True) as store:
        assert store.query("SELECT count(*) FROM decision_rewards")[0][0] == 0
        named = {row[0] for row in store.query("SELECT DISTINCT name FROM event_rewards")}
        assert named.isdisjoint({"unique_achievement_delta", "achievement_delta"})


def test_exported_rows_keep_text_tools_and_documented_flags(night, tmp_path):
    command = [sys.executable, "-m", "task_app", "traces", "export-sft", "--db", str(night.db)]
    output = tmp_path / "f.jsonl"
    subprocess.run([*command, "--output", str(output), "--model", "stub-1"], check=True, capture_output=True)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == ROLLOUTS * DECISIONS
    for row in rows:
        *_, answer = row["messages"]
        assert answer["content"] == SAID
        assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"actions": ["do"] * 5}
        assert row["tools"][0]["function"]["name"] == "interact_many"


def test_the_viewer_shows_the_same_episodes(night):
    from fastapi.testclient import TestClient

    from task_app.server.viewer.app import create_viewer_app

    with TestClient(create_viewer_app(night.db, environ={}), base_url="http://127.0.0.1") as http:
        listed = http.get("/viewer/api/episodes", params={"achievement": "collect_sapling"}).json()
        assert listed["total"] == sum("collect_sapling" in e.event_counts for e in night.episodes())
        picture = {"id": listed["episodes"][0]["episode_id"], "step": 3}
        first = http.get("/viewer/api/frame", params=picture)
        assert first.headers["content-type"] == "image/png"
