"""`interact_many`: the one tool. Schema, rules of the prompt, strict parsing, and its grammar.

Prompt, schema, parser and grammar all take their limits from one place, the options. An answer that
breaks them is a parse failure: nothing is repaired, shortened or made up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ACTIONS
from task_app.apps.crafter.text import failure
from task_app.core.grammar import Grammar
from task_app.core.types import AssistantMessage, ParseFailure, ToolCall

__all__ = ["END", "TOOL", "grammar", "parse", "say", "system_prompt", "tools", "words_to_message"]

TOOL = "interact_many"
END = "end"


def _limits(options: CrafterOptions) -> str:
    low, high = options.min_actions_per_decision, options.max_actions_per_decision
    return f"exactly {low}" if low == high else f"{low} to {high}"


def tools(options: CrafterOptions) -> tuple[dict[str, Any], ...]:
    """The tool in OpenAI form."""
    actions = {
        "type": "array",
        "description": f"The actions to run in order, {_limits(options)} of them.",
        "items": {"type": "string", "enum": list(ACTIONS)},
        "minItems": options.min_actions_per_decision,
        "maxItems": options.max_actions_per_decision,
    }
    parameters = {
        "type": "object",
        "properties": {"actions": actions},
        "required": ["actions"],
        "additionalProperties": False,
    }
    description = "Run several actions in the world, one after another."
    return ({"type": "function", "function": {"name": TOOL, "description": description, "parameters": parameters}},)


def system_prompt(options: CrafterOptions) -> str:
    """The rules of the game and of the answer."""
    return f"""\
You play Crafter, a survival game on a 64×64 grid seen from above. Unlock as many different \
achievements as you can before the decisions run out or health reaches 0.

Each turn, call {TOOL} once with {_limits(options)} actions out of: {", ".join(ACTIONS)}.

Rules:
- move_* turns you to that side and walks one tile if it is grass, sand or path. Lava kills.
- do acts on the tile you face: take wood from a tree (the tree becomes grass), drink water, take stone and \
coal (wood_pickaxe), iron (stone_pickaxe), diamond (iron_pickaxe), take a sapling from grass (1 in 10), \
hit a cow (eaten at 0 health), zombie or skeleton, eat a ripe_plant.
- place_table uses 2 wood; place_furnace 4 stone; place_stone 1 stone (also on water and lava); \
place_plant 1 sapling, on grass; each goes on the tile you face.
- With a table in the 3×3 around you: wood_pickaxe and wood_sword use 1 wood; stone_pickaxe and stone_sword \
use 1 wood and 1 stone. With a furnace there too: iron_pickaxe and iron_sword use 1 wood, 1 coal and 1 iron.
- food, drink and energy fall with time; at 0 they cost health. sleep restores energy, and you stay asleep \
until it is full or you are hurt; wake_up counts when you wake.
- A sapling ripens after a long time and dies when a creature stands beside it.

Places are given from where you stand: `tree right 2 up 1` is two tiles right and one up. `facing` is the \
tile that do and place act on. `remembered` is what \
you saw earlier and is out of sight now. `last` recalls earlier calls and what they did."""


def say(actions: Sequence[str]) -> AssistantMessage:
    """The canonical call for `actions`."""
    arguments = json.dumps({"actions": list(actions)})
    return AssistantMessage(tool_calls=(ToolCall(TOOL, arguments),), finish_reason="tool_calls")


def parse(message: AssistantMessage, options: CrafterOptions) -> tuple[str, ...] | ParseFailure:
    """The actions of the one legal call in `message`, or why there is none."""
    if message.finish_reason == "length":
        return failure("cut_off", "the answer was cut at the token limit")
    if not message.tool_calls:
        return failure("no_tool_call", f"the answer holds no tool call; {TOOL} was expected")
    call, *others = message.tool_calls
    if others:
        return failure("many_tool_calls", f"{len(message.tool_calls)} tool calls in one answer; one is allowed")
    if call.name != TOOL:
        return failure("unknown_tool", f"tool {call.name!r} is unknown; {TOOL} is the only one")
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        return failure("bad_json", f"the arguments are not JSON: {error}")
    return _actions(arguments, options)


def _actions(arguments: Any, options: CrafterOptions) -> tuple[str, ...] | ParseFailure:
    if not isinstance(arguments, dict) or set(arguments) != {"actions"}:
        return failure("bad_arguments", 'the arguments must be an object with the one key "actions"')
    actions = arguments["actions"]
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        return failure("bad_arguments", '"actions" must be a list of action names')
    unknown = [action for action in actions if action not in ACTIONS]
    if unknown:
        return failure("unknown_action", f"unknown action {unknown[0]!r}")
    if len(actions) < options.min_actions_per_decision:
        return failure("too_few_actions", f"{len(actions)} actions; {_limits(options)} allowed")
    if len(actions) > options.max_actions_per_decision:
        return failure("too_many_actions", f"{len(actions)} actions; {_limits(options)} allowed")
    return tuple(actions)


def grammar(options: CrafterOptions) -> Grammar:
    """`interact_many`, then min to max actions, then `end`."""
    low, high = options.min_actions_per_decision, options.max_actions_per_decision
    edges: dict[str, dict[str, str]] = {"call": {TOOL: "0"}}
    for count in range(high + 1):
        step = {action: str(count + 1) for action in ACTIONS} if count < high else {}
        edges[str(count)] = step | ({END: "closed"} if count >= low else {})
    return Grammar(name=f"{TOOL}/{low}-{high}", start="call", final="closed", edges=edges)


def words_to_message(words: Sequence[str]) -> AssistantMessage:
    """The call that a full walk through the grammar stands for."""
    return say([word for word in words if word not in (TOOL, END)])


def message_to_words(message: AssistantMessage, options: CrafterOptions) -> tuple[str, ...] | ParseFailure:
    """The walk through the grammar of a legal call, or why it is not one."""
    actions = parse(message, options)
    return actions if isinstance(actions, ParseFailure) else (TOOL, *actions, END)
