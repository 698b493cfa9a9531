"""`HostedTaskApp` against the real app on a real port, and against something else that answers there."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler

import pytest

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.types import Episode, StepRewardFlags
from task_app.core.wire import episode_bytes
from task_app.http.ports import listen
from task_app.rollout import Limits, plan_groups, play
from task_app.rollout.client import UNANSWERED, HostedTaskApp
from task_app.store import TraceStore
from tests.policies.stub_endpoint import StubEndpoint

FLAGS = StepRewardFlags(kind="absolute", indicator_lambda=0.5, beta=0.25, horizon="episode")
PLANS = plan_groups(range(2), 2, run_id="run", noise_seed=3)
BODY = {"run_id": "r", "env": {"seed": 1}, "policy": {"policy_name": "random", "config": {"max_llm_calls": 1}}}


def test_health_and_task_info(served):
    with HostedTaskApp(served({"ENVIRONMENT_API_KEY": "ek"}) + "/", api_key=" ek\n") as app:
        assert app.health()["healthy"] is True
        assert "instances" not in app.task_info()
        assert [one["seed"] for one in app.task_info(1, 2)["instances"]] == [1, 2]
        assert app.rollout(BODY)["run_id"] == "r"


@pytest.mark.parametrize("flags", [FLAGS, StepRewardFlags(mode="off"), StepRewardFlags(mode="env_sparse")])
def test_plans_played_there_are_the_episodes_played_here(served, tmp_path, spec_of, player, flags):
    spec = spec_of(max_actions_per_decision=3)
    here = play(PLANS, spec, player(spec, "random"), Limits(4), flags, lambda episode: None)
    sunk: list[Episode] = []
    with HostedTaskApp(served()) as app:
        there = app.play(PLANS, spec, {"policy_name": "random"}, flags, 4, sunk.append, noise_seed=3, concurrency=4)
    assert [episode_bytes(episode) for episode in there] == [episode_bytes(episode) for episode in here]
    assert [(e.run_id, e.group_id, e.member) for e in there] == [(p.run_id, p.group_id, p.member) for p in PLANS]
    assert {episode.episode_id for episode in sunk} == {episode.episode_id for episode in there}
    with TraceStore.open(tmp_path / "hosted.db", read_only=True) as store:
        assert list(store.episodes()) == there


def test_the_sink_is_called_from_one_thread_at_a_time(served, spec_of):
    inside = threading.Lock()

    def sink(episode: Episode) -> None:
        assert inside.acquire(blocking=False)
        time.sleep(0.02)
        inside.release()

    spec = spec_of()
    plans = plan_groups([1], 8, run_id="run")
    with HostedTaskApp(served()) as app:
        assert len(app.play(plans, spec, {"policy_name": "random"}, FLAGS, 1, sink, concurrency=8)) == 8


def test_a_rollout_that_breaks_there_is_an_episode_without_reward(served, endpoint, tmp_path, spec_of):
    endpoint.plan(endpoint.call("noop"), endpoint.call("noop"), endpoint.status(401))
    spec = spec_of()
    policy = {"policy_name": "chat", "config": {"model": "m", "inference_url": endpoint.url}}
    with HostedTaskApp(served()) as app:
        episodes = app.play(PLANS[:3], spec, policy, FLAGS, 1, lambda episode: None, concurrency=1)
    assert [episode.status for episode in episodes] == ["truncated", "truncated", "infra_error"]
    broken = episodes[2]
    assert (broken.outcome, broken.decisions, broken.flags, broken.policy) == (None, (), FLAGS, "chat")
    assert (broken.run_id, broken.group_id, broken.member) == (PLANS[2].run_id, PLANS[2].group_id, PLANS[2].member)
    assert "HTTP 503: the rollout broke: model endpoint (inference_url): HTTP 401" in broken.cause
    with TraceStore.open(tmp_path / "hosted.db", read_only=True) as store:
        kept = store.episode(broken.episode_id)
    assert (kept.status, kept.task, kept.prompt_hash) == ("infra_error", broken.task, broken.prompt_hash)


def test_a_wrong_key_and_a_refused_setting_are_named(served, spec_of):
    address = served({"ENVIRONMENT_API_KEY": "ek"}, **{"server.max_decisions": 5})
    with HostedTaskApp(address, api_key="other") as app:
        assert app.health()["healthy"] is True
        with pytest.raises(PolicyError, match="HTTP 401: a valid key is needed") as caught:
            app.task_info()
    assert not caught.value.retryable
    with HostedTaskApp(address, api_key="ek") as app, pytest.raises(PolicyError) as caught:
        app.play(PLANS, spec_of(), {"policy_name": "random"}, FLAGS, 6, lambda episode: None)
    assert "HTTP 422: at most 5 decisions in a rollout (policy.config.max_llm_calls)" in str(caught.value)


def test_a_busy_app_is_asked_again(served, endpoint):
    endpoint.plan(endpoint.status(429, retry_after="1"), endpoint.status(429), endpoint.raw(b'{"run_id": "r"}'))
    with HostedTaskApp(endpoint.url) as app:
        assert app.rollout(BODY) == {"run_id": "r"}
    assert len(endpoint.received) == 3


def test_an_app_that_stays_busy_is_left_in_the_end(endpoint):
    """It says so itself: no last call is made with too little time for its answer."""

    def busy_and_slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.02)
        endpoint.status(429)(handler)

    endpoint.otherwise = busy_and_slow
    start = time.monotonic()
    with HostedTaskApp(endpoint.url, timeout_s=2.0) as app, pytest.raises(PolicyError, match="HTTP 429, it is busy"):
        app.rollout(BODY)
    assert time.monotonic() - start < 6
    assert 2 <= len(endpoint.received) <= 10


def test_a_call_that_may_have_begun_is_never_repeated(endpoint):
    for behaviour, limit, message in [
        (endpoint.status(502), 30.0, "HTTP 502"),
        (endpoint.reset, 30.0, "the call failed"),
        (endpoint.hang, 0.3, "no answer within 0.3 s"),
    ]:
        endpoint.received.clear()
        endpoint.otherwise = behaviour
        with HostedTaskApp(endpoint.url, timeout_s=limit) as app, pytest.raises(PolicyError, match=message):
            app.rollout(BODY)
        assert len(endpoint.received) == 1


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>", "HTTP 200, and the answer is not JSON"),
        (200, b"[]", "HTTP 200, and the answer is not a task app's"),
        (404, b"[]", "HTTP 404, and the answer is not a task app's"),
        (500, b'{"error": "no"}', "HTTP 500, and the answer is not a task app's"),
        (503, b'{"error": {"message": "store"}}', "HTTP 503: store"),
    ],
)
def test_something_else_that_answers_is_named(endpoint, status, body, message):
    endpoint.otherwise = endpoint.raw(body, status)
    with HostedTaskApp(endpoint.url) as app, pytest.raises(PolicyError, match=message):
        app.rollout(BODY)


@pytest.mark.parametrize("body", [b"{}", b'{"trace": null}', b'{"trace": {"episode": {"episode_id": 3}}}'])
def test_an_answer_without_an_episode_is_an_error(endpoint, spec_of, body):
    endpoint.otherwise = endpoint.raw(body)
    with HostedTaskApp(endpoint.url) as app, pytest.raises(PolicyError, match="holds no episode record"):
        app.play(PLANS[:1], spec_of(), {"policy_name": "random"}, FLAGS, 1, lambda episode: None)


def test_what_is_asked_for_is_the_whole_plan(endpoint, spec_of):
    endpoint.otherwise = endpoint.raw(b"{}")
    spec = spec_of()
    with HostedTaskApp(endpoint.url, api_key="ek") as app, pytest.raises(PolicyError):
        app.play(
            [replace(PLANS[3], member=7)], spec, {"policy_name": "chat", "config": {"model": "m"}}, FLAGS, 9, print
        )
    (received,) = endpoint.received
    assert (received.path, received.headers["x-api-key"]) == ("/rollout", "ek")
    assert received.body == {
        "run_id": "run",
        "group_id": PLANS[3].group_id,
        "member": 7,
        "noise_seed": 0,
        "env": {
            "env_name": "crafter",
            "seed": 1,
            "config": {
                "options": spec.options.model_dump(),
                "step_rewards": {
                    "mode": "decision_stepwise",
                    "kind": "absolute",
                    "indicator_lambda": 0.5,
                    "step_beta": 0.25,
                    "horizon": "episode",
                },
            },
        },
        "policy": {"policy_name": "chat", "config": {"model": "m", "max_llm_calls": 9}},
        "record": {"trajectories": False, "return_trace": True, "trace_format": "full"},
    }


def test_nobody_there_is_said_after_some_tries():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    unreachable = pytest.raises(PolicyError, match=rf"task app http://127.0.0.1:{port}: it cannot be reached")
    with HostedTaskApp(f"http://127.0.0.1:{port}", tries=2) as app, unreachable:
        app.health()


@pytest.mark.parametrize("base_url", ["", "127.0.0.1:8010", "ftp://host"])
def test_what_is_no_url_is_refused(base_url):
    with pytest.raises(ConfigError, match="must begin with http") as caught:
        HostedTaskApp(base_url)
    assert caught.value.field == "base_url"


# -- an answer that is lost -----------------------------------------------------------------------


HEALTHY = b'{"healthy": false, "status": "not ready"}'
STOPPING = b'{"error": {"code": "stopping", "message": "the server is stopping", "field": ""}}'


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        (lambda stub: stub.reset, "the call failed"),
        (lambda stub: stub.reset_mid_body, "the call failed"),
        (lambda stub: stub.hang, "no answer within 2 s"),
        (lambda stub: stub.raw(STOPPING, 503), "HTTP 503: the server is stopping"),
        (lambda stub: stub.raw(b"<html>", 502), "HTTP 502, and the answer is not JSON"),
        (lambda stub: stub.raw(b"{}", 500), "HTTP 500, and the answer is not a task app's"),
    ],
)
def test_an_answer_lost_by_an_app_that_is_up_is_an_episode_without_reward(endpoint, spec_of, behaviour, cause):
    endpoint.plan(behaviour(endpoint), endpoint.raw(HEALTHY, 503), behaviour(endpoint), endpoint.raw(HEALTHY, 503))
    with HostedTaskApp(endpoint.url, timeout_s=2.0) as app:
        episodes = app.play(PLANS[:2], spec_of(), {"policy_name": "random"}, FLAGS, 1, print, concurrency=1)
    assert [request.path for request in endpoint.received] == ["/rollout", "/health"] * 2
    assert [(e.status, e.outcome, e.decisions) for e in episodes] == [("infra_error", None, ())] * 2
    assert all(cause in episode.cause and episode.details == {UNANSWERED: True} for episode in episodes)
    assert episodes[0].episode_id != episodes[1].episode_id


@pytest.mark.parametrize("health", [lambda stub: stub.reset, lambda stub: stub.raw(b"[]"), lambda stub: stub.raw(b"3")])
def test_an_answer_lost_by_an_app_that_is_gone_ends_everything(endpoint, spec_of, health):
    endpoint.plan(endpoint.reset)
    endpoint.otherwise = health(endpoint)
    with (
        HostedTaskApp(endpoint.url, tries=2) as app,
        pytest.raises(PolicyError, match=r"the call failed .*; nor does its /health answer"),
    ):
        app.play(PLANS[:1], spec_of(), {"policy_name": "random"}, FLAGS, 1, print)
    assert len(endpoint.received) <= 3


# -- an answer that is to be fetched elsewhere ----------------------------------------------------


def test_a_redirect_is_followed_by_get_on_the_same_server(endpoint):
    there = endpoint.raw(b"", 303, location="/rollout?__modal_function_call_id=fc-1")
    whole = endpoint.raw(b"", 303, location=f"{endpoint.url}/rollout?__modal_function_call_id=fc-1")
    endpoint.plan(there, whole, endpoint.raw(b'{"run_id": "r"}'))
    with HostedTaskApp(endpoint.url, api_key="ek") as app:
        assert app.rollout(BODY) == {"run_id": "r"}
    assert [(one.method, one.path) for one in endpoint.received] == [
        ("POST", "/rollout"), *[("GET", "/rollout?__modal_function_call_id=fc-1")] * 2,
    ]  # fmt: skip
    assert {one.headers["x-api-key"] for one in endpoint.received} == {"ek"}


@pytest.mark.parametrize("location", ["{other}/rollout", "https://127.0.0.1:{port}/", "//elsewhere/", "http://[", None])
def test_a_redirect_to_another_origin_is_not_followed(endpoint, location):
    with StubEndpoint() as other:
        port = endpoint.url.rpartition(":")[2]
        headers = {} if location is None else {"location": location.format(other=other.url, port=port)}
        endpoint.otherwise = endpoint.raw(b"", 303, **headers)
        with HostedTaskApp(endpoint.url, api_key="ek") as app, pytest.raises(PolicyError, match="HTTP 303"):
            app.rollout(BODY)
        assert (len(endpoint.received), other.received) == (1, [])


def test_other_redirects_are_not_followed(endpoint):
    endpoint.otherwise = endpoint.raw(b"", 307, location="/elsewhere")
    with HostedTaskApp(endpoint.url) as app, pytest.raises(PolicyError, match="HTTP 307"):
        app.rollout(BODY)
    assert len(endpoint.received) == 1


def test_redirects_without_end_end_at_the_deadline(endpoint):
    endpoint.otherwise = endpoint.raw(b"", 303, location="/rollout?again")
    start = time.monotonic()
    with HostedTaskApp(endpoint.url, timeout_s=2.0) as app, pytest.raises(PolicyError, match="no answer within 2 s"):
        app.rollout(BODY)
    assert time.monotonic() - start < 6
    assert 2 <= len(endpoint.received) <= 21
    assert [one.method for one in endpoint.received].count("POST") == 1


@pytest.mark.parametrize("then", [lambda stub: stub.reset, lambda stub: stub.status(429)])
def test_what_has_begun_and_is_lost_on_the_way_is_not_begun_again(endpoint, then):
    endpoint.plan(endpoint.raw(b"", 303, location="/rollout?x"), then(endpoint))
    with HostedTaskApp(endpoint.url) as app, pytest.raises(PolicyError):
        app.rollout(BODY)
    assert [one.method for one in endpoint.received] == ["POST", "GET"]
