"""Endpoints, databases and clocks that fail: the episode is stored with its cause, and the client told."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time

import pytest

from task_app.core.errors import ConfigError, EnvError
from task_app.server import service

pytestmark = pytest.mark.anyio


async def test_a_failed_endpoint_is_503_and_a_stored_episode_without_reward(hosted, endpoint, chat):
    endpoint.plan(endpoint.call("noop"))
    endpoint.otherwise = endpoint.status(500)
    async with hosted(**{"policy.tries": 2}) as app:
        answer = await app.rollout(**chat)
        (stored,) = app.episodes()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "infra_error")
    assert error["message"] == (
        "the rollout broke: model endpoint (inference_url): HTTP 500 (tried 2 times); it is stored without a reward"
    )
    assert (error["episode_id"], error["decisions"]) == (stored.episode_id, 1)
    assert (stored.status, stored.outcome) == ("infra_error", None)
    assert stored.cause == "model endpoint 127.0.0.1: HTTP 500 (tried 2 times)"
    assert len(stored.decisions) == 1


async def test_an_endpoint_named_by_the_servers_config_is_named_in_the_answer(hosted, endpoint):
    endpoint.otherwise = endpoint.status(401)
    config = {"policy.name": "chat", "policy.model": "m", "policy.inference_url": endpoint.url}
    async with hosted(**config) as app:
        answer = await app.rollout(policy={})
    assert "model endpoint 127.0.0.1: HTTP 401, it refused the key" in answer.json()["error"]["message"]


async def test_a_client_calls_the_chat_policy_by_its_old_name(hosted, endpoint, chat):
    async with hosted() as app:
        answer = await app.played(**chat | {"policy__policy_name": "crafter-react"})
    assert answer["trajectories"][0]["policy_id"] == "chat"
    assert len(endpoint.received) == 3


async def test_a_broken_world_is_503(hosted, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no map")

    async with hosted() as app:
        monkeypatch.setattr("task_app.apps.crafter.engine.CrafterEnv.step", broken)
        answer = await app.rollout()
        (stored,) = app.episodes()
    assert answer.status_code == 503
    assert (stored.status, stored.cause) == ("infra_error", "environment failed 3 times: RuntimeError: no map")


async def test_a_broken_player_costs_its_episode_and_says_no_more_than_its_kind(hosted, monkeypatch, caplog):
    def broken(*arguments):
        raise ZeroDivisionError("secret")

    async with hosted() as app:
        monkeypatch.setattr("task_app.apps.crafter.scripted.RandomAgent.act", broken)
        answer = await app.rollout()
        (stored,) = app.episodes()
    assert answer.status_code == 503
    assert "unexpected ZeroDivisionError" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert (stored.status, stored.outcome) == ("infra_error", None)
    assert "secret" in caplog.text  # the log has it whole


async def test_a_world_that_cannot_be_described_is_503(hosted, monkeypatch):
    def broken(*arguments):
        raise EnvError("no map")

    async with hosted() as app:
        monkeypatch.setattr("task_app.apps.crafter.app.CrafterApp.seed_info", broken)
        assert (await app.http.get("/task_info?seed=1")).status_code == 503


async def test_a_database_that_cannot_be_written_is_503_and_what_it_held_is_kept(hosted):
    async with hosted() as app:
        await app.played()
        with sqlite3.connect(app.db) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        other.close()
        answer = await app.rollout()
        with sqlite3.connect(app.db) as other:
            other.execute("DROP TRIGGER full")
        other.close()
        await app.played()
        assert len(app.episodes()) == 2
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


# -- time -----------------------------------------------------------------------------------------


async def test_a_rollout_is_aborted_when_its_time_is_up(hosted, monkeypatch):
    def slow(self, observation):
        time.sleep(0.2)
        return ["noop"]

    async with hosted() as app:
        await app.http.get("/task_info?seed=1")  # makes the world, whose time is not at stake
        monkeypatch.setattr("task_app.apps.crafter.scripted.RandomAgent.act", slow)
        answer = await app.played(safety={"max_time_s": 0.7}, policy__config__max_llm_calls=50)
        (stored,) = app.episodes()
    assert answer["aborted"] is True
    assert (stored.status, stored.cause, stored.outcome) == ("aborted", "took longer than 0.7 s", None)
    assert 1 <= len(stored.decisions) <= 4
    assert answer["trajectories"][0]["length"] == len(stored.decisions)
    assert {step["reward"] for step in answer["trajectories"][0]["steps"]} == {None}
    assert answer["metrics"]["episode_returns"] == [None]
    assert answer["metrics"]["outcome_score"] is answer["metrics"]["events_score"] is None
    assert not answer["trajectories"][0]["steps"][-1]["done"]


async def test_time_that_runs_out_in_a_model_call_aborts_too(hosted, endpoint, chat):
    endpoint.plan(endpoint.call("noop"))
    endpoint.otherwise = endpoint.hang
    async with hosted() as app:
        await app.http.get("/task_info?seed=1")
        answer = await app.played(safety={"max_time_s": 0.7}, **chat)
        (stored,) = app.episodes()
    assert answer["aborted"] is True
    assert (stored.status, stored.cause, len(stored.decisions)) == ("aborted", "took longer than 0.7 s", 1)


async def test_a_rollout_that_cannot_be_ended_is_given_up_and_its_place_is_free(hosted, monkeypatch):
    def stuck(self, observation):
        time.sleep(1.0)
        return ["noop"]

    monkeypatch.setattr(service, "GRACE_S", 0.1)
    async with hosted(**{"server.max_concurrent_rollouts": 1}) as app:
        with monkeypatch.context() as patched:
            patched.setattr("task_app.apps.crafter.scripted.RandomAgent.act", stuck)
            start = time.monotonic()
            answer = await app.played(safety={"max_time_s": 0.2})
            assert time.monotonic() - start < 0.9
        assert (answer["aborted"], answer["trajectories"][0]["length"]) == (True, 0)
        await app.played(policy={"policy_name": "expert", "config": {"max_llm_calls": 1}})
        await asyncio.sleep(1.0)  # the thread comes back, and changes nothing
        stored = app.episodes()
    assert [episode.status for episode in stored] == ["aborted", "truncated"]
    assert stored[0].cause == "took longer than 0.2 s"


# -- how many at once -----------------------------------------------------------------------------


async def test_at_most_so_many_play_further_ones_wait_and_the_rest_are_told_to_come_back(hosted, endpoint, chat):
    endpoint.plan(endpoint.hang, endpoint.hang)
    limits = {"server.max_concurrent_rollouts": 2, "server.max_waiting_rollouts": 1}
    async with hosted(**limits) as app:
        two = [asyncio.create_task(app.rollout(safety={"max_time_s": 1.0}, **chat)) for _ in range(2)]
        while len(endpoint.received) < 2:
            await asyncio.sleep(0.01)
        third = asyncio.create_task(app.rollout(**chat))
        await asyncio.sleep(0.1)
        refused = await app.rollout()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "busy"
        assert (await app.http.get("/health")).status_code == 200
        assert len(endpoint.received) == 2
        assert [(await answer).json()["aborted"] for answer in (*two, third)] == [True, True, False]
        assert (await app.rollout()).status_code == 200


async def test_nobody_waits_longer_than_a_rollout_may_take(hosted, endpoint, chat):
    endpoint.otherwise = endpoint.hang
    async with hosted(**{"server.max_concurrent_rollouts": 1, "server.max_time_s": 1.5}) as app:
        playing = asyncio.create_task(app.rollout(**chat))
        while not endpoint.received:
            await asyncio.sleep(0.01)
        refused = await app.rollout(safety={"max_time_s": 0.2})
        assert refused.status_code == 429
        await playing


async def test_one_that_is_called_before_it_knows_that_it_waits_plays(hosted, endpoint, chat, monkeypatch):
    """A place may become free between the line in the file and the coroutine that waits for it."""
    async with hosted(**{"server.max_concurrent_rollouts": 1, "server.max_time_s": 5}) as app:
        shared = app.app.state.service.shared
        enter, free = shared.enter, threading.Event()

        def enter_slowly(episode_id: str, run_id: str) -> bool:
            plays = enter(episode_id, run_id)
            if not plays:
                free.set()
                while shared.counts().waiting:
                    time.sleep(0.01)
                time.sleep(0.2)  # its call goes out meanwhile
            return plays

        def answer_when_another_waits(handler):
            free.wait(10)
            endpoint.call("noop")(handler)

        monkeypatch.setattr(shared, "enter", enter_slowly)
        endpoint.plan(answer_when_another_waits)
        first = asyncio.create_task(app.rollout(**chat))
        while not endpoint.received:
            await asyncio.sleep(0.01)
        second = await app.rollout(**chat)
        assert (await first).status_code == second.status_code == 200


async def test_a_server_that_stops_aborts_what_plays_and_refuses_what_waits(hosted, endpoint, chat, monkeypatch):
    monkeypatch.setattr(service, "GRACE_S", 0.2)
    endpoint.otherwise = endpoint.hang
    async with hosted(**{"server.max_concurrent_rollouts": 1}) as app:
        playing = asyncio.create_task(app.rollout(**chat))
        while not endpoint.received:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(app.rollout(**chat))
        await asyncio.sleep(0.1)
        start = time.monotonic()
        app.app.state.service.stop()
        first, second = await playing, await waiting
        assert time.monotonic() - start < 2
        (stored,) = app.episodes()
    assert first.json()["aborted"] is True
    assert (stored.status, stored.cause) == ("aborted", "interrupted")
    assert (second.status_code, second.json()["error"]["message"]) == (503, "the server is stopping")


# -- keys -----------------------------------------------------------------------------------------

KEYS = {"ENVIRONMENT_API_KEY": "ek-own", "MODEL_KEY": "mk-model"}


async def test_the_configs_key_goes_to_the_configs_host_alone(hosted, endpoint, chat):
    config = {"policy.model": "m", "policy.inference_url": f"{endpoint.url}/v1", "policy.api_key_env": "MODEL_KEY"}
    with type(endpoint)() as other:
        async with hosted(KEYS, **config) as app:
            app.http.headers = {"X-API-Key": "ek-own"}
            await app.played(**chat | {"policy__config__inference_url": f"{endpoint.url}/another/path"})
            await app.played(**chat | {"policy__config__inference_url": other.url})
    assert {received.headers["authorization"] for received in endpoint.received} == {"Bearer mk-model"}
    assert len(other.received) == 3
    assert all("authorization" not in received.headers for received in other.received)
    assert "ek-own" not in str([*endpoint.received, *other.received])


@pytest.mark.parametrize(
    ("environ", "message"),
    [({}, "MODEL_KEY is not set"), ({"MODEL_KEY": "ek", "ENVIRONMENT_API_KEY": "ek"}, "never sent out")],
)
async def test_a_config_whose_key_is_missing_or_the_apps_own_is_not_served(hosted, environ, message):
    with pytest.raises(ConfigError, match=message):
        async with hosted(environ, **{"policy.inference_url": "http://127.0.0.1:9", "policy.api_key_env": "MODEL_KEY"}):
            pass
