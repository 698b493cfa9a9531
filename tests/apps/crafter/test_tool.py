"""`interact_many`: prompt, schema, parser and grammar agree on what an answer is, and nothing is ever made up."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from crafter import constants as crafter_constants
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from task_app.apps.crafter import tool
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ACTIONS
from task_app.apps.crafter.text import FAILURES
from task_app.core.types import AssistantMessage, ParseFailure, ToolCall

GAME: Any = crafter_constants
OPTIONS = CrafterOptions()
LIMITS = [(1, 5), (5, 5), (1, 1), (2, 50)]


def options(low: int, high: int) -> CrafterOptions:
    return CrafterOptions(min_actions_per_decision=low, max_actions_per_decision=high)


def call(arguments: str, name: str = tool.TOOL) -> AssistantMessage:
    return AssistantMessage(None, (ToolCall(name, arguments),), "tool_calls")


def reason(message: AssistantMessage, chosen: CrafterOptions = OPTIONS) -> str:
    parsed = tool.parse(message, chosen)
    assert isinstance(parsed, ParseFailure)
    assert parsed.detail
    return parsed.reason


class TestOneLimit:
    @pytest.mark.parametrize(("low", "high"), LIMITS)
    def test_prompt_schema_parser_and_grammar_state_the_same(self, low, high):
        chosen = options(low, high)
        said = f"exactly {low}" if low == high else f"{low} to {high}"
        assert f"call interact_many once with {said} actions" in tool.system_prompt(chosen)
        actions = tool.tools(chosen)[0]["function"]["parameters"]["properties"]["actions"]
        assert (actions["minItems"], actions["maxItems"]) == (low, high)
        assert f"{said} of them" in actions["description"]
        for count in range(high + 3):
            message = tool.say(["noop"] * count)
            if low <= count <= high:
                assert tool.parse(message, chosen) == ("noop",) * count
            else:
                assert reason(message, chosen) == ("too_few_actions" if count < low else "too_many_actions")

    def test_the_schema_is_json_schema_with_every_action(self):
        (schema,) = tool.tools(OPTIONS)
        assert (schema["type"], schema["function"]["name"]) == ("function", "interact_many")
        parameters = schema["function"]["parameters"]
        assert parameters["required"] == ["actions"]
        assert parameters["additionalProperties"] is False
        assert parameters["properties"]["actions"]["items"] == {"type": "string", "enum": list(ACTIONS)}
        assert json.loads(json.dumps(schema)) == schema

    def test_the_prompt_names_every_action_and_the_games_own_costs(self):
        prompt = tool.system_prompt(OPTIONS)
        assert ", ".join(ACTIONS) in prompt
        costs = {name: info["uses"] for name, info in GAME.place.items()}
        assert costs["table"] == {"wood": 2}
        assert (
            f"place_table uses {costs['table']['wood']} wood; place_furnace {costs['furnace']['stone']} stone" in prompt
        )
        assert f"place_stone {costs['stone']['stone']} stone" in prompt
        assert f"place_plant {costs['plant']['sapling']} sapling" in prompt
        for material, sentence in {
            "stone": "wood_pickaxe and wood_sword use 1 wood;",
            "iron": "iron_pickaxe and iron_sword use 1 wood, 1 coal and 1 iron",
        }.items():
            assert sentence in prompt, material
        assert GAME.make["iron_sword"]["uses"] == {"wood": 1, "coal": 1, "iron": 1}

    @pytest.mark.parametrize("wrong", [(0, 5), (3, 2), (1, 51), (6, 5)])
    def test_limits_out_of_order_or_range_are_refused(self, wrong):
        with pytest.raises(ValidationError):
            options(*wrong)

    def test_limits_out_of_order_are_both_named(self):
        with pytest.raises(ValidationError, match=r"min_actions_per_decision \(6\) is above .*\(5\)"):
            CrafterOptions(min_actions_per_decision=6)


class TestFailures:
    WRONG = (
        (AssistantMessage("I would go left."), "no_tool_call"),
        (AssistantMessage(None), "no_tool_call"),
        (AssistantMessage('{"actions": ["noop"]}'), "no_tool_call"),
        (AssistantMessage(None, tool.say(["noop"]).tool_calls, "length"), "cut_off"),
        (AssistantMessage(None, tool.say(["noop"]).tool_calls * 2), "many_tool_calls"),
        (call('{"actions": ["noop"]}', "interact"), "unknown_tool"),
        (call('{"actions": ["noop"]}', ""), "unknown_tool"),
        (call('{"actions": ["noop"]'), "bad_json"),
        (call(""), "bad_json"),
        (call("["), "bad_json"),
        (call("[" * 100_000), "bad_json"),
        (call("1" * 5_000), "bad_json"),
        (call('["noop"]'), "bad_arguments"),
        (call("null"), "bad_arguments"),
        (call("{}"), "bad_arguments"),
        (call('{"actions": ["noop"], "why": "because"}'), "bad_arguments"),
        (call('{"actions": "noop"}'), "bad_arguments"),
        (call('{"actions": null}'), "bad_arguments"),
        (call('{"actions": [1]}'), "bad_arguments"),
        (call('{"actions": ["noop", ["do"]]}'), "bad_arguments"),
        (call('{"actions": ["fly"]}'), "unknown_action"),
        (call('{"actions": ["Noop"]}'), "unknown_action"),
        (call('{"actions": [" noop"]}'), "unknown_action"),
        (call('{"actions": ["noop", "\\ud800"]}'), "unknown_action"),
        (call('{"actions": []}'), "too_few_actions"),
        (tool.say(["noop"] * 6), "too_many_actions"),
    )

    @pytest.mark.parametrize(("message", "expected"), WRONG, ids=[f"{i}-{why}" for i, (_, why) in enumerate(WRONG)])
    def test_each_wrong_answer_has_its_reason(self, message, expected):
        assert reason(message) == expected

    def test_every_reason_is_reached(self):
        assert {why for _, why in self.WRONG} == set(FAILURES)

    def test_an_unknown_name_among_too_many_is_the_first_thing_wrong(self):
        assert reason(tool.say(["noop"] * 8 + ["fly"])) == "unknown_action"

    def test_text_beside_the_call_is_allowed(self):
        message = AssistantMessage("Chop.", tool.say(["do", "do"]).tool_calls)
        assert tool.parse(message, OPTIONS) == ("do", "do")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.sampled_from(ACTIONS),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from(("actions", "x")), inner, max_size=2),
    max_leaves=12,
)
arguments = st.one_of(
    st.text(max_size=40),
    json_values.map(json.dumps),
    st.lists(st.sampled_from((*ACTIONS, "fly")), max_size=8).map(lambda names: json.dumps({"actions": names})),
)
calls = st.builds(ToolCall, name=st.sampled_from((tool.TOOL, "go", "")), arguments=arguments)
messages = st.builds(
    AssistantMessage,
    content=st.none() | st.text(max_size=20),
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    finish_reason=st.sampled_from(("stop", "tool_calls", "length")),
)


class TestFuzz:
    @given(messages, st.sampled_from(LIMITS))
    def test_parsing_never_raises_and_never_invents(self, message, limits):
        chosen = options(*limits)
        parsed = tool.parse(message, chosen)
        if isinstance(parsed, ParseFailure):
            assert parsed.reason in FAILURES
        else:
            (said,) = message.tool_calls
            assert json.loads(said.arguments) == {"actions": list(parsed)}
            assert set(parsed) <= set(ACTIONS)
            assert limits[0] <= len(parsed) <= limits[1]

    @given(st.lists(st.sampled_from((*ACTIONS, tool.TOOL, tool.END, "fly")), max_size=8), st.sampled_from(LIMITS))
    def test_the_grammar_accepts_exactly_what_say_and_parse_accept(self, actions, limits):
        chosen = options(*limits)
        grammar = tool.grammar(chosen)
        words = [tool.TOOL, *actions, tool.END]
        try:
            accepted = len(list(grammar.walk(words))) == len(words)
        except ValueError:
            accepted = False
        parsed = tool.parse(tool.say(actions), chosen)
        assert accepted == (parsed == tuple(actions))
        if accepted:
            assert tool.words_to_message(words) == tool.say(actions)


class TestGrammar:
    @pytest.mark.parametrize("limits", LIMITS)
    def test_a_random_walk_to_the_end_is_a_legal_answer(self, limits):
        chosen = options(*limits)
        grammar, rng = tool.grammar(chosen), random.Random(0)
        for _ in range(30):
            state, words = grammar.start, []
            while state != grammar.final:
                words.append(rng.choice(grammar.allowed(state)))
                state = grammar.edges[state][words[-1]]
            parsed = tool.parse(tool.words_to_message(words), chosen)
            assert parsed == tuple(words[1:-1])

    def test_forced_numbers_leave_only_names_to_choose(self):
        grammar = tool.grammar(options(5, 5))
        choices = [len(grammar.allowed(state)) for state in grammar.walk(["interact_many", *["do"] * 5, "end"])]
        assert choices == [1, 17, 17, 17, 17, 17, 1]

    def test_each_limit_has_its_own_hash(self):
        assert len({tool.grammar(options(*limits)).hash for limits in LIMITS}) == len(LIMITS)
