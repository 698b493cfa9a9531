"""One episode in full, and a group side by side; numbers counted by hand."""

from __future__ import annotations

import shlex
from dataclasses import replace
from urllib.parse import quote

import pytest

from task_app.core.types import AssistantMessage, StepRewardFlags
from task_app.store import TraceStore
from tests.known_traces import known_episodes

pytestmark = pytest.mark.anyio
NASTY = "a/b\"'><script>alert(1)</script>?#%00&x=1 ∂"


async def episode(http, name: str) -> dict:
    answer = await http.get("/viewer/api/episode", params={"id": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def stored(tmp_path):
    """Write the given episodes into a fresh database."""

    def write(*episodes):
        path = tmp_path / "some.db"
        with TraceStore.open(path) as store:
            for one in episodes:
                store.write_episode(one)
        return path

    return write


async def test_facts_of_an_episode(viewing, known):
    async with viewing(known) as http:
        found = await episode(http, "night-1a")
    expected = {
        "episode_id": "night-1a",
        "run": "night",
        "group": "s1",
        "update": 0,
        "member": 0,
        "superseded": False,
        "policy": "chat",
        "policy_version": "1",
        "model": "gpt-4o-mini",
        "provider": "openai",
        "status": "truncated",
        "cause": "max_decisions",
        "outcome": 2,
        "return": 2,
        "environment_return": 2,
        "ach_delta": 3,  # wood, then wood again and a table
        "unique_delta": 2,
        "steps": 6,
        "parse_failures": 0,
        "prompt_tokens": 300,
        "completion_tokens": 30,
        "latency_s": 1.5,
        "rewards_note": "",
    }
    assert {key: found[key] for key in expected} == expected
    assert found["task"]["seed"] == 1
    assert found["flags"]["mode"] == "decision_stepwise"
    assert found["siblings"] == [{"episode_id": "night-1a", "member": 0}, {"episode_id": "night-1b", "member": 1}]
    assert [tool["function"]["name"] for tool in found["tools"]] == ["interact_many"]
    words = shlex.split(found["verify"])
    assert words == ["task-app", "traces", "verify", "--db", str(known), "--episode=night-1a"]


async def test_decisions_of_an_episode(viewing, known):
    async with viewing(known) as http:
        found = await episode(http, "night-1a")
    decisions = found["decisions"]
    assert [one["reward"] for one in decisions] == [1, 0, 1]
    assert [one["advantage"] for one in decisions] == [0.5, -0.25, 1.0]
    assert [one["first_step"] for one in decisions] == [0, 2, 4]
    assert decisions[2]["steps"] == [
        {"action": "noop", "reward": 0, "events": []},
        {"action": "do", "reward": 1, "events": ["collect_wood", "place_table"]},
    ]
    names = ["collect_wood", "place_table"]
    record = {"turn": 3, "ach_delta": 2, "unique_delta": 1, "all": names, "unique": ["place_table"], "stored": True}
    assert decisions[2]["record"] == record
    call = {"name": "interact_many", "arguments": '{"actions": ["noop", "do"]}'}
    assert decisions[2]["said"] == {"text": "I look around.", "calls": [call], "finish_reason": "tool_calls"}
    assert found["messages"][decisions[2]["observation"]] == {
        "role": "user",
        "text": "night-1a, turn 3: you see grass.",
    }
    assert found["messages"][decisions[2]["prompt"][0]]["role"] == "system"
    assert len(found["messages"]) == 4  # the system message once, and three observations


async def test_an_unreadable_answer_ran_nothing_and_says_why(viewing, known):
    async with viewing(known) as http:
        first, second = (await episode(http, "day-1"))["decisions"]
    assert first["failure"] == {"reason": "no_call", "detail": "the answer holds no call"}
    assert (first["steps"], first["reward"], first["said"]["calls"]) == ([], 0, [])
    assert (second["first_step"], second["reward"]) == (0, 1)


async def test_without_records_deltas_come_from_the_events_and_off_pays_at_the_end(viewing, known):
    async with viewing(known) as http:
        found = await episode(http, "base-2")
    assert [one["reward"] for one in found["decisions"]] == [0, 1]
    assert [one["record"]["stored"] for one in found["decisions"]] == [False, False]
    assert found["decisions"][1]["record"]["unique"] == ["collect_wood"]
    assert [one["advantage"] for one in found["decisions"]] == [None, None]


async def test_an_episode_without_a_reward_shows_none_and_says_so(viewing, known):
    async with viewing(known) as http:
        found = await episode(http, "night-2b")
    assert (found["outcome"], found["return"], found["decisions"][0]["reward"]) == (None, None, None)
    assert "status infra_error carries no reward, which is not a reward of 0" in found["rewards_note"]


async def test_sparse_rewards_are_summed_for_each_decision(viewing, stored):
    sparse = replace(known_episodes()[2], flags=StepRewardFlags("env_sparse"))
    bare = replace(sparse, decisions=tuple(replace(one, rewards=None) for one in sparse.decisions))
    async with viewing(stored(bare)) as http:
        assert [one["reward"] for one in (await episode(http, "night-2a"))["decisions"]] == [1, 1, 1, -0.1]


async def test_broken_records_leave_the_episode_readable(viewing, stored):
    good = known_episodes()[0]
    broken = replace(
        good, decisions=(replace(good.decisions[0], rewards=good.decisions[1].rewards), *good.decisions[1:])
    )
    with_two_of_turn_2 = replace(broken, decisions=(replace(good.decisions[0], rewards=None), *good.decisions[1:]))
    async with viewing(stored(with_two_of_turn_2)) as http:
        found = await episode(http, "night-1a")
    assert [one["reward"] for one in found["decisions"]] == [None, None, None]
    assert "no decision record for turn 1" in found["rewards_note"]


async def test_the_beginning_of_one_id_is_enough_and_of_two_is_not(viewing, stored):
    first = known_episodes()[0]
    db = stored(*(replace(first, episode_id=name) for name in ("abc", "abc-1", "abd-2", "b%_x")))
    async with viewing(db) as http:
        assert (await episode(http, "abd"))["episode_id"] == "abd-2"
        assert (await episode(http, "abc"))["episode_id"] == "abc"  # exact comes first
        assert (await episode(http, "b%"))["episode_id"] == "b%_x"
        for name in ("ab", "abc-2", "zzz", "%", "b_", "ABC"):
            answer = await http.get("/viewer/api/episode", params={"id": name})
            assert (answer.status_code, answer.json()["error"]["field"]) == (404, "id")
            assert name not in answer.json()["error"]["message"].split()


async def test_any_id_works_and_stays_text(viewing, stored):
    nasty = replace(known_episodes()[0], episode_id=NASTY, run_id=NASTY, group_id=NASTY, policy=NASTY)
    async with viewing(stored(nasty)) as http:
        found = await episode(http, NASTY)
        assert (found["episode_id"], found["run"], found["group"], found["policy"]) == (NASTY,) * 4
        assert shlex.split(found["verify"])[-1] == f"--episode={NASTY}"
        rows = (await http.get(f"/viewer/api/episodes?run={quote(NASTY)}&policy={quote(NASTY)}")).json()
        assert [row["episode_id"] for row in rows["episodes"]] == [NASTY]
        group = await http.get("/viewer/api/group", params={"run": NASTY, "group": NASTY, "update": 0})
        assert group.json()["members"][0]["episode_id"] == NASTY
        for path in ("api/episode", "api/group"):
            answer = await http.get(f"/viewer/{path}", params={"id": NASTY} if "episode" in path else {})
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_half_a_surrogate_pair_travels(viewing, stored):
    first = known_episodes()[0]
    said = replace(first.decisions[0].completion, message=AssistantMessage("half \ud83d and \u2028 line"))
    odd = replace(first, decisions=(replace(first.decisions[0], completion=said), *first.decisions[1:]))
    async with viewing(stored(odd)) as http:
        assert (await episode(http, "night-1a"))["decisions"][0]["said"]["text"] == "half \ud83d and \u2028 line"


async def test_parts_that_are_no_text_are_named(viewing, stored):
    first = known_episodes()[0]
    parts = [{"type": "text", "text": "you see"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    shown = replace(first.decisions[0], messages=({"role": "user", "content": parts},))
    async with viewing(stored(replace(first, decisions=(shown, *first.decisions[1:])))) as http:
        assert (await episode(http, "night-1a"))["messages"][0]["text"] == "you see\n[image_url]"


async def test_an_episode_without_a_decision(viewing, stored):
    nothing = replace(known_episodes()[3], decisions=())
    async with viewing(stored(nothing)) as http:
        found = await episode(http, "night-2b")
        assert (found["decisions"], found["steps"]) == ([], 0)
        assert (await http.get("/viewer/api/frame?id=night-2b&step=0")).status_code == 200


async def test_a_group_side_by_side(viewing, known):
    async with viewing(known) as http:
        found = (await http.get("/viewer/api/group?run=night&group=s1&update=0")).json()
        other = (await http.get("/viewer/api/group?run=day&group=s1")).json()
        wrong = [
            (await http.get(f"/viewer/api/group?{query}")).status_code
            for query in ("run=night&group=s1", "run=day&group=s1&update=0", "run=x&group=s1&update=0")
        ]
    assert wrong == [404, 404, 404]
    first, second = found["members"]
    assert (first["episode_id"], first["member"], first["outcome"], first["return"]) == ("night-1a", 0, 2, 2)
    assert [one["reward"] for one in first["timeline"]] == [1, 0, 1]
    assert [one["advantage"] for one in first["timeline"]] == [0.5, -0.25, 1.0]
    assert [one["events"] for one in first["timeline"]] == [
        [[1, "collect_wood"]],
        [],
        [[1, "collect_wood"], [1, "place_table"]],
    ]
    assert [(one["first_step"], one["steps"], one["failed"]) for one in first["timeline"]] == [
        (0, 2, False),
        (2, 2, False),
        (4, 2, False),
    ]
    assert [one["reward"] for one in second["timeline"]] == [0, 1]
    assert second["unlocks"] == [[2, "collect_drink"]]
    (alone,) = other["members"]
    assert [one["failed"] for one in alone["timeline"]] == [True, False]
