"""Worlds and databases that fail under a session: the client is told, nothing is lost, nothing earns a 0."""

from __future__ import annotations

import sqlite3

import pytest

from task_app.store import TraceStore

pytestmark = pytest.mark.anyio


def broken(*arguments):
    raise RuntimeError("no map")


async def test_a_world_that_breaks_is_503_and_a_stored_episode_without_reward(hosted, client, monkeypatch):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        await http.stepped(begun["env_id"], action="noop")
        monkeypatch.setattr("task_app.apps.crafter.engine.CrafterEnv.step", broken)
        refused = await http.post("/env/crafter/step", env_id=begun["env_id"], action="noop")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "infra_error")
        assert refused.json()["error"]["env_id"] == begun["env_id"]
        ending = await http.ended(begun["env_id"])
        (stored,) = app.episodes()
    assert (stored.status, stored.outcome, len(stored.decisions)) == ("infra_error", None, 1)
    assert (ending["status"], ending["episode_return"], ending["rewards"]) == ("infra_error", None, None)


async def test_a_world_that_cannot_be_made_is_503_and_takes_no_place(hosted, client, monkeypatch):
    async with hosted(**{"server.max_sessions": 1}) as app:
        http = client(app)
        with monkeypatch.context() as patched:
            patched.setattr("task_app.apps.crafter.engine.CrafterEnv.reset", broken)
            assert (await http.post("/env/crafter/initialize", seed=1)).status_code == 503
        await http.begun()
        assert [episode.status for episode in app.episodes()] == ["infra_error"]


async def test_a_database_that_cannot_be_written_costs_nothing_once_it_can(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(policy={"config": {"max_llm_calls": 2}})
        await http.stepped(begun["env_id"], action="noop")
        with sqlite3.connect(app.db) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        refused = await http.post("/env/crafter/step", env_id=begun["env_id"], action="do")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        other.execute("DROP TRIGGER full")
        other.commit()
        other.close()
        ending = await http.ended(begun["env_id"])
        (stored,) = app.episodes()
    assert (ending["cause"], ending["decisions"]) == ("max_decisions", 2)
    assert [step.action for step in stored.steps] == ["noop", "do"]


async def test_sessions_that_cannot_be_ended_now_are_kept_for_the_next_server(hosted, client, caplog):
    async with hosted() as app:
        begun = await client(app).begun()
        with sqlite3.connect(app.db) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON episodes BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    assert "could not be ended" in caplog.text
    other.execute("DROP TRIGGER full")
    other.commit()
    other.close()
    async with hosted() as app:
        assert (await client(app).stepped(begun["env_id"], action="noop"))["step_idx"] == 1
    with TraceStore.open(app.db, read_only=True) as store:
        assert store.episode(begun["env_id"]).cause == "the server stopped"


async def test_a_session_of_another_prompt_is_ended_as_aborted(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        with sqlite3.connect(app.db.with_name("t.serving.db")) as other:
            other.execute("UPDATE sessions SET prompt_hash = 'older'")
        other.close()
        assert (await http.post("/env/crafter/step", env_id=begun["env_id"], action="noop")).status_code == 409
        (stored,) = app.episodes()
    assert (stored.status, stored.cause) == ("aborted", "the task is not the one it was begun with")


async def test_text_that_no_database_can_hold_is_stored_with_a_mark_in_its_place(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(policy={"config": {"max_llm_calls": 1}})
        half = '{{"env_id": "{}", "message": {{"content": "a\\ud800b", "tool_calls": []}}}}'.format(begun["env_id"])
        answer = await app.http.post("/env/crafter/step", content=half, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200
        (stored,) = app.episodes()
    assert stored.decisions[0].completion.message.content == "a?b"
