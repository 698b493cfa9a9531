"""The chat policy against a real endpoint on this machine: what it passes on, retries, waits for, and sends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.types import AssistantMessage, Completion, DecisionRequest, ToolCall
from task_app.policies import ChatPolicy, ChatSettings
from task_app.policies.chat import completions_url, provider_key, same_origin
from task_app.policies.endpoint import MAX_ANSWER_BYTES
from task_app.policies.http_client import HttpClient

TOOLS = ({"type": "function", "function": {"name": "interact_many", "parameters": {"type": "object"}}},)
MESSAGES = ({"role": "system", "content": "rules"}, {"role": "user", "content": "state"})


def request(time_left_s: float | None = None, tools: tuple[dict[str, Any], ...] = TOOLS) -> DecisionRequest:
    return DecisionRequest("ep", 1, 10, 0, 0, "0/-/0/0/1", MESSAGES, tools, None, time_left_s)


@pytest.fixture
def ask(endpoint) -> Callable[..., Completion]:
    """Ask the endpoint once, with some settings; the policy is closed afterwards."""

    def run(time_left_s: float | None = None, tools: tuple[dict[str, Any], ...] = TOOLS, **settings: Any) -> Completion:
        settings = {"model": "m", "inference_url": endpoint.url, **settings}
        policy = ChatPolicy(ChatSettings(**settings))
        try:
            return policy.decide([request(time_left_s, tools)])[0]
        finally:
            policy.close()

    return run


def wire_call(name: str = "interact_many", arguments: Any = "{}", call_id: str | None = "x") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# -- what is sent ---------------------------------------------------------------------------------


def test_sends_messages_tools_and_settings(endpoint, ask):
    ask(temperature=0.5, top_p=0.9, max_tokens=77, api_key="k")
    (received,) = endpoint.received
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == "Bearer k"
    assert received.body == {
        "model": "m",
        "messages": list(MESSAGES),
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 77,
        "tools": list(TOOLS),
        "tool_choice": "required",
    }


def test_without_key_and_tools_neither_is_sent(endpoint, ask):
    ask(tools=())
    assert "authorization" not in endpoint.received[0].headers
    assert not {"tools", "tool_choice"} & endpoint.received[0].body.keys()


def test_one_answer_per_request_in_order(endpoint):
    endpoint.plan(endpoint.completion({"content": "one"}), endpoint.completion({"content": "two"}))
    policy = ChatPolicy(ChatSettings("m", endpoint.url))
    said = [completion.message.content for completion in policy.decide([request(), request()])]
    policy.end_episode("ep")
    policy.close()
    assert said == ["one", "two"]


def test_many_threads_share_one_client(endpoint):
    with HttpClient() as client, ThreadPoolExecutor(8) as pool:
        policy = ChatPolicy(ChatSettings("m", endpoint.url), client)
        answers = list(pool.map(lambda _: policy.decide([request()])[0], range(40)))
    assert len(answers) == len(endpoint.received) == 40


# -- what comes back, as said ---------------------------------------------------------------------


def test_completion_carries_call_counts_and_names(endpoint, ask):
    completion = ask()
    assert completion.message.tool_calls[0].name == "interact_many"
    assert json.loads(completion.message.tool_calls[0].arguments)["actions"][0] == "move_right"
    assert (completion.completion_id, completion.model) == ("cmpl-1", "stub-1")
    assert (completion.prompt_tokens, completion.completion_tokens) == (11, 7)
    assert 0 < completion.latency_s < 60


@pytest.mark.parametrize(
    ("message", "finish_reason", "expected"),
    [
        pytest.param(
            {"tool_calls": [wire_call(arguments='{"actions": [')]},
            "tool_calls",
            AssistantMessage(None, (ToolCall("interact_many", '{"actions": [', "x"),), "tool_calls"),
            id="malformed-json",
        ),
        pytest.param(
            {"content": "hm", "tool_calls": [wire_call(call_id="x"), wire_call("other", "[]", None)]},
            "tool_calls",
            AssistantMessage(
                "hm", (ToolCall("interact_many", "{}", "x"), ToolCall("other", "[]", "call_1")), "tool_calls"
            ),
            id="two-calls-and-text",
        ),
        pytest.param({"content": "I would walk."}, "stop", AssistantMessage("I would walk."), id="text-only"),
        pytest.param(
            {"tool_calls": [wire_call(arguments='{"actions": ["mo')]},
            "length",
            AssistantMessage(None, (ToolCall("interact_many", '{"actions": ["mo', "x"),), "length"),
            id="cut-at-length",
        ),
        pytest.param(
            {"tool_calls": [wire_call(arguments={"actions": ["do"]})]},
            "tool_calls",
            AssistantMessage(None, (ToolCall("interact_many", '{"actions": ["do"]}', "x"),), "tool_calls"),
            id="arguments-as-object",
        ),
        pytest.param(
            {"tool_calls": [{"function": {}}]},
            None,
            AssistantMessage(None, (ToolCall("", "", "call_0"),)),
            id="empty-call",
        ),
        pytest.param(
            {"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
            "stop",
            AssistantMessage("ab"),
            id="text-in-parts",
        ),
        pytest.param({"content": "x\ud800y"}, "stop", AssistantMessage("x?y"), id="half-a-surrogate-pair"),
        pytest.param({"content": None, "tool_calls": None}, "stop", AssistantMessage(), id="nothing"),
    ],
)
def test_answers_are_passed_on_as_said(endpoint, ask, message, finish_reason, expected):
    endpoint.plan(endpoint.completion(message, finish_reason))
    assert ask().message == expected


def test_counts_that_are_no_numbers_are_none(endpoint, ask):
    endpoint.plan(endpoint.completion({"content": "x"}, usage={"prompt_tokens": "many"}))
    completion = ask()
    assert (completion.prompt_tokens, completion.completion_tokens) == (None, None)


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "why"),
    [(400, "refused the request"), (401, "refused the key"), (403, "refused the key"), (404, "no such address"),
     (307, "redirects, which is not followed")],
)  # fmt: skip
def test_refusals_are_not_retried_and_not_repeated(endpoint, ask, status, why):
    endpoint.otherwise = endpoint.status(status, location="http://127.0.0.1:1/")
    with pytest.raises(PolicyError, match=f"model endpoint 127.0.0.1: HTTP {status}.*{why}") as caught:
        ask(api_key="sk-secret")
    assert not caught.value.retryable
    assert "sk-secret" not in str(caught.value)
    assert len(endpoint.received) == 1


FAULTS: dict[str, Callable[[Any], Any]] = {
    "429": lambda e: e.status(429),
    "500": lambda e: e.status(500),
    "503": lambda e: e.status(503),
    "reset": lambda e: e.reset,
    "not-json": lambda e: e.raw(b"<html>"),
    "not-text": lambda e: e.raw(b"\xff\xfe"),
    "deep-json": lambda e: e.raw(b"[" * 100_000),
    "list": lambda e: e.raw(b"[]"),
    "number": lambda e: e.raw(b"7"),
    "no-choices": lambda e: e.raw(b'{"choices": []}'),
    "no-message": lambda e: e.raw(b'{"choices": [{}]}'),
    "call-without-function": lambda e: e.completion({"tool_calls": [{"id": "x"}]}),
    "calls-no-list": lambda e: e.completion({"tool_calls": 3}),
    "usage-a-list": lambda e: e.completion({"content": "x"}, usage=[1]),
    "too-long": lambda e: e.raw(b" " * (MAX_ANSWER_BYTES + 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_retried(endpoint, ask, fault):
    endpoint.plan(FAULTS[fault](endpoint))
    assert ask().completion_id == "cmpl-1"
    assert len(endpoint.received) == 2


def test_tries_are_counted_and_the_last_cause_is_named(endpoint, ask):
    endpoint.plan(endpoint.status(500), endpoint.reset)
    endpoint.otherwise = endpoint.status(502)
    with pytest.raises(PolicyError, match=r"127.0.0.1: HTTP 502 \(tried 3 times\)") as caught:
        ask(tries=3)
    assert not caught.value.retryable
    assert len(endpoint.received) == 3


def test_a_slow_answer_is_tried_again_within_the_deadline(endpoint, ask):
    endpoint.plan(endpoint.hang)
    start = time.monotonic()
    assert ask(timeout_s=1.0, deadline_s=60).completion_id == "cmpl-1"
    assert 1.0 <= time.monotonic() - start < 10


@pytest.mark.parametrize("behaviour", ["hang", "trickle"])
def test_the_deadline_bounds_all_tries_together(endpoint, ask, behaviour):
    endpoint.otherwise = getattr(endpoint, behaviour)
    start = time.monotonic()
    with pytest.raises(PolicyError, match="no whole answer within"):
        ask(timeout_s=0.4, deadline_s=1.0, tries=10)
    assert time.monotonic() - start < 4
    assert 2 <= len(endpoint.received) <= 3


def test_the_episodes_own_time_limit_bounds_it_too(endpoint, ask):
    endpoint.otherwise = endpoint.hang
    start = time.monotonic()
    with pytest.raises(PolicyError, match="no whole answer within"):
        ask(time_left_s=0.3)
    assert time.monotonic() - start < 2


def test_a_pause_the_endpoint_asks_for_is_kept(endpoint, ask):
    endpoint.plan(endpoint.status(429, retry_after="1"))
    start = time.monotonic()
    ask()
    assert 1.0 <= time.monotonic() - start < 5


def test_a_pause_beyond_the_deadline_is_not_waited_for(endpoint, ask):
    endpoint.otherwise = endpoint.status(429, retry_after="3600")
    start = time.monotonic()
    with pytest.raises(PolicyError, match=r"HTTP 429 \(tried once; it asks to wait 3600 s, but only"):
        ask(deadline_s=30)
    assert time.monotonic() - start < 5


def test_nobody_there(endpoint, ask, free_port):
    with pytest.raises(PolicyError, match="model endpoint 127.0.0.1: it cannot be reached"):
        ask(inference_url=f"http://127.0.0.1:{free_port}", tries=2)


# -- addresses and keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("https://host", "https://host/v1/chat/completions"),
        ("https://host/", "https://host/v1/chat/completions"),
        ("https://host/v1", "https://host/v1/chat/completions"),
        ("https://host/v1/", "https://host/v1/chat/completions"),
        ("https://host?cid=x", "https://host/v1/chat/completions?cid=x"),
        ("https://host/v1?a=1&b=2%2F3", "https://host/v1/chat/completions?a=1&b=2%2F3"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1/chat/completions"),
        ("http://host:8000/v1/chat/completions", "http://host:8000/v1/chat/completions"),
        ("http://host/v1/chat/completions/?x", "http://host/v1/chat/completions?x"),
        ("http://host/a%2Fb", "http://host/a%2Fb/chat/completions"),
    ],
)
def test_completions_url(base, expected):
    assert str(completions_url(base)) == expected


@pytest.mark.parametrize("base", ["", "host/v1", "ftp://host", "http://", "http://[::1", "http://xn--a", "http://a\n"])
def test_what_is_no_url_is_refused_without_being_repeated(base):
    with pytest.raises(ConfigError, match="inference_url") as caught:
        completions_url(base)
    assert caught.value.field == "policy.inference_url"
    assert caught.value.public == "an http:// or https:// URL with a host is needed"


def test_the_query_arrives(endpoint, ask):
    ask(inference_url=f"{endpoint.url}/proxy/v1/?cid=x")
    assert endpoint.received[0].path == "/proxy/v1/chat/completions?cid=x"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("https://host/other?x=1", True),
        ("https://HOST:443", True),
        ("http://host", False),
        ("https://host:8443", False),
        ("https://host.evil.example", False),
        ("https://host@evil.example", False),
    ],
)
def test_same_origin(other, same):
    assert same_origin("https://host/v1", other) is same


ENVIRON = {
    "OPENAI_API_KEY": "sk-openai",
    "GROQ_API_KEY": "gsk-groq\n",
    "MINE": "mine",
    "ENVIRONMENT_API_KEY": "ek-secret",
}


def key(url: str, variable: str = "", environ: dict[str, str] = ENVIRON) -> str:
    return provider_key(url, variable, environ, own_key_envs=["ENVIRONMENT_API_KEY"])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", "sk-openai"),
        ("https://api.groq.com/openai/v1", "gsk-groq"),
        ("http://api.openai.com/v1", ""),
        ("https://api.openai.com.evil.example/v1", ""),
        ("https://api.openai.com@evil.example/v1", ""),
        ("https://evil.example/api.openai.com", ""),
        ("http://127.0.0.1:8000", ""),
    ],
)
def test_a_providers_key_goes_to_its_host_alone(url, expected):
    assert key(url) == expected


def test_a_named_variable_is_used_and_must_be_set():
    assert key("http://127.0.0.1:8000", "MINE") == "mine"
    with pytest.raises(ConfigError, match="variable ABSENT is not set"):
        key("http://127.0.0.1:8000", "ABSENT")


def test_no_key_at_all_is_no_error():
    assert key("https://api.openai.com/v1", environ={}) == ""


@pytest.mark.parametrize("variable", ["ENVIRONMENT_API_KEY", "COPY"])
def test_the_apps_own_key_is_never_sent(variable):
    environ = ENVIRON | {"COPY": " ek-secret "}
    with pytest.raises(ConfigError, match="never sent out") as caught:
        key("https://api.openai.com/v1", variable, environ)
    assert "ek-secret" not in str(caught.value)


def test_the_apps_own_key_is_not_sent_as_a_providers_either():
    with pytest.raises(ConfigError, match="never sent out"):
        key("https://api.openai.com/v1", environ={"OPENAI_API_KEY": "ek-secret", "ENVIRONMENT_API_KEY": "ek-secret"})


@pytest.mark.parametrize("value", ["clé", "two\nlines"])
def test_what_cannot_be_a_header_is_no_key(value):
    with pytest.raises(ConfigError, match="MINE holds something that is no key") as caught:
        key("https://host", "MINE", {"MINE": value})
    assert value not in str(caught.value)
