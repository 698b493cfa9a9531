"""Runs, groups, episodes and filters against the database that is known by heart; counted by hand."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from task_app.store import TraceStore
from tests.known_traces import known_episodes

pytestmark = pytest.mark.anyio


async def ids(http, query: str) -> list[str]:
    answer = await http.get(f"/viewer/api/episodes?{query}")
    assert answer.status_code == 200, answer.text
    found = [row["episode_id"] for row in answer.json()["episodes"]]
    assert len(set(found)) == len(found)
    return found


async def test_runs_newest_first_with_their_numbers(viewing, known):
    async with viewing(known) as http:
        found = (await http.get("/viewer/api/runs")).json()
    assert found["total"] == 3
    assert [(row["run"], row["episodes"], row["groups"], row["rewarded"], row["outcome"]) for row in found["runs"]] == [
        ("base", 2, 2, 2, 0.5),
        ("day", 2, 2, 2, 1.5),
        ("night", 4, 2, 3, 2.0),
    ]
    assert {row["command"] for row in found["runs"]} == {"rollout"}


async def test_runs_without_an_episode_or_without_a_record_are_listed_too(viewing, known):
    with TraceStore.open(known) as store:
        store.write_run("empty", "train", {})
        store.write_episode(replace(known_episodes()[0], episode_id="x", run_id="unrecorded"))
    async with viewing(known) as http:
        rows = {row["run"]: row for row in (await http.get("/viewer/api/runs")).json()["runs"]}
        page = (await http.get("/viewer/api/runs?limit=2&offset=3")).json()
    assert (rows["empty"]["episodes"], rows["empty"]["groups"], rows["empty"]["outcome"]) == (0, 0, None)
    assert (rows["unrecorded"]["episodes"], rows["unrecorded"]["command"]) == (1, "")
    assert rows["unrecorded"]["started_at"] == 1_000_000
    assert (page["total"], [row["run"] for row in page["runs"]]) == (5, ["night", "unrecorded"])


async def test_groups_of_a_run(viewing, known):
    async with viewing(known) as http:
        found = (await http.get("/viewer/api/groups?run=night")).json()
    assert found["total"] == 2
    keys = ("update", "group", "seed", "members", "rewarded", "outcome", "lowest", "highest", "return", "policies")
    assert [tuple(row[key] for key in keys) for row in found["groups"]] == [
        (0, "s1", 1, 2, 2, 1.5, 1, 2, 1.5, "chat"),
        (0, "s2", 2, 2, 1, 3.0, 3, 3, 3.0, "chat"),
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sort=order", ["base-1", "base-2", "day-1", "day-2", "night-1a", "night-1b", "night-2a", "night-2b"]),
        ("", ["base-2", "base-1", "day-2", "day-1", "night-2b", "night-2a", "night-1b", "night-1a"]),
        ("run=night", ["night-1a", "night-1b", "night-2a", "night-2b"]),
        ("run=night&group=s2", ["night-2a", "night-2b"]),
        ("update=0&sort=order", ["night-1a", "night-1b", "night-2a", "night-2b"]),
        ("group=s1&sort=order", ["base-1", "day-1", "night-1a", "night-1b"]),
        ("policy=random&sort=order", ["base-1", "base-2"]),
        ("model=qwen%2Fqwen3-32b&sort=order", ["day-1", "day-2"]),
        ("status=ok", ["night-2a"]),
        ("status=infra_error", ["night-2b"]),
        ("status=aborted", []),
        ("policy=nobody", []),
        ("achievement=collect_wood&sort=order", ["base-2", "day-1", "night-1a", "night-2b"]),
        ("achievement=collect_diamond", []),
        ("achievement=collect_wood&achievement=place_table", ["night-1a"]),
        ("achievement=collect_drink&achievement=eat_cow", ["day-2"]),
        ("min_return=2&sort=order", ["day-2", "night-1a", "night-2a"]),
        ("max_return=0", ["base-1"]),
        ("min_return=1&max_return=1&sort=order", ["base-2", "day-1", "night-1b"]),
        ("min_return=3.5", []),
        (
            "run=night&policy=chat&model=gpt-4o-mini&status=truncated&achievement=collect_wood&min_return=2",
            ["night-1a"],
        ),
        ("status=truncated&achievement=collect_drink&max_return=1", ["night-1b"]),
        ("policy=chat&sort=-return", ["night-2a", "night-1a", "day-2", "night-1b", "day-1", "night-2b"]),
        ("policy=chat&sort=outcome", ["night-1b", "day-1", "night-1a", "day-2", "night-2a", "night-2b"]),
        ("sort=-decisions&limit=2", ["night-2a", "night-1a"]),
        ("sort=order&limit=3&offset=2", ["day-1", "day-2", "night-1a"]),
        ("sort=order&offset=8", []),
    ],
)
async def test_filters_alone_and_together(viewing, known, query, expected):
    async with viewing(known) as http:
        assert await ids(http, query) == expected


async def test_the_total_counts_all_pages(viewing, known):
    async with viewing(known) as http:
        totals = [
            (await http.get(f"/viewer/api/episodes?{query}")).json()["total"]
            for query in ("limit=1", "limit=1&offset=100", "achievement=collect_wood&limit=1", "min_return=2")
        ]
    assert totals == [8, 8, 4, 3]


async def test_a_row_of_an_episode(viewing, known):
    async with viewing(known) as http:
        (row,) = (await http.get("/viewer/api/episodes?status=ok")).json()["episodes"]
    expected: dict[str, Any] = {
        "episode_id": "night-2a",
        "run": "night",
        "update": 0,
        "group": "s2",
        "member": 0,
        "seed": 2,
        "app": "crafter",
        "policy": "chat",
        "policy_version": "1",
        "model": "gpt-4o-mini",
        "status": "ok",
        "cause": "terminated",
        "outcome": 3,
        "return": 3,
        "decisions": 4,
        "max_decisions": 4,
        "steps": 8,
        "parse_failures": 0,
        "unique_delta": 3,
        "started_at": 1_000_200,
        "finished_at": 1_000_210,
        "unlocks": [[1, "collect_sapling"], [2, "place_plant"], [3, "wake_up"]],
    }
    assert row == expected


async def test_choices_count_what_filters_will_find(viewing, known):
    async with viewing(known) as http:
        every = (await http.get("/viewer/api/choices")).json()
        night = (await http.get("/viewer/api/choices?run=night")).json()
    assert every["policy"] == [["chat", 6], ["random", 2]]
    assert every["model"] == [["gpt-4o-mini", 4], ["qwen/qwen3-32b", 2]]
    assert every["status"] == [["infra_error", 1], ["ok", 1], ["truncated", 6]]
    assert every["episodes"] == 8
    assert every["achievement"] == [
        "collect_drink",
        "collect_sapling",
        "collect_wood",
        "eat_cow",
        "place_plant",
        "place_table",
        "wake_up",
    ]
    assert (night["policy"], night["model"], night["episodes"]) == ([["chat", 4]], [["gpt-4o-mini", 4]], 4)


async def test_superseded_episodes_are_left_out_of_every_list(viewing, known):
    with TraceStore.open(known) as store:
        assert store.supersede("night", 0) == 4
    async with viewing(known) as http:
        assert await ids(http, "run=night") == []
        assert (await http.get("/viewer/api/groups?run=night")).json() == {"groups": [], "total": 0}
        assert (await http.get("/viewer/api/choices")).json()["episodes"] == 4
        night = (await http.get("/viewer/api/runs")).json()["runs"][-1]
        assert (night["run"], night["episodes"], night["outcome"]) == ("night", 0, None)
        assert (await http.get("/viewer/api/group?run=night&group=s1&update=0")).status_code == 404
        assert (await http.get("/viewer/api/episode?id=night-1a")).json()["superseded"] is True


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("runs?x=1", "x"),
        ("runs?limit=0", "limit"),
        ("runs?limit=201", "limit"),
        ("runs?offset=-1", "offset"),
        ("groups", "run"),
        ("groups?run=", "run"),
        ("group?run=night", "group"),
        ("group?run=night&group=s1&update=x", "update"),
        ("choices?runs=night", "runs"),
        ("episodes?limit=201", "limit"),
        ("episodes?limit=ten", "limit"),
        ("episodes?min_return=nan", "min_return"),
        ("episodes?max_return=inf", "max_return"),
        ("episodes?min_return=much", "min_return"),
        ("episodes?status=fine", "status"),
        ("episodes?sort=id%3B--", "sort"),
        ("episodes?minreturn=1", "minreturn"),
        ("episodes?achievement=colect_wood", "achievement"),
        ("episode", "id"),
        ("episode?id=", "id"),
        ("frame?id=night-1a", "step"),
        ("frame?id=night-1a&step=-1", "step"),
        ("frame?id=night-1a&step=7", "step"),
        ("frame?id=night-1a&step=x", "step"),
    ],
)
async def test_what_cannot_be_asked_is_named_and_never_echoed(viewing, known, path, field):
    async with viewing(known) as http:
        refused = await http.get(f"/viewer/api/{path}")
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)
    assert "colect" not in refused.text


async def test_the_nearest_achievement_is_suggested(viewing, known):
    async with viewing(known) as http:
        refused = await http.get("/viewer/api/episodes?achievement=colect_wood")
    assert "did you mean 'collect_wood'? (known: collect_coal, collect_diamond," in refused.json()["error"]["message"]


async def test_sql_in_a_filter_is_only_a_name(viewing, known):
    async with viewing(known) as http:
        assert await ids(http, "policy=chat'%20OR%20'1'='1") == []
        assert await ids(http, "run=night%22%3B%20DROP%20TABLE%20episodes") == []
        assert len(await ids(http, "")) == 8


async def test_a_database_that_is_not_there_yet_is_an_empty_list_with_a_sentence(viewing, tmp_path):
    db = tmp_path / "later.db"
    async with viewing(db) as http:
        for name in ("runs", "groups?run=r", "episodes", "choices"):
            found = await http.get(f"/viewer/api/{name}")
            assert found.status_code == 200
            assert found.json()["note"].startswith(f"there is no trace database at {db} yet")
        assert (await http.get("/viewer/api/episode?id=x")).status_code == 404
        assert not db.exists()
        with TraceStore.open(db) as store:
            store.write_episode(known_episodes()[0])
        assert await ids(http, "") == ["night-1a"]


async def test_another_file_in_its_place_is_opened_anew(viewing, known, tmp_path):
    async with viewing(known) as http:
        assert len(await ids(http, "")) == 8
        other = tmp_path / "other.db"
        with TraceStore.open(other) as store:
            store.write_episode(known_episodes()[7])
        other.replace(known)
        assert await ids(http, "") == ["base-2"]


async def test_a_broken_file_is_said_to_be_one(viewing, tmp_path):
    db = tmp_path / "t.db"
    db.write_text("not a database")
    async with viewing(db) as http:
        answer = await http.get("/viewer/api/runs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert "t.db" in answer.json()["error"]["message"]


async def test_nothing_can_be_written_through_the_page(viewing, known):
    before = known.read_bytes()
    async with viewing(known) as http:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await http.request(method, "/viewer/api/episodes")).status_code == 405
        assert len(await ids(http, "")) == 8
    assert known.read_bytes() == before


async def test_browsing_while_another_writes_sees_whole_episodes_and_every_one(viewing, known):
    extra = [replace(known_episodes()[0], episode_id=f"new-{n}", run_id="new", member=n) for n in range(60)]

    def write() -> None:
        with TraceStore.open(known) as store:
            for episode in extra:
                store.write_episode(episode)

    writer = threading.Thread(target=write)
    seen = [0]
    async with viewing(known) as http:
        writer.start()
        try:
            while writer.is_alive() or seen[-1] < len(extra):
                rows = (await http.get("/viewer/api/episodes?run=new&limit=200")).json()
                assert rows["total"] == len(rows["episodes"])
                assert all(row["unlocks"] == [[1, "collect_wood"], [3, "place_table"]] for row in rows["episodes"])
                seen.append(rows["total"])
                if rows["total"]:
                    last = (await http.get(f"/viewer/api/episode?id=new-{rows['total'] - 1}")).json()
                    assert len(last["decisions"]) == 3
                assert len(seen) < 5_000
        finally:
            writer.join()
    assert seen == sorted(seen)
    assert seen[-1] == 60
