"""An episode whose decisions a client makes: what it may say, and what it is told after each decision.

Shared by every wire on which somebody else decides. Plays on the `EpisodeRun` it is given, keeps nothing, stores
nothing, knows no HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from task_app.collect import reward_vector
from task_app.collect.vectors import stepwise_rewards
from task_app.core.errors import ConfigError, refusal
from task_app.core.task import TaskSpec
from task_app.core.types import AssistantMessage, Episode, ParseFailure, ToolCall
from task_app.rollout import EpisodeRun
from task_app.server.responses import decision_info

__all__ = ["POLICY", "allowed", "ending", "message_of", "refuse_unreadable", "rewards_so_far", "told"]

POLICY = "client"
"""The policy's name of episodes whose decisions a client made."""

_ARGUMENTS = ("arguments", "args", "input")
"""What clients call the arguments of a tool call that is not in the OpenAI form."""


# -- what a client says ---------------------------------------------------------------------------


def message_of(
    spec: TaskSpec,
    *,
    action: str | Sequence[str] | Mapping[str, Any] | None = None,
    tool_calls: Sequence[Mapping[str, Any]] | None = None,
    message: Mapping[str, Any] | None = None,
) -> AssistantMessage:
    """One decision in any of the forms clients send, as the assistant message it stands for.

    `action` is an action's name, a list of names, or `{"actions": [...]}` or `{"tool_calls": [...]}`; `tool_calls`
    are in the OpenAI form or `{"tool", "args"}`; `message` is an assistant's message whole. Raises ConfigError naming
    the field unless exactly one of them is given and has such a form.
    """
    given = [name for name, value in (("action", action), ("tool_calls", tool_calls), ("message", message)) if value]
    if len(given) != 1:
        raise refusal("action", "exactly one of action, tool_calls and message is needed, and not empty")
    if message is not None:
        calls = message.get("tool_calls") or ()
        content, reason = message.get("content"), message.get("finish_reason") or "stop"
        if not isinstance(content, str | None) or not isinstance(reason, str) or not isinstance(calls, list | tuple):
            raise refusal("message", "an assistant message has content (text), tool_calls (a list), finish_reason")
        said = None if content is None else _text(content)
        return AssistantMessage(said, _calls(calls, "message.tool_calls"), _text(reason))
    if isinstance(action, Mapping):
        if set(action) not in ({"actions"}, {"tool_calls"}):
            raise refusal("action", 'an object holds the one key "actions" or "tool_calls"')
        (key, value), *_ = action.items()
        if not isinstance(value, list) or not value:
            raise refusal(f"action.{key}", "a list that is not empty is needed")
        action, tool_calls = (value, None) if key == "actions" else (None, value)
    if tool_calls is not None:
        field = "tool_calls" if given == ["tool_calls"] else "action.tool_calls"
        return AssistantMessage(None, _calls(tool_calls, field), "tool_calls")
    names = [action] if isinstance(action, str) else list(action or ())
    if not all(isinstance(name, str) for name in names):
        raise refusal("action", f"actions are named by text; {allowed(spec)}")
    return spec.app.say(names)


def refuse_unreadable(spec: TaskSpec, message: AssistantMessage, field: str) -> None:
    """Raise ConfigError about `field`, saying what is allowed, when the task cannot read the message as actions."""
    parsed = spec.app.parse(message, spec.options)
    if isinstance(parsed, ParseFailure):
        sentence = f"{parsed.reason}; nothing was executed; {allowed(spec)}"
        raise ConfigError(f"{field}: {parsed.detail}; {allowed(spec)}", field=field, public=sentence)


def allowed(spec: TaskSpec) -> str:
    """A sentence with the task's actions, its tools, and how many actions a call may hold where the schema says so."""
    sentence = f"allowed actions: {', '.join(spec.app.action_names)}"
    for tool in spec.app.tools(spec.options):
        function = tool["function"]
        sentence += f"; tool {function['name']}"
        for name, schema in function["parameters"].get("properties", {}).items():
            if "maxItems" in schema:
                sentence += f" with {schema.get('minItems', 0)} to {schema['maxItems']} {name}"
    return sentence


def _calls(calls: Sequence[Any], field: str) -> tuple[ToolCall, ...]:
    return tuple(_call(call, index, f"{field}.{index}") for index, call in enumerate(calls))


def _call(call: Any, index: int, field: str) -> ToolCall:
    """One call as it was said; its arguments stay the text they were, an object becomes its JSON."""
    if not isinstance(call, Mapping):
        raise refusal(field, "a tool call is an object")
    inner = call.get("function")
    body = inner if isinstance(inner, Mapping) else call
    name = body.get("name") or body.get("tool")
    arguments = next((body[key] for key in _ARGUMENTS if key in body), None)
    if not isinstance(name, str) or not isinstance(arguments, str | dict):
        sentence = 'a tool call is {"function": {"name", "arguments"}} or {"tool", "args"}; arguments are an object'
        raise refusal(field, f"{sentence} or its JSON text")
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) and call_id else f"call_{index}"
    return ToolCall(_text(name), _text(said), _text(call_id))


def _text(value: str) -> str:
    """Text that can be stored: half a surrogate pair, which JSON lets through, becomes `?`."""
    return value.encode("utf-8", "replace").decode()


# -- what it is told ------------------------------------------------------------------------------


def rewards_so_far(run: EpisodeRun) -> list[float | None]:
    """r of each decision made so far under the flags in force; None where it is not known yet, or never will be.

    While the episode runs that is a decision whose bonus depends on how many decisions there will be (horizon
    `episode` with beta); in mode `off` all are 0 and the outcome comes with the last. An episode that ends without
    a reward has none.
    """
    flags, decisions = run.flags, run.decisions
    if run.over:
        episode = run.episode()
        return list(reward_vector(episode, flags).decisions) if episode.rewarded else [None] * len(decisions)
    if flags.mode == "off":
        return [0.0] * len(decisions)
    if flags.mode == "env_sparse":
        return [fsum(step.reward for step in decision.steps) for decision in decisions]
    records = [decision.rewards for decision in decisions if decision.rewards is not None]
    values = stepwise_rewards(records, len(decisions), run.limits.max_decisions, flags)
    open_end = flags.horizon == "episode" and flags.beta > 0
    pairs = zip(values, records, strict=True)
    return [None if open_end and record.unique_delta else value for value, record in pairs]


def told(run: EpisodeRun) -> dict[str, Any]:
    """The last decision as a step of `/rollout`'s trajectory; before the first, the state after reset."""
    app = run.spec.app
    if not run.decisions:
        observation = app.status_fields(run.request().observation) if not run.over else {}
        return {"observation": observation, "reward": None, "done": run.over, "truncated": False, "info": {}}
    decision, past = run.decisions[-1], run.history[-1]
    last_reward = decision.steps[-1].reward if decision.steps else 0.0
    ended = run.episode() if run.over else None
    return {
        "observation": app.status_fields(past.after) | {"reward_last_step": last_reward},
        "reward": rewards_so_far(run)[-1],
        "done": ended is not None,
        "truncated": ended is not None and ended.truncated,
        "info": decision_info(decision, logprobs=False),
    }


def ending(episode: Episode, trace_file: str | None = None) -> dict[str, Any]:
    """An ended episode's numbers, by the names `/rollout` gives them; those it does not carry are null, never 0."""
    rewards = reward_vector(episode, episode.flags) if episode.rewarded else None
    return {
        "episode_id": episode.episode_id,
        "run_id": episode.run_id,
        "status": episode.status,
        "cause": episode.cause,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "rewards": list(rewards.decisions) if rewards else None,
        "episode_return": rewards.total if rewards else None,
        "outcome_score": episode.outcome,
        "environment_return": episode.environment_return,
        "decisions": len(episode.decisions),
        "trace_file": trace_file,
    }
