"""Prompts of chat models: the template's own, exact about what was sampled, and refused where they cannot be."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

from itertools import pairwise

import pytest

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError, ContextOverflow, TrainError
from task_app.core.types import AssistantMessage, ParseFailure, ToolCall
from task_app.train.chat_renderer import read_answer
from task_app.train.load import build_network
from task_app.train.policy import EmbeddedPolicy
from tests.train.chat_fixtures import SYSTEM, asks, chat, chat_line, folders, model_settings, tokens_of
from tests.train.tiny_models import SHAPES, TEMPLATES, write_model

CALL = AssistantMessage(tool_calls=(ToolCall("walk", '{"moves": ["left"]}'),), finish_reason="tool_calls")


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_is_what_the_template_says(chat, shape):
    network = chat(shape)
    ids = network.renderer.prompt_ids([SYSTEM, user("place 0")])
    tools = network.spec.app.tools(network.spec.options)
    whole = network.tokenizer.apply_chat_template(
        [SYSTEM, user("place 0")], tools=list(tools), add_generation_prompt=True, return_dict=False
    )
    assert list(ids) == whole
    assert network.renderer.prompt_ids([SYSTEM, user("place 0")], tools) == ids
    parts = [{"type": "text", "text": "place"}, {"type": "text", "text": "0"}]
    assert network.renderer.prompt_ids([SYSTEM, user(parts)]) == network.renderer.prompt_ids([SYSTEM, user("place\n0")])


@pytest.mark.parametrize("shape", SHAPES)
def test_prompt_and_answer_are_the_template_of_the_whole(chat, shape):
    network = chat(shape, max_new_tokens=100)
    arguments = {"moves": ["left"]}
    calls = [{"type": "function", "function": {"name": "walk", "arguments": arguments}}]
    for said, wire in (
        (CALL, {"role": "assistant", "content": "", "tool_calls": calls}),
        (AssistantMessage("good day"), {"role": "assistant", "content": "good day"}),
    ):
        answer = network.renderer.answer_ids(said)
        messages = [SYSTEM, user("place 0"), wire]
        tools = list(network.spec.app.tools(network.spec.options))
        whole = network.tokenizer.apply_chat_template(messages, tools=tools, return_dict=False)
        both = [*network.renderer.prompt_ids(messages[:2]), *answer]
        assert whole[: len(both)] == both
        assert answer[-1] in network.renderer.template.stops
        assert network.tokenizer.decode(whole[len(both) :]).strip() == ""
        heard = network.renderer.message(answer)
        assert (heard.content, [call.arguments for call in heard.tool_calls], heard.finish_reason) == (
            said.content, [call.arguments for call in said.tool_calls], said.finish_reason
        )  # fmt: skip


def test_an_answer_too_long_or_not_json_cannot_be_said(chat):
    renderer = chat(max_new_tokens=20).renderer
    assert renderer.answer_ids(CALL) == ParseFailure(
        "cut_off", "the answer takes 76 tokens, model.max_new_tokens is 20"
    )
    broken = AssistantMessage(tool_calls=(ToolCall("walk", "{"),))
    assert renderer.answer_ids(broken).reason == "bad_json"


@pytest.mark.parametrize("shape", SHAPES)
def test_history_goes_on_from_the_very_ids_that_were_sampled(chat, asks, shape):
    network = chat(shape, history="full", max_prompt_tokens=900)
    policy = EmbeddedPolicy(network, temperature=1.5)
    traces = [tokens_of(policy.decide([asks(f"place {turn}", turn)])[0]) for turn in range(1, 5)]
    for before, after in pairwise(traces):
        said = before.prompt_ids + before.completion_ids
        assert after.prompt_ids[: len(said)] == said
        new = network.tokenizer.decode(after.prompt_ids[len(said) :])
        assert "place" in new
    assert "place 1" in network.tokenizer.decode(traces[3].prompt_ids)


def test_a_decision_asked_again_gets_the_same_prompt_and_an_ended_episode_is_forgotten(chat, asks):
    policy = EmbeddedPolicy(chat(history="full"))
    policy.decide([asks("place 0", 1)])
    first, again = (tokens_of(policy.decide([asks("place 1", 2)])[0]) for _ in range(2))
    assert first == again
    policy.end_episode("e")
    with pytest.raises(TrainError, match="needs the answer of decision 1"):
        policy.decide([asks("place 1", 2)])


def test_a_window_repeats_the_last_decisions_alone(chat, asks):
    network = chat(history="last:2", max_prompt_tokens=900)
    policy = EmbeddedPolicy(network)
    texts = []
    for turn in range(1, 6):
        tokens = tokens_of(policy.decide([asks(f"place {turn}", turn)])[0])
        texts.append(network.tokenizer.decode(tokens.prompt_ids))
    assert [f"place {turn}" in texts[4] for turn in range(1, 6)] == [False, False, True, True, True]
    assert len(vars(policy._conversation)["_turns"]["e"]) == 2
    none = chat().renderer.prompt_ids([SYSTEM, user("place 1"), {"role": "assistant", "content": "x"}, user("two")])
    assert "place 1" not in network.tokenizer.decode(none)


def test_thinking_is_kept_or_cut_out_of_earlier_answers(chat, asks):
    for keeps in (True, False):
        network = chat(history="full", keep_thinking=keeps, max_prompt_tokens=900)
        conversation, template = network.conversation(), network.renderer.template
        said = template.ids("<think>\nhm\n</think>\n\nright<|close|>")
        first = conversation.prompts([asks("place 0", 1)])[0]
        conversation.answered(asks("place 0", 1), said)
        second = conversation.prompts([asks("place 1", 2)])[0]
        assert (second[: len(first) + len(said)] == first + said) == keeps
        assert ("hm" in network.tokenizer.decode(second)) == keeps
        assert "right<|close|>" in network.tokenizer.decode(second)
        # an answer without thinking, or cut before its end, is repeated as it is
        conversation.answered(asks("place 0", 1), said[-3:])
        assert conversation.prompts([asks("place 1", 2)])[0][: len(first) + 3] == first + said[-3:]
        conversation.answered(asks("place 0", 1), said[-3:-1])
        assert conversation.prompts([asks("place 1", 2)])[0][: len(first) + 3] == first + said[-3:]


def test_data_with_earlier_turns_gives_the_prompt_that_playing_gives(chat, asks):
    network = chat(history="full", max_new_tokens=100, max_prompt_tokens=900)
    conversation = network.conversation()
    conversation.answered(asks("place 0", 1), network.renderer.answer_ids(CALL))
    played = conversation.prompts([asks("place 1", 2)])[0]
    messages = [SYSTEM, user("place 0"), CALL.to_wire(), user("place 1")]
    assert network.renderer.prompt_ids(messages) == played


def test_messages_out_of_order_and_foreign_tools_are_refused(chat):
    renderer = chat().renderer
    with pytest.raises(TrainError, match="got system, user, user"):
        renderer.prompt_ids([SYSTEM, user("a"), user("b")])
    with pytest.raises(TrainError, match="got user, system"):
        renderer.prompt_ids([user("a"), SYSTEM])
    with pytest.raises(TrainError, match="not the task's own"):
        renderer.prompt_ids([SYSTEM, user("a")], [{"type": "function", "function": {"name": "fly"}}])


def test_a_prompt_that_outgrows_its_limit_ends_that_episode_alone(chat, asks):
    conversation = chat(history="full", max_prompt_tokens=300).conversation()
    with pytest.raises(TrainError, match=r"max_prompt_tokens is 300"):
        conversation.prompts([asks("far " * 30)])
    conversation.answered(asks("far " * 9), (65,) * 6)
    with pytest.raises(ContextOverflow, match="max_prompt_tokens is 300") as caught:
        conversation.prompts([asks("place 0", episode="other"), asks("far " * 9, 2)])
    assert caught.value.episode_ids == {"e"}


def test_the_hash_tells_apart_what_gives_other_ids(chat, folders, tmp_path):
    settings = [
        {},
        {"history": "last:1"},
        {"history": "last:2"},
        {"history": "full"},
        {"keep_thinking": False},
        {"max_new_tokens": 7},
        {"max_prompt_tokens": 601},
        {"template_options": {"enable_thinking": False}},
    ]
    hashes = [chat(**one).renderer.hash for one in settings] + [chat("llama").renderer.hash]
    assert len(set(hashes)) == len(hashes)
    assert chat().renderer.hash == hashes[0] == chat(lora_rank=2, packing=False).renderer.hash


def test_leading_ids_all_prompts_share_are_found(chat):
    for shape in SHAPES:
        renderer = chat(shape).renderer
        prompts = [renderer.prompt_ids([SYSTEM, user(text)]) for text in ("alpha", "place 9", "\n", "zz")]
        heads = {prompt[: renderer.prefix_length] for prompt in prompts}
        assert len(heads) == 1
        assert renderer.prefix_length > 10


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("right", "right", []),
        ('<tool_call>\n{"name": "walk", "arguments": {"moves": []}}\n</tool_call>', None, [("walk", '{"moves": []}')]),
        ('go <tool_call>{"name": "walk", "arguments": "{}"}</tool_call>', "go", [("walk", "{}")]),
        ('{"name": "walk", "parameters": {"moves": []}}', None, [("walk", '{"moves": []}')]),
        ('<think>\n{"name": "x"}\n</think>\n\n{"name": "walk", "arguments": {}}', None, [("walk", "{}")]),
        ('<tool_call>{"name": "walk", "arguments": {</tool_call>', None, [("walk", '{"name": "walk", "arguments": {')]),
        ("<tool_call>nonsense", None, [("", "nonsense")]),
        ('<tool_call>{"name": "walk"}</tool_call>', None, [("walk", '{"name": "walk"}')]),
        ('<think><tool_call>{"name": "walk", "arguments": {}}</tool_call>', "<think>", []),
        ('{"place": 1}', '{"place": 1}', []),
        ("", None, []),
    ],
)
def test_answers_are_read_as_they_were_said(text, content, calls):
    message = read_answer(text)
    if "<think>" in text and not calls:
        content = text  # thinking that never ended holds no call, whatever it says
    if "</think>" not in text:
        assert message.content == content
    assert [(call.name, call.arguments) for call in message.tool_calls] == calls
    assert message.finish_reason == ("tool_calls" if calls else "stop")


def test_two_calls_stay_two_and_a_cut_answer_says_so():
    one = '<tool_call>{"name": "walk", "arguments": {}}</tool_call>'
    assert [call.id for call in read_answer(one + one).tool_calls] == ["call_0", "call_1"]
    assert read_answer(one[:20], cut=True).finish_reason == "length"


# -- templates that do not serve ----------------------------------------------------------------------

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|close|>{% endfor %}"
TURNS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + PLAIN


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "no chat template"),
        (PLAIN, "leaves out the tools"),
        (TURNS.replace("<|close|>", "\n"), "ends an answer by no token of its own"),
        ("{{ raise_exception('never') }}", "cannot write this conversation: never"),
    ],
)
def test_a_model_without_a_usable_template_is_refused(chat_line, tmp_path, template, problem):
    folder = write_model(tmp_path / "m", "qwen3", template=template)
    with pytest.raises(ConfigError, match=problem) as caught:
        build_network(chat_line, ModelSection(**model_settings(folder)), 0)
    assert caught.value.field == "model.path"
    assert str(folder) in str(caught.value)


def test_a_template_that_rewrites_earlier_turns_cannot_have_history(chat_line, tmp_path):
    forgets = TURNS.replace("{% for m in messages %}", "{% for m in messages[-1:] %}")
    folder = write_model(tmp_path / "m", "qwen3", template=forgets)
    with pytest.raises(ConfigError, match="rewrites earlier turns") as caught:
        build_network(chat_line, ModelSection(**model_settings(folder, history="full")), 0)
    assert caught.value.field == "model.history"


def test_an_answer_written_otherwise_than_asked_for_is_refused(chat_line, tmp_path):
    asks_otherwise = TEMPLATES["gpt2"].replace("assistant: {% endif", "bot> {% endif")
    folder = write_model(tmp_path / "m", "gpt2", template=asks_otherwise)
    network = build_network(chat_line, ModelSection(**model_settings(folder)), 0)
    with pytest.raises(ConfigError, match="writes an answer otherwise than it asks for one"):
        network.renderer.answer_ids(AssistantMessage("right"))
