"""What a run's client may ask for: its state, and its end."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.anyio


async def until(true, seconds=10.0):
    for _ in range(int(seconds / 0.02)):
        if await true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


async def test_a_run_that_plays_waits_and_is_aborted(hosted, endpoint, chat, body_of):
    endpoint.otherwise = endpoint.slow(0.2, endpoint.call("noop"))
    long = body_of(**chat, policy__config__max_llm_calls=100)
    async with hosted(**{"server.max_concurrent_rollouts": 1}) as app:
        both = [asyncio.create_task(app.rollout(long)) for _ in range(2)]

        async def status():
            return (await app.http.get("/run/status/run")).json()

        async def one_of_each():
            told = await status()
            return (told.get("running"), told.get("waiting")) == (1, 1)

        await until(one_of_each)
        told = await status()
        assert (told["status"], told["episodes"]) == ("running", {})
        assert sorted(one["status"] for one in told["rollouts"]) == ["running", "waiting"]

        async def health_says_so():  # a moment later, perhaps
            queue = (await app.http.get("/health")).json()["queue"]
            return (queue["running"], queue["waiting"]) == (1, 1)

        await until(health_says_so)
        asked = await app.http.post("/run/abort", json={"run_id": "run"})
        assert asked.json() == {"run_id": "run", "aborting": 2}
        answers = [answer.json() for answer in await asyncio.gather(*both)]
        told, stored = await status(), app.episodes()
    assert [answer["aborted"] for answer in answers] == [True, True]
    assert {(one.status, one.cause, one.outcome) for one in stored} == {("aborted", "aborted by request", None)}
    assert (told["status"], told["episodes"], told["running"], told["waiting"]) == ("done", {"aborted": 2}, 0, 0)
    assert {one["cause"] for one in told["rollouts"]} == {"aborted by request"}


async def test_a_rollout_that_hangs_is_given_up(hosted, endpoint, chat, body_of):
    endpoint.otherwise = endpoint.slow(30, endpoint.call("noop"))
    async with hosted() as app:
        playing = asyncio.create_task(app.rollout(body_of(**chat)))

        async def plays():
            return bool(endpoint.received)

        await until(plays)
        await app.http.post("/run/abort", json={"run_id": "run"})
        answer = (await asyncio.wait_for(playing, 10)).json()
        (stored,) = app.episodes()
    assert answer["aborted"] is True
    assert (stored.status, stored.cause) == ("aborted", "aborted by request")


async def test_a_run_that_is_over_has_nothing_to_abort(hosted, body_of):
    async with hosted() as app:
        await app.played(body_of())
        answer = await app.http.post("/run/abort", json={"run_id": "run"})
        assert (answer.status_code, answer.json()) == (200, {"run_id": "run", "aborting": 0})
        assert (await app.http.get("/run/status/run")).json()["episodes"] == {"truncated": 1}


async def test_a_run_nobody_began_is_404(hosted):
    async with hosted() as app:
        for answer in (
            await app.http.get("/run/status/no-such"),
            await app.http.post("/run/abort", json={"run_id": "no-such"}),
        ):
            assert answer.status_code == 404
            assert answer.json()["error"] == {
                "code": "not_found",
                "message": "no rollout of this run plays, waits or is stored here",
                "field": "run_id",
            }
