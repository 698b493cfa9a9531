"""The same `Idempotency-Key` again: one episode and one answer, whoever asks when."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from task_app.core.errors import StoreError
from task_app.server import idempotency
from task_app.server.shared import Shared, shared_path

pytestmark = pytest.mark.anyio


async def send(app, body, key="k-1"):
    return await app.http.post("/rollout", json=body, headers={"Idempotency-Key": key})


async def test_the_same_key_is_one_episode_and_the_same_bytes(hosted, body_of):
    async with hosted() as app:
        first, second = await send(app, body_of()), await send(app, body_of())
        other = await send(app, body_of(), "k-2")
        assert len(app.episodes()) == 2
    assert first.content == second.content
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"
    assert other.json()["metrics"]["details"]["episode_id"] != first.json()["metrics"]["details"]["episode_id"]


async def test_without_a_key_a_run_id_twice_makes_two_episodes(hosted, body_of):
    async with hosted() as app:
        for _ in range(2):
            await app.rollout(body_of())
        assert len(app.episodes()) == 2


async def test_another_body_with_the_key_is_409(hosted, body_of):
    async with hosted() as app:
        await send(app, body_of())
        answer = await send(app, body_of(env__seed=2))
        assert len(app.episodes()) == 1
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == ("conflict", "Idempotency-Key")


async def test_one_that_comes_while_the_first_plays_waits_for_its_answer(hosted, endpoint, chat, body_of):
    endpoint.otherwise = endpoint.slow(0.3, endpoint.call("noop"))
    async with hosted() as app:
        first, second = await asyncio.gather(send(app, body_of(**chat)), send(app, body_of(**chat)))
        assert len(app.episodes()) == 1
    assert first.status_code == 200, first.text
    assert first.content == second.content


async def test_a_rollout_that_broke_leaves_no_answer_and_is_played_again(hosted, endpoint, chat, body_of):
    endpoint.plan(endpoint.status(401))
    endpoint.otherwise = endpoint.call("noop")
    async with hosted() as app:
        broke, fine = await send(app, body_of(**chat)), await send(app, body_of(**chat))
        assert [episode.status for episode in app.episodes()] == ["infra_error", "truncated"]
    assert (broke.status_code, fine.status_code) == (503, 200)


async def test_a_refused_body_leaves_no_answer(hosted, body_of):
    async with hosted() as app:
        assert (await send(app, body_of(env__seed=-1))).status_code == 422
        assert (await send(app, body_of())).status_code == 200


@pytest.mark.parametrize("key", ["x" * 201, "with space", "ümlaut".encode()])
async def test_a_key_that_is_none(hosted, body_of, key):
    async with hosted() as app:
        answer = await send(app, body_of(), key)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "idempotency-key"


@pytest.mark.parametrize("stored", [True, False])
async def test_a_process_that_died_before_it_answered(hosted, body_of, stored):
    """Its stored episode is the answer; where it stored none, the rollout is played."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    async with hosted() as app:
        if stored:
            played = await app.rollout(body_of())
            lost = app.episodes()[0].episode_id
        else:
            lost = "never-stored"
        request = app.http.build_request("POST", "/rollout", json=body_of(), headers={"Idempotency-Key": "k-1"})
        with Shared.opened(shared_path(app.db), max_running=1, max_waiting=1) as shared:
            shared._owner = f"{dead.pid}:1"  # as the one that died would have noted it
            assert shared.begin_request("k-1", request.content, lost) is None
            shared._owner = f"{os.getpid()}:"
        answer = await app.http.send(request)
        again = await send(app, body_of())
        assert len(app.episodes()) == 1
    assert answer.status_code == 200, answer.text
    assert again.content == answer.content
    if stored:
        assert answer.json() == played.json()


async def test_one_that_never_ends_is_429_in_time(hosted, body_of, monkeypatch):
    monkeypatch.setattr(idempotency, "_LOOK_EVERY_S", 0.01)
    async with hosted() as app:
        body = body_of(safety={"max_time_s": 0.2})
        request = app.http.build_request("POST", "/rollout", json=body, headers={"Idempotency-Key": "k-1"})
        app.app.state.service.shared.begin_request("k-1", request.content, "somewhere else")
        begun = time.monotonic()
        answer = await app.http.send(request)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(("status", "again"), [("infra_error", True), ("aborted", False)])
async def test_a_lost_rollout_that_broke_is_played_again_and_one_that_was_aborted_is_the_answer(
    hosted, body_of, endpoint, chat, status, again
):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    async with hosted() as app:
        if status == "infra_error":
            endpoint.otherwise = endpoint.status(401)
            await app.rollout(body_of(**chat))
        else:
            endpoint.otherwise = endpoint.slow(1, endpoint.call("noop"))
            await app.rollout(body_of(**chat, safety={"max_time_s": 0.3}))
        (lost,) = app.episodes()
        assert lost.status == status
        with Shared.opened(shared_path(app.db), max_running=1, max_waiting=1) as shared:
            shared._owner = f"{dead.pid}:1"
            request = app.http.build_request("POST", "/rollout", json=body_of(), headers={"Idempotency-Key": "k-1"})
            shared.begin_request("k-1", request.content, lost.episode_id)
            shared._owner = f"{os.getpid()}:"
        answer = await app.http.send(request)
        assert len(app.episodes()) == (2 if again else 1)
    assert answer.status_code == 200
    assert answer.json()["aborted"] is not again


async def test_what_the_servers_end_cut_short_is_no_answer(hosted, body_of, endpoint, chat):
    endpoint.otherwise = endpoint.slow(0.2, endpoint.call("noop"))
    long = body_of(**chat, policy__config__max_llm_calls=50)
    async with hosted() as app:
        playing = asyncio.create_task(send(app, long))
        while not endpoint.received:
            await asyncio.sleep(0.02)
        app.app.state.service.stop()
        assert (await playing).json()["aborted"] is True
    endpoint.otherwise = endpoint.call("noop")
    async with hosted() as app:
        answer = await send(app, body_of(**chat, policy__config__max_llm_calls=50))
        assert len(app.episodes()) == 2
    assert answer.json()["aborted"] is False


async def test_a_database_that_cannot_be_read_is_not_taken_for_one_without_the_episode(hosted, body_of, monkeypatch):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    async with hosted() as app:
        await app.rollout(body_of())
        (lost,) = app.episodes()
        with Shared.opened(shared_path(app.db), max_running=1, max_waiting=1) as shared:
            shared._owner = f"{dead.pid}:1"
            request = app.http.build_request("POST", "/rollout", json=body_of(), headers={"Idempotency-Key": "k-1"})
            shared.begin_request("k-1", request.content, lost.episode_id)
            shared._owner = f"{os.getpid()}:"

        def locked(self, sql, parameters=()):
            raise StoreError("locked")

        with monkeypatch.context() as patch:
            patch.setattr("task_app.store.TraceStore.query", locked)
            answer = await app.http.send(request)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert len(app.episodes()) == 1
