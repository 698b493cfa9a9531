"""How OpenAI-compatible servers differ: what they answer, what they refuse, and when they want to be asked again."""

from __future__ import annotations

import gzip
import json
import logging
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from task_app.core.errors import ContextOverflow, PolicyError
from task_app.core.types import AssistantMessage, DecisionRequest, ToolCall
from task_app.policies import ChatPolicy, ChatSettings
from task_app.policies.chat import EPISODE_HEADER, NOISE_KEY_HEADER
from task_app.policies.http_client import HttpClient
from tests.policies.stub_endpoint import StubEndpoint
from tests.policies.test_chat import MESSAGES, TOOLS

OPENAI = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


class Asker:
    """One policy, asked as often as a test likes; what it notes is kept."""

    def __init__(self, client: HttpClient, url: str, **settings: Any) -> None:
        self.noted: dict[str, Any] = {}
        self.policy = ChatPolicy(ChatSettings(**{"model": "m", "inference_url": url, **settings}), client)

    def __call__(self, time_left_s: float | None = None, tools: Any = TOOLS, key: str = "0/-/0/0/1"):
        note = self.noted.__setitem__
        request = DecisionRequest("ep", 1, 10, 0, 0, key, MESSAGES, tools, None, time_left_s, None, note)
        return self.policy.decide([request])[0]


@pytest.fixture
def asker(endpoint):
    with HttpClient() as client:
        yield lambda **settings: Asker(client, endpoint.url, **settings)


# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "dropped", "kept"),
    [
        ({"content": "a", "reasoning_content": "hm"}, "a", "<think>\nhm\n</think>\n\na"),
        ({"content": None, "reasoning": "hm"}, None, "<think>\nhm\n</think>\n\n"),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "a"]},
            "a",
            "<think>\nhm\n</think>\n\na",
        ),
        ({"content": "a", "reasoning": {"steps": 3}}, "a", "a"),
        ({"content": None, "refusal": "I will not."}, "I will not.", "I will not."),
    ],
    ids=["deepseek", "groq", "mistral", "no-text", "refusal"],
)
def test_reasoning_is_dropped_or_kept_as_the_config_says(endpoint, asker, message, dropped, kept):
    endpoint.otherwise = endpoint.completion(message, "stop")
    assert asker()().message == AssistantMessage(dropped)
    assert asker(keep_reasoning=True)().message == AssistantMessage(kept)


def test_a_call_in_the_older_form_is_a_call(endpoint, asker):
    endpoint.otherwise = endpoint.completion({"function_call": {"name": "f", "arguments": "{}"}}, "function_call")
    assert asker()().message.tool_calls == (ToolCall("f", "{}", "call_0"),)


def test_compressed_answers_are_read_and_broken_ones_tried_again(endpoint, asker):
    whole = json.dumps({"id": "z", "choices": [{"message": {"content": "a"}}]}).encode()
    endpoint.plan(
        endpoint.raw(gzip.compress(whole), content_encoding="gzip"),
        endpoint.raw(b"no gzip", content_encoding="gzip"),
        endpoint.raw(whole),
    )
    ask = asker()
    assert (ask().completion_id, len(endpoint.received)) == ("z", 1)
    assert (ask().completion_id, len(endpoint.received)) == ("z", 3)


def test_a_stream_nobody_asked_for_is_put_together(endpoint, asker):
    def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": said, "finish_reason": finish}
        return {"id": "s-1", "model": "streamer", "choices": [choice]}

    first = {"index": 0, "id": "c", "function": {"name": "interact_many", "arguments": '{"act'}}
    endpoint.plan(
        endpoint.stream(
            delta(role="assistant", content="I "),
            delta(content="go", tool_calls=[first]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": 'ions": []}'}}]),
            delta("tool_calls"),
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6}},
        )
    )
    completion = asker()()
    call = ToolCall("interact_many", '{"actions": []}', "c")
    assert completion.message == AssistantMessage("I go", (call,), "tool_calls")
    assert (completion.completion_id, completion.model, completion.prompt_tokens) == ("s-1", "streamer", 5)


@pytest.mark.parametrize(
    "broken",
    [
        StubEndpoint.stream({"choices": [{"index": 0, "delta": {"content": "a"}}]}),
        StubEndpoint.stream({"choices": [{"delta": 3}]}),
        StubEndpoint.stream({"choices": [{"delta": {"tool_calls": [{"index": 99}]}}]}),
        StubEndpoint.stream({"error": {"message": "down", "code": 502}}),
        StubEndpoint.raw(b"data: {"),
        StubEndpoint.raw(b'{"error": {"message": "overloaded", "code": 429}}'),
        StubEndpoint.raw(b'{"error": "overloaded", "choices": null}'),
        StubEndpoint.raw(b'{"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}'),
        StubEndpoint.raw(b'{"choices": [{"message": {}, "error": {"code": 503, "message": "x"}}]}'),
        StubEndpoint.reset_mid_body,
        StubEndpoint.status(408),
        StubEndpoint.status(409),
        StubEndpoint.status(425),
    ],
    ids=["cut", "deltas", "far-index", "error-event", "no-json", "429-in-200", "error-text", "gave-up", "in-choice",
         "mid-body", "408", "409", "425"],
)  # fmt: skip
def test_what_may_pass_is_tried_again(endpoint, asker, broken):
    endpoint.plan(broken)
    assert asker()().completion_id == "cmpl-1"
    assert len(endpoint.received) == 2


@pytest.mark.parametrize("code", [400, 401, 402, 403, 404])
def test_an_error_in_a_200_that_is_a_refusal_is_not_tried_again_nor_repeated(endpoint, asker, code):
    endpoint.otherwise = endpoint.raw(json.dumps({"error": {"code": code, "message": "key sk-secret"}}).encode())
    with pytest.raises(PolicyError, match=f"HTTP 200 with error {code}") as caught:
        asker()()
    assert "sk-secret" not in str(caught.value)
    assert len(endpoint.received) == 1


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        StubEndpoint.refusal(400, "too many", code="context_length_exceeded", param="messages"),
        StubEndpoint.refusal(400, "This model's maximum context length is 8192 tokens. However, you requested 9000"),
        StubEndpoint.refusal(400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
        StubEndpoint.refusal(400, "prompt is too long: 210000 tokens > 200000 maximum"),
        StubEndpoint.refusal(400, "the request exceeds the available context size", type="exceed_context_size_error"),
        StubEndpoint.refusal(413, "Please reduce the length of the messages or completion."),
        StubEndpoint.raw(b'{"detail": "prompt is too long"}', 422),
        StubEndpoint.raw(b'{"error": {"code": 400, "message": "prompt is too long"}}'),
        StubEndpoint.raw(b'{"error": {"code": "context_length_exceeded", "message": ""}}'),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_apart(endpoint, asker, refusal):
    endpoint.otherwise = refusal
    with pytest.raises(ContextOverflow, match="does not fit the model's context") as caught:
        asker()()
    assert caught.value.episode_ids == {"ep"}
    assert len(endpoint.received) == 1


def test_the_token_limit_goes_by_the_name_the_model_knows_and_the_change_is_told_once(endpoint, asker, caplog):
    endpoint.plan(endpoint.refusal(400, OPENAI, code="unsupported_parameter", param="max_tokens"))
    first, second = asker(max_tokens=9), asker(max_tokens=9)
    with caplog.at_level(logging.WARNING):
        for ask in (first, first, second):
            ask()
    bodies = [received.body for received in endpoint.received]
    assert [("max_tokens" in body, body.get("max_completion_tokens")) for body in bodies] == [
        (True, None), (False, 9), (False, 9), (False, 9)
    ]  # fmt: skip
    assert first.noted == second.noted == {"asked_differently": ["with max_completion_tokens for max_tokens"]}
    assert len([record for record in caplog.records if record.name.startswith("task_app")]) == 1


def test_another_model_or_client_learns_for_itself(endpoint, asker):
    endpoint.plan(endpoint.refusal(400, OPENAI, param="max_tokens"))
    asker()()
    other = asker(model="other")
    other()
    assert "max_tokens" in endpoint.received[-1].body
    assert other.noted == {}


@pytest.mark.parametrize(
    ("message", "gone"),
    [
        ("deepseek-reasoner does not support this tool_choice", "tool_choice"),
        ("Unsupported value: 'temperature' does not support 1 with this model.", "temperature"),
        ("`temperature` and `top_p` cannot both be specified for this model. Please use only one.", "top_p"),
    ],
)
def test_what_changes_nothing_is_left_out(endpoint, asker, message, gone):
    endpoint.plan(endpoint.refusal(400, message, param=None))
    ask = asker()
    ask()
    first, second = (received.body for received in endpoint.received)
    assert {key: value for key, value in first.items() if key != gone} == second
    assert gone in first
    assert ask.noted == {"asked_differently": [f"without {gone}"]}


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_what_would_change_the_distribution_is_refused_with_its_setting(endpoint, asker, name):
    message = f"Unsupported value: '{name}' does not support 0.5 with this model. sk-secret"
    endpoint.otherwise = endpoint.refusal(400, message, code="unsupported_value", param=name)
    with pytest.raises(PolicyError, match=rf"does not take {name} = 0.5.*set policy\.{name} to 1") as caught:
        asker(**{name: 0.5})()
    assert not caught.value.retryable
    assert "sk-secret" not in str(caught.value)
    assert len(endpoint.received) == 1


def test_a_model_that_takes_no_limit_by_either_name_is_refused(endpoint, asker):
    endpoint.plan(endpoint.refusal(400, OPENAI), endpoint.refusal(400, "unknown parameter max_completion_tokens"))
    with pytest.raises(PolicyError, match="takes neither max_tokens nor max_completion_tokens"):
        asker()()
    assert len(endpoint.received) == 2


@pytest.mark.parametrize("message", ["something is off", "unsupported thing", "temperature is a fine word"])
def test_other_refusals_are_refusals(endpoint, asker, message):
    endpoint.otherwise = endpoint.refusal(400, message)
    with pytest.raises(PolicyError, match="HTTP 400, it refused the request"):
        asker()()
    assert len(endpoint.received) == 1


def test_a_refusal_that_hangs_is_a_refusal(endpoint, asker):
    endpoint.otherwise = endpoint.hang_in_refusal
    start = time.monotonic()
    with pytest.raises(PolicyError, match="HTTP 400, it refused the request"):
        asker(timeout_s=0.3)()
    assert time.monotonic() - start < 2
    assert len(endpoint.received) == 1


# -- pauses ---------------------------------------------------------------------------------------


def test_a_pause_until_a_date_is_kept(endpoint, asker):
    until = datetime.now(UTC) + timedelta(seconds=2)
    endpoint.plan(endpoint.status(503, retry_after=format_datetime(until, usegmt=True)))
    asker()()
    assert datetime.now(UTC) >= until.replace(microsecond=0)


def test_a_date_beyond_the_deadline_ends_it_at_once_and_says_so(endpoint, asker):
    until = datetime.now(UTC) + timedelta(hours=1)
    endpoint.otherwise = endpoint.status(429, retry_after=format_datetime(until, usegmt=True))
    start = time.monotonic()
    with pytest.raises(PolicyError, match=r"HTTP 429 \(tried once; it asks to wait 3[56]\d\d s, but only"):
        asker(deadline_s=30)()
    assert time.monotonic() - start < 2
    assert len(endpoint.received) == 1


@pytest.mark.parametrize("odd", ["soon", "-5", "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 99 Foo", "1e9"])
def test_a_pause_that_says_nothing_is_ours(endpoint, asker, odd):
    endpoint.plan(endpoint.status(429, retry_after=odd))
    start = time.monotonic()
    asker()()
    assert time.monotonic() - start < 2


# -- who asks -------------------------------------------------------------------------------------


def test_the_decisions_identity_is_sent_only_where_it_is_wanted(endpoint, asker):
    asker()(key="7/2/0/1/1")
    asker(identify=True)(key="7/2/0/1/1")
    names = [name.lower() for name in (EPISODE_HEADER, NOISE_KEY_HEADER)]
    plain, identified = ([received.headers.get(name) for name in names] for received in endpoint.received)
    assert plain == [None, None]
    assert identified == ["ep", "7/2/0/1/1"]


def test_what_is_encoded_once_follows_what_changes(endpoint, asker):
    ask = asker()
    other = ({"type": "function", "function": {"name": "other", "parameters": {}}},)
    for tools in (TOOLS, other, (), TOOLS):
        ask(tools=tools)
    assert [received.body.get("tools") for received in endpoint.received] == [
        list(TOOLS),
        list(other),
        None,
        list(TOOLS),
    ]
    assert all(received.body["messages"] == list(MESSAGES) for received in endpoint.received)
