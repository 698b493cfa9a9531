"""Model endpoints that fail, through a served app: what its client is told, and what is kept of the rollout."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from task_app.core.types import Episode
from task_app.policies.endpoint import MAX_ANSWER_BYTES
from task_app.store import TraceStore
from tests.policies.stub_endpoint import StubEndpoint
from tests.server.served import Served, running

KEY = "ek-faults-0123456789"
QUICK = ("--policy.timeout_s=0.8", "--policy.deadline_s=5", "--policy.tries=3")


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> Iterator[Served]:
    with running(
        tmp_path_factory.mktemp("faults") / "t.db", *QUICK, ENVIRONMENT_API_KEY=KEY, OPENAI_API_KEY="sk-x"
    ) as it:
        it.http.headers["X-API-Key"] = KEY
        yield it


def rollout(app: Served, endpoint: StubEndpoint, decisions: int = 2, **changes: Any) -> httpx.Response:
    config = {"model": "m", "inference_url": endpoint.url, "max_llm_calls": decisions} | changes.pop("config", {})
    body = {"run_id": "r", "env": {"seed": 1}, "policy": {"policy_name": "chat", "config": config}}
    record = {"trajectories": True, "return_trace": True, "trace_format": "full"}
    return app.http.post("/rollout", json=body | {"record": record} | changes)


def kept(app: Served, answer: httpx.Response) -> Episode:
    """The stored episode that an answer, good or bad, names."""
    said = answer.json()
    episode_id = said["error"]["episode_id"] if "error" in said else said["metrics"]["details"]["episode_id"]
    with TraceStore.open(app.db, read_only=True) as store:
        return store.episode(episode_id)


PASSING: dict[str, Callable[[StubEndpoint], Any]] = {
    "reset": lambda e: e.reset,
    "reset-mid-body": lambda e: e.reset_mid_body,
    "hang": lambda e: e.hang,
    "slow-drip": lambda e: e.trickle,
    "429": lambda e: e.status(429),
    "429-retry-after": lambda e: e.status(429, retry_after="1"),
    "500": lambda e: e.status(500),
    "garbage": lambda e: e.raw(b"<html>\xff"),
    "huge": lambda e: e.raw(b" " * (MAX_ANSWER_BYTES + 1)),
    "empty-choices": lambda e: e.raw(b'{"choices": []}'),
    "error-in-200": lambda e: e.raw(b'{"error": {"code": 503}}'),
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_costs_nothing(app, endpoint, fault):
    endpoint.plan(endpoint.call("noop"), PASSING[fault](endpoint))
    answer = rollout(app, endpoint)
    episode = kept(app, answer)
    assert answer.status_code == 200
    assert (episode.status, len(episode.decisions)) == ("truncated", 2)
    assert len(endpoint.received) == 3


LASTING: dict[str, tuple[Callable[[StubEndpoint], Any], str, int]] = {
    "400": (lambda e: e.status(400), "HTTP 400, it refused the request", 1),
    "401": (lambda e: e.status(401), "HTTP 401, it refused the key", 1),
    "403": (lambda e: e.status(403), "HTTP 403, it refused the key", 1),
    "404": (lambda e: e.status(404), "HTTP 404, it knows no such address or model", 1),
    "redirect": (lambda e: e.status(302, location="http://127.0.0.1:1/"), "HTTP 302, it redirects", 1),
    "429-for-an-hour": (lambda e: e.status(429, retry_after="3600"), "it asks to wait 3600 s", 1),
    "500": (lambda e: e.status(500), "HTTP 500 (tried 3 times)", 3),
    "reset": (lambda e: e.reset, "the connection broke", 3),
    "garbage": (lambda e: e.raw(b"\xff"), "the answer is not JSON", 3),
    "huge": (lambda e: e.raw(b" " * (MAX_ANSWER_BYTES + 1)), f"more than {MAX_ANSWER_BYTES} bytes", 3),
    "hang": (lambda e: e.hang, "no whole answer within", 3),
}


@pytest.mark.parametrize("fault", LASTING)
def test_a_fault_that_lasts_is_503_and_an_episode_without_reward(app, endpoint, fault):
    behaviour, cause, asked = LASTING[fault]
    endpoint.plan(endpoint.call("noop"))
    endpoint.otherwise = behaviour(endpoint)
    answer = rollout(app, endpoint)
    error, episode = answer.json()["error"], kept(app, answer)
    assert (answer.status_code, error["code"], error["decisions"]) == (503, "infra_error", 1)
    assert cause in error["message"]
    assert cause in episode.cause
    assert (episode.status, episode.outcome, len(episode.decisions)) == ("infra_error", None, 1)
    assert len(endpoint.received) == 1 + asked
    assert "sk-" not in answer.text + episode.cause


def test_nobody_at_the_endpoint(app, endpoint, free_tcp_port):
    answer = rollout(app, endpoint, config={"inference_url": f"http://127.0.0.1:{free_tcp_port}"})
    assert answer.status_code == 503
    assert "it cannot be reached (tried 3 times)" in kept(app, answer).cause


def test_a_prompt_that_outgrows_the_model_truncates_the_episode(app, endpoint):
    endpoint.plan(endpoint.call("noop"))
    endpoint.otherwise = endpoint.refusal(400, "too long", code="context_length_exceeded")
    answer = rollout(app, endpoint)
    episode = kept(app, answer)
    assert answer.status_code == 200
    assert (episode.status, episode.cause, episode.outcome) == ("truncated", "context", 0.0)
    assert answer.json()["trajectories"][0]["final"]["truncated"] is True


def test_how_a_model_is_asked_otherwise_is_kept_with_the_episode(app, endpoint):
    endpoint.plan(endpoint.refusal(400, "max_tokens is not supported", param="max_tokens"))
    first, second = (kept(app, rollout(app, endpoint)) for _ in range(2))
    told = ["with max_completion_tokens for max_tokens"]
    assert first.details["asked_differently"] == second.details["asked_differently"] == told
    assert len(endpoint.received) == 5, "the second rollout knows it already"


# -- what is known to go wrong elsewhere ----------------------------------------------------------


def test_no_key_is_shown_nor_sent_to_a_model_endpoint_and_both_headers_open_every_route(app, endpoint):
    refused = httpx.post(f"{app.http.base_url}/rollout", json={}, headers={"X-API-Key": "wrong"}, trust_env=False)
    assert refused.status_code == 401
    assert not any(KEY[:length] in refused.text for length in (8, 15, len(KEY)))
    bearer = {"Authorization": f"Bearer {KEY}"}
    for path in ("/info", "/task_info?seed=1"):
        answer = httpx.get(f"{app.http.base_url}{path}", headers=bearer, trust_env=False)
        assert answer.status_code == 200
    assert rollout(app, endpoint, config={"api_key": "sk-of-the-request"}).status_code == 200
    for received in endpoint.received:
        sent = json.dumps([received.path, received.headers, received.body])
        assert KEY not in sent
        assert "sk-" not in sent
        assert "authorization" not in received.headers


def test_all_decisions_go_over_one_connection_and_none_waits_for_a_tokenizer(app, endpoint):
    rollout(app, endpoint)  # makes the world and the connection
    start = time.monotonic()
    answer = rollout(app, endpoint, decisions=20)
    assert answer.status_code == 200
    assert time.monotonic() - start < 5
    assert len({received.client for received in endpoint.received}) == 1


def test_one_failing_upstream_does_not_hold_a_rollout(app, endpoint):
    endpoint.otherwise = endpoint.status(500)
    start = time.monotonic()
    assert rollout(app, endpoint, decisions=20).status_code == 503
    assert time.monotonic() - start < 5 + 1
    assert len(endpoint.received) == 3


def test_the_time_a_client_allows_is_kept_whatever_the_endpoint_does(app, endpoint):
    endpoint.otherwise = endpoint.hang
    start = time.monotonic()
    answer = rollout(app, endpoint, safety={"max_time_s": 0.3})
    assert time.monotonic() - start < 2.5
    assert answer.json()["aborted"] is True
    assert kept(app, answer).cause == "took longer than 0.3 s"


def test_a_base_address_with_a_query_keeps_it_behind_the_path(app, endpoint):
    for base in ("?cid=x", "/?cid=x", "/v1?cid=x", "/v1/chat/completions?cid=x"):
        assert rollout(app, endpoint, config={"inference_url": endpoint.url + base}).status_code == 200
    assert {received.path for received in endpoint.received} == {"/v1/chat/completions?cid=x"}


def test_a_refused_answer_is_kept_as_said_and_runs_nothing(app, endpoint):
    endpoint.otherwise = endpoint.completion({"content": None, "refusal": "I will not play."}, "stop")
    answer = rollout(app, endpoint)
    episode = kept(app, answer)
    assert answer.status_code == 200
    for decision in episode.decisions:
        assert decision.completion.message.content == "I will not play."
        assert decision.failure is not None
        assert decision.steps == ()
    assert [step["info"]["executed"] for step in answer.json()["trajectories"][0]["steps"]] == [[], []]


def test_nothing_is_printed_per_decision(endpoint, tmp_path):
    with running(tmp_path / "t.db") as app:
        assert rollout(app, endpoint, decisions=20).status_code == 200
        app.process.terminate()
        printed = app.process.communicate(timeout=30)[0]
    assert len(printed) < 1000
    assert "interact_many" not in printed
