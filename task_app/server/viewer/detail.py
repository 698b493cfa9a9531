"""One episode in full, and the members of a group side by side, as JSON values. Reads; plays nothing.

A text that several decisions share stands once in `messages`; prompts and answers refer to it by index.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from task_app.collect import reward_vector
from task_app.core.rewards import rewards_from_events
from task_app.core.types import Decision, DecisionRewards, Episode, Message
from task_app.server.viewer.data import episode_rows
from task_app.server.viewer.queries import GroupQuery
from task_app.store import TraceStore

__all__ = ["episode_detail", "find_episode", "group_detail"]

Json = dict[str, Any]

_MEMBERS = """SELECT * FROM (
    SELECT id, episode_id, member, seed, app, policy, model, status, cause, outcome, episode_return AS "return",
           decision_count AS decisions, max_decisions, step_count AS steps
    FROM episode_summaries
    WHERE run_id = ? AND training_update IS ? AND group_id = ? AND NOT superseded)
    ORDER BY member, id LIMIT 256"""


def find_episode(store: TraceStore, text: str) -> Json | None:
    """The stored row of the episode with this id, or of the one that begins so; None when there is not just one."""
    for sql, values in (
        ("episode_id = ?", (text,)),
        ("episode_id >= ? AND substr(episode_id, 1, length(?)) = ?", (text, text, text)),
    ):
        rows = store.query(f"SELECT * FROM episode_summaries WHERE {sql} ORDER BY episode_id LIMIT 2", values)
        if len(rows) == 1:
            return dict(rows[0])
    return None


def episode_detail(store: TraceStore, row: Json) -> Json:
    """Everything the page of one episode shows, given its row."""
    episode = store.episode(row["episode_id"])
    rewards, problem = decision_rewards_of(episode)
    messages = _Messages()
    advantages = store.advantages(episode.episode_id)
    records = _records(episode)
    decisions = []
    for (decision, first), reward, record in zip(_with_first_steps(episode), rewards, records, strict=True):
        shown = _decision(decision, first, messages)
        decisions.append(shown | {"reward": reward, "record": record, "advantage": advantages.get(decision.turn)})
    return {
        **_facts(episode, row),
        "rewards_note": problem,
        "siblings": _siblings(store, row),
        "tools": list(episode.tools),
        "decisions": decisions,
        "messages": messages.shown,
        "verify": shlex.join(
            ["task-app", "traces", "verify", "--db", str(store.path), f"--episode={episode.episode_id}"]
        ),
    }


def group_detail(store: TraceStore, query: GroupQuery) -> Json | None:
    """The members of a group, each with one number and the events of every decision; None for an unknown group."""
    rows = store.query(_MEMBERS, (query.run, query.update, query.group))
    if not rows:
        return None
    members = []
    for row, member in zip(rows, episode_rows(store, rows), strict=True):
        members.append(member | {"timeline": _timeline(store, store.episode(row["episode_id"]))})
    return {"run": query.run, "group": query.group, "update": query.update, "members": members}


def decision_rewards_of(episode: Episode) -> tuple[Sequence[float | None], str]:
    """One number per decision under the episode's flags, or Nones and the sentence that says why."""
    nothing = [None] * len(episode.decisions)
    if not episode.rewarded:
        return nothing, f"an episode with status {episode.status} carries no reward, which is not a reward of 0"
    try:
        return reward_vector(episode, episode.flags).decisions, ""
    except ValueError as error:
        return nothing, f"the rewards cannot be told: {error}"


def _timeline(store: TraceStore, episode: Episode) -> list[Json]:
    """What is drawn of each decision; `events` are [[index of the step within the decision, name], …]."""
    rewards, _ = decision_rewards_of(episode)
    advantages = store.advantages(episode.episode_id)
    return [
        {
            "turn": decision.turn,
            "reward": reward,
            "advantage": advantages.get(decision.turn),
            "first_step": first,
            "steps": len(decision.steps),
            "failed": decision.failure is not None,
            "events": [(index, name) for index, step in enumerate(decision.steps) for name in step.events],
        }
        for (decision, first), reward in zip(_with_first_steps(episode), rewards, strict=True)
    ]


def _facts(episode: Episode, row: Json) -> Json:
    return {
        "episode_id": episode.episode_id,
        "run": episode.run_id,
        "group": episode.group_id,
        "update": episode.update,
        "member": episode.member,
        "superseded": bool(row["superseded"]),
        "task": asdict(episode.task),
        "policy": episode.policy,
        "policy_version": episode.policy_version,
        "model": row["model"],
        "provider": episode.details.get("provider"),
        "prompt_hash": episode.prompt_hash,
        "flags": asdict(episode.flags),
        "max_decisions": episode.max_decisions,
        "status": episode.status,
        "cause": episode.cause,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "outcome": episode.outcome,
        "return": row["episode_return"],
        "environment_return": row["environment_return"],
        "ach_delta": row["ach_delta"],
        "unique_delta": row["unique_delta"],
        "steps": row["step_count"],
        "parse_failures": row["parse_failures"],
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "latency_s": row["latency_s"],
        "started_at": episode.started_at,
        "finished_at": episode.finished_at,
        "details": dict(episode.details),
    }


def _siblings(store: TraceStore, row: Json) -> list[Json]:
    """The episodes of the same group, this one among them."""
    rows = store.query(_MEMBERS, (row["run_id"], row["training_update"], row["group_id"]))
    return [{"episode_id": found["episode_id"], "member": found["member"]} for found in rows]


def _records(episode: Episode) -> list[Json]:
    """Each decision's record; where none is stored, from the events, and marked so."""
    rebuilt = rewards_from_events(decision.events for decision in episode.decisions)
    pairs = zip(episode.decisions, rebuilt, strict=True)
    return [_record(decision.rewards, again) for decision, again in pairs]


def _record(stored: DecisionRewards | None, again: DecisionRewards) -> Json:
    return (stored or again).to_wire() | {"stored": stored is not None}


def _decision(decision: Decision, first: int, messages: _Messages) -> Json:
    completion, failure = decision.completion, decision.failure
    prompt = [messages.index_of(message) for message in decision.messages]
    asked = [index for index in prompt if messages.shown[index]["role"] == "user"]
    return {
        "turn": decision.turn,
        "prompt": prompt,
        "observation": asked[-1] if asked else None,
        "said": {
            "text": completion.message.content,
            "calls": [{"name": call.name, "arguments": call.arguments} for call in completion.message.tool_calls],
            "finish_reason": completion.message.finish_reason,
        },
        "failure": asdict(failure) if failure else None,
        "first_step": first,
        "steps": [
            {"action": step.action, "reward": step.reward, "events": list(step.events)} for step in decision.steps
        ],
        "model": completion.model,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "latency_s": completion.latency_s,
    }


def _with_first_steps(episode: Episode) -> list[tuple[Decision, int]]:
    """The decisions, each with the 0-based index of its first step in the episode."""
    first, found = 0, []
    for decision in episode.decisions:
        found.append((decision, first))
        first += len(decision.steps)
    return found


class _Messages:
    """Every different message once, as `{role, text}`, and where each stands."""

    def __init__(self) -> None:
        self.shown: list[Json] = []
        self._places: dict[str, int] = {}

    def index_of(self, message: Message) -> int:
        """The index of a message in `shown`."""
        text = _text_of(message)
        key = json.dumps([message.get("role"), text])
        place = self._places.setdefault(key, len(self.shown))
        if place == len(self.shown):
            self.shown.append({"role": str(message.get("role", "")), "text": text})
        return place


def _text_of(message: Message) -> str:
    """What a message says, as text; parts that are no text are named by their type."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else content or []
    said = [_part(part) for part in parts]
    said += [_call(call) for call in message.get("tool_calls") or ()]
    return "\n".join(said)


def _part(part: Any) -> str:
    if isinstance(part, Mapping):
        return str(part["text"]) if part.get("type") == "text" else f"[{part.get('type')}]"
    return str(part)


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    return f"{function.get('name')} {function.get('arguments')}"
