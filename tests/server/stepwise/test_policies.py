"""The app's own policies asked about sessions: what they decide is what they would have played."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from task_app.config import load_config
from task_app.core.wire import episode_bytes
from task_app.policies.http_client import HttpClient
from task_app.server.stepwise.policies import SessionPolicies
from task_app.server.stepwise.sessions import Sessions
from task_app.server.stepwise.table import SessionTable
from task_app.store import TraceStore

pytestmark = pytest.mark.anyio


async def play(http, policy_id: str, env_id: str, turns: int) -> None:
    for _ in range(turns):
        said = await http.decided(policy_id, env_id)
        await http.stepped(env_id, message=said["message"])


@pytest.mark.parametrize("name", ["random", "expert"])
async def test_a_session_played_by_a_policy_is_the_rollout_of_that_policy(hosted, client, name):
    async with hosted() as app:
        http = client(app)
        await app.played(env__seed=4, policy={"policy_name": name, "config": {"max_llm_calls": 4}})
        begun = await http.begun(seed=4, policy={"config": {"max_llm_calls": 4}})
        made = (await http.post("/policy/create", policy_name=name, bound_env_id=begun["env_id"])).json()
        assert made["policy_name"] == name
        await play(http, made["policy_id"], begun["env_id"], 4)
        rollout, session = app.episodes()
    assert [d.steps for d in session.decisions] == [d.steps for d in rollout.decisions]
    assert session.outcome == rollout.outcome


async def test_asked_twice_a_policy_says_the_same_and_changes_nothing(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        made = (await http.post("/policy/create", policy_name="random", bound_env_id=begun["env_id"])).json()
        first = (await http.post("/policy/step", policy_id=made["policy_id"], observation={"x": 1})).json()
        again = await http.decided(made["policy_id"], begun["env_id"])
        assert first["tool_calls"] == again["tool_calls"]
        assert (first["meta"]["turn"], first["meta"]["ignored"], again["meta"]["ignored"]) == (1, ["observation"], [])
        assert (await http.stepped(begun["env_id"], action="noop"))["step_idx"] == 1
        assert (await http.decided(made["policy_id"], begun["env_id"]))["tool_calls"] != first["tool_calls"]


async def test_a_policy_that_joins_late_has_seen_every_turn(hosted, client):
    async with hosted() as app:
        http = client(app)
        ids = [(await http.begun(seed=4))["env_id"] for _ in range(2)]
        early, late = [
            (await http.post("/policy/create", policy_name="expert", bound_env_id=env_id)).json()["policy_id"]
            for env_id in ids
        ]
        for turn in range(4):
            said = await http.decided(early, ids[0])
            if turn == 3:
                assert (await http.decided(late, ids[1]))["tool_calls"] == said["tool_calls"]
            for env_id in ids:
                await http.stepped(env_id, message=said["message"])


async def test_chat_is_asked_once_a_turn_with_the_sessions_prompt(hosted, client, endpoint):
    endpoint.otherwise = endpoint.call("do")
    config = {"model": "stub", "inference_url": endpoint.url}
    async with hosted({"ENVIRONMENT_API_KEY": "ek-own"}) as app:
        app.http.headers = {"X-API-Key": "ek-own"}
        http = client(app)
        begun = await http.begun(policy={"config": {"max_llm_calls": 3}})
        await http.stepped(begun["env_id"], action="noop")
        made = (await http.post("/policy/create", policy_name="chat", config=config)).json()
        said = await http.decided(made["policy_id"], begun["env_id"])
        assert said == await http.decided(made["policy_id"], begun["env_id"])
        after = await http.stepped(begun["env_id"], tool_calls=said["tool_calls"])
        await http.decided(made["policy_id"], begun["env_id"])
    assert after["info"]["executed"] == ["do"]
    assert len(endpoint.received) == 2
    assert endpoint.received[1].body["messages"] == after["messages"]
    assert "ek-own" not in str(endpoint.received)


async def test_a_failing_endpoint_is_503_without_its_host_and_the_session_goes_on(hosted, client, endpoint):
    endpoint.otherwise = endpoint.status(401)
    config = {"model": "stub", "inference_url": endpoint.url}
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        made = (await http.post("/policy/create", policy_name="chat", config=config)).json()
        refused = await http.post("/policy/step", policy_id=made["policy_id"], env_id=begun["env_id"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "infra_error")
        assert "(inference_url)" in refused.text
        assert "127.0.0.1" not in refused.text
        await http.stepped(begun["env_id"], action="noop")


async def test_a_policy_of_no_session_asks_for_one_and_one_of_an_ended_session_is_a_conflict(hosted, client):
    async with hosted() as app:
        http = client(app)
        policy_id = (await http.post("/policy/create", policy_name="random")).json()["policy_id"]
        refused = await http.post("/policy/step", policy_id=policy_id)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, "env_id")
        begun = await http.begun()
        await http.decided(policy_id, begun["env_id"])
        await http.ended(begun["env_id"])
        assert (await http.post("/policy/step", policy_id=policy_id, env_id=begun["env_id"])).status_code == 409
        unknown = await http.post("/policy/step", policy_id=policy_id, env_id="x")
        assert (unknown.status_code, unknown.json()["error"]["field"]) == (404, "env_id")


async def test_one_policy_plays_two_sessions_each_as_if_alone(hosted, client):
    async with hosted() as app:
        http = client(app)
        policy_id = (await http.post("/policy/create", policy_name="random")).json()["policy_id"]
        ids = [(await http.begun(policy={"config": {"max_llm_calls": 2}}))["env_id"] for _ in range(2)]
        for _ in range(2):
            for env_id in ids:
                await play(http, policy_id, env_id, 1)
        one, other = app.episodes()
    assert episode_bytes(one) == episode_bytes(other)


class Meanwhile(str):
    """A session's id: whenever it is compared, another thread, as it were, adds the copy of one more session."""

    shadows: dict[tuple[str, str], Any]

    def _add(self) -> None:
        self.shadows["policy", f"another-{len(self.shadows)}"] = None

    def __eq__(self, other: object) -> bool:
        self._add()
        return str(self) == other

    def __hash__(self) -> int:
        if hasattr(self, "shadows"):
            self._add()
        return hash(str(self))


@pytest.mark.parametrize("let_go", ["_forget", "_prune"])
async def test_copies_may_be_added_while_others_are_let_go(tmp_path, let_go):
    config = load_config(None, {"server.max_sessions": 1})
    with SessionTable(tmp_path / "s.db") as table, TraceStore.open(tmp_path / "t.db") as store, HttpClient() as http:
        policies = SessionPolicies(Sessions(config, table, store, None), http, {})
        shadows: dict[tuple[str, str], Any] = policies._shadows
        over = Meanwhile("over")
        shadows["policy", over] = shadows["policy", "last"] = None
        over.shadows = shadows
        if let_go == "_forget":
            policies._forget("over")
        else:
            policies._prune()
        assert "over" not in {str(env_id) for _, env_id in list(shadows)}


async def test_policies_are_bounded_and_forgotten(hosted, client):
    async with hosted(**{"server.max_sessions": 1, "server.session_ttl_s": 0.3}) as app:
        http = client(app)
        first = (await http.post("/policy/create", policy_name="random")).json()
        assert (await http.post("/policy/create", policy_name="random")).status_code == 429
        await asyncio.sleep(0.4)
        assert (await http.post("/policy/create", policy_name="random")).status_code == 200
        assert (await http.post("/policy/step", policy_id=first["policy_id"], env_id="x")).status_code == 404
