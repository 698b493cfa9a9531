"""Keys that change, rates, pages of others, metrics, readiness."""

from __future__ import annotations

import sqlite3

import pytest

from task_app.server.metrics import CONTENT_TYPE

pytestmark = pytest.mark.anyio
BOTH = {"ENVIRONMENT_API_KEY": "old-key", "ENVIRONMENT_API_KEY_NEXT": "new-key"}


async def test_two_keys_are_valid_while_clients_change(hosted):
    async with hosted(BOTH) as app:
        codes = [
            (await app.http.get("/info", headers={"X-API-Key": key})).status_code for key in ("old-key", "new-key", "x")
        ]
    assert codes == [200, 200, 401]


async def test_neither_key_is_sent_to_an_inference_host(hosted, endpoint):
    config = {"policy.name": "chat", "policy.model": "m", "policy.inference_url": endpoint.url}
    async with hosted(BOTH, **config) as app:
        app.http.headers["X-API-Key"] = "new-key"
        await app.played(policy={"config": {"max_llm_calls": 1}})
    assert "key" not in str(endpoint.received[0].headers).lower().replace("keep-alive", "")


@pytest.mark.parametrize("variable", list(BOTH))
async def test_a_provider_key_that_is_one_of_ours_is_refused(hosted, endpoint, variable):
    from task_app.core.errors import ConfigError

    config = {"policy.inference_url": endpoint.url, "policy.api_key_env": variable}
    with pytest.raises(ConfigError, match="own key, which is never sent out"):
        async with hosted(BOTH, **config):
            raise AssertionError("it began")


async def test_more_than_a_keys_rate_is_429_with_the_time_to_wait(hosted):
    async with hosted(BOTH, **{"server.requests_per_minute": 3}) as app:
        codes = [(await app.http.get("/info", headers={"X-API-Key": "old-key"})).status_code for _ in range(4)]
        refused = await app.http.get("/info", headers={"Authorization": "Bearer old-key"})
        other = await app.http.get("/info", headers={"X-API-Key": "new-key"})
        health = await app.http.get("/health")
    # A minute may end between two of these.
    assert codes in ([200, 200, 200, 429], [200, 200, 200, 200])
    if codes[-1] == 429:
        assert refused.status_code == 429
        assert refused.json()["error"]["message"] == "at most 3 requests a minute are answered for a key"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert (other.status_code, health.status_code) == (200, 200)


async def test_strangers_without_a_key_use_nobodys_rate(hosted):
    async with hosted(BOTH, **{"server.requests_per_minute": 1}) as app:
        for _ in range(3):
            assert (await app.http.get("/info")).status_code == 401
        assert (await app.http.get("/info", headers={"X-API-Key": "old-key"})).status_code == 200


@pytest.mark.parametrize(("origins", "allowed"), [([], None), (["https://page.example"], "https://page.example")])
async def test_pages_of_others_may_call_only_if_they_are_named(hosted, origins, allowed):
    headers = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    async with hosted(BOTH, **{"server.cors_origins": origins}) as app:
        preflight = await app.http.options("/rollout", headers=headers)
        simple = await app.http.get("/health", headers=headers)
    assert preflight.headers.get("Access-Control-Allow-Origin") == allowed
    assert simple.headers.get("Access-Control-Allow-Origin") == allowed
    assert preflight.status_code == (200 if allowed else 401)


async def test_metrics_count_what_was_played_and_asked(hosted, endpoint, chat):
    async with hosted(BOTH) as app:
        assert (await app.http.get("/metrics")).status_code == 401
        app.http.headers["X-API-Key"] = "old-key"
        await app.played()
        endpoint.otherwise = endpoint.status(401)
        await app.rollout(**chat)
        await app.http.get("/no-such-route-secret")
        answer = await app.http.get("/metrics")
    assert answer.headers["Content-Type"].startswith(CONTENT_TYPE.split(";")[0])
    lines = answer.text.splitlines()
    for line in (
        'task_app_rollouts_total{status="truncated"} 1.0',
        'task_app_rollouts_total{status="infra_error"} 1.0',
        "task_app_decisions_total 3.0",
        "task_app_rollouts_running 0.0",
        "task_app_rollout_seconds_count 2.0",
        'task_app_request_seconds_count{method="POST",route="/rollout",status="200"} 1.0',
        'task_app_request_seconds_count{method="POST",route="/rollout",status="503"} 1.0',
        'task_app_request_seconds_count{method="GET",route="other",status="404"} 1.0',
    ):
        assert line in lines
    assert "secret" not in answer.text


async def test_an_app_whose_database_is_broken_is_up_but_not_ready(hosted):
    async with hosted() as app:
        assert (await app.http.get("/health")).status_code == 200
        with sqlite3.connect(app.db) as other:
            other.execute("ALTER TABLE episodes RENAME TO gone")
        other.close()
        answer = await app.http.get("/health")
    told = answer.json()
    assert (answer.status_code, told["healthy"], told["ready"], told["store"]) == (503, False, False, {"ok": False})


async def test_an_app_that_stops_is_not_ready(hosted):
    async with hosted() as app:
        app.app.state.service.stop()
        assert (await app.http.get("/health")).json()["ready"] is False
        assert (await app.rollout()).status_code == 503


async def test_a_key_is_counted_whatever_else_is_sent_beside_it(hosted):
    """Another X-API-Key with each request is no other caller while the Bearer key is the same."""
    async with hosted(BOTH, **{"server.requests_per_minute": 2}) as app:
        codes = []
        for index in range(4):
            headers = {"X-API-Key": f"made-up-{index}", "Authorization": "Bearer old-key"}
            codes.append((await app.http.get("/info", headers=headers)).status_code)
    assert codes[:2] == [200, 200]
    assert 429 in codes  # a minute may end between two of these


async def test_requests_that_cannot_be_counted_are_503(hosted, monkeypatch):
    from task_app.core.errors import StoreError

    def full(self, caller):
        raise StoreError("disk full")

    async with hosted(BOTH, **{"server.requests_per_minute": 2}) as app:
        monkeypatch.setattr("task_app.server.shared.Shared.calls_this_minute", full)
        answer = await app.http.get("/info", headers={"X-API-Key": "old-key"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


async def test_aborts_are_heeded_after_a_moment_in_which_they_could_not_be(hosted, endpoint, chat, monkeypatch):
    import asyncio

    from task_app.core.errors import StoreError
    from task_app.server.shared import Shared

    real, failed = Shared.to_abort, []

    def once_broken(self):
        if not failed:
            failed.append(1)
            raise StoreError("locked")
        return real(self)

    monkeypatch.setattr(Shared, "to_abort", once_broken)
    endpoint.otherwise = endpoint.slow(0.2, endpoint.call("noop"))
    async with hosted() as app:
        playing = asyncio.create_task(app.rollout(**chat, policy__config__max_llm_calls=100))
        while not failed:
            await asyncio.sleep(0.05)
        await app.http.post("/run/abort", json={"run_id": "run"})
        assert (await asyncio.wait_for(playing, 20)).json()["aborted"] is True
