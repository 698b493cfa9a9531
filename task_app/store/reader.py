"""Rows back into `Episode`s, equal to what was written. Reads only."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from typing import Any

import numpy as np

from task_app.core.types import (
    AssistantMessage,
    Completion,
    Decision,
    DecisionRewards,
    Episode,
    Message,
    ParseFailure,
    StepRecord,
    StepRewardFlags,
    TaskRef,
    TokenTrace,
)

__all__ = ["read_episode"]


def read_episode(connection: sqlite3.Connection, row: sqlite3.Row, *, records: bool = True) -> Episode:
    """The episode of one row of `episodes`; without `records`, decision rewards are not even looked at.

    Raises KeyError for a decision record that belongs to no decision.
    """
    tools = connection.execute("SELECT tools FROM tool_sets WHERE id = ?", (row["tool_set"],)).fetchone()[0]
    return Episode(
        episode_id=row["episode_id"],
        run_id=row["run_id"],
        group_id=row["group_id"],
        member=row["member"],
        task=TaskRef(row["app"], row["app_version"], json.loads(row["options"]), row["seed"]),
        policy=row["policy"],
        policy_version=row["policy_version"],
        prompt_hash=row["prompt_hash"],
        flags=StepRewardFlags(
            row["step_rewards_mode"], row["event_rewards_kind"], row["indicator_lambda"], row["beta"], row["horizon"]
        ),
        max_decisions=row["max_decisions"],
        status=row["status"],
        cause=row["cause"],
        terminated=bool(row["terminated"]),
        truncated=bool(row["truncated"]),
        outcome=row["outcome"],
        decisions=_decisions(connection, row["id"], records),
        tools=tuple(json.loads(tools)),
        update=row["training_update"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        details=json.loads(row["details"]),
    )


def _decisions(connection: sqlite3.Connection, key: int, records: bool) -> tuple[Decision, ...]:
    steps, tokens, messages = _steps(connection, key), _tokens(connection, key), _messages(connection, key)
    rewards = _rewards(connection, key) if records else {}
    rows = connection.execute("SELECT * FROM decisions WHERE episode = ? ORDER BY turn", (key,)).fetchall()
    strays = sorted(rewards.keys() - {row["turn"] for row in rows})
    if strays:
        raise KeyError(f"decision rewards for turn {strays[0]}, which the episode does not have")
    return tuple(
        _decision(row, messages, steps.get(row["turn"], []), rewards.get(row["turn"]), tokens.get(row["turn"]))
        for row in rows
    )


def _decision(
    row: sqlite3.Row,
    messages: dict[int, Message],
    steps: list[StepRecord],
    rewards: DecisionRewards | None,
    tokens: TokenTrace | None,
) -> Decision:
    reason = row["failure_reason"]
    return Decision(
        turn=row["turn"],
        messages=tuple(messages[key] for key in json.loads(row["prompt"])),
        completion=Completion(
            message=AssistantMessage.from_wire(messages[row["answer"]], row["finish_reason"]),
            completion_id=row["completion_id"],
            model=row["model"],
            prompt_tokens=row["prompt_tokens"],
            completion_tokens=row["completion_tokens"],
            latency_s=row["latency_s"],
            tokens=tokens,
        ),
        failure=ParseFailure(reason, row["failure_detail"]) if reason is not None else None,
        steps=tuple(steps),
        rewards=rewards,
        started_at=row["started_at"],
        env_s=row["env_s"],
    )


def _messages(connection: sqlite3.Connection, key: int) -> dict[int, Message]:
    """Every message the episode's prompts and answers refer to, by id."""
    sql = """SELECT id, message FROM messages WHERE id IN (
        SELECT answer FROM decisions WHERE episode = ?
        UNION SELECT value FROM decisions, json_each(decisions.prompt) WHERE episode = ?)"""
    return {row["id"]: json.loads(row["message"]) for row in connection.execute(sql, (key, key))}


def _steps(connection: sqlite3.Connection, key: int) -> dict[int, list[StepRecord]]:
    events: dict[int, list[str]] = defaultdict(list)
    for row in connection.execute("SELECT step, name FROM events WHERE episode = ? ORDER BY step, ordinal", (key,)):
        events[row["step"]].append(row["name"])
    steps: dict[int, list[StepRecord]] = defaultdict(list)
    for row in connection.execute("SELECT * FROM steps WHERE episode = ? ORDER BY step", (key,)):
        record = StepRecord(
            step=row["step"],
            action=row["action"],
            reward=row["reward"],
            terminated=bool(row["terminated"]),
            truncated=bool(row["truncated"]),
            events=tuple(events[row["step"]]),
        )
        steps[row["turn"]].append(record)
    return steps


def _rewards(connection: sqlite3.Connection, key: int) -> dict[int, DecisionRewards]:
    rows = connection.execute("SELECT * FROM decision_rewards WHERE episode = ?", (key,))
    return {
        row["turn"]: DecisionRewards(
            turn=row["turn"],
            ach_delta=row["ach_delta"],
            unique_delta=row["unique_delta"],
            all=tuple(json.loads(row["all_events"])),
            unique=tuple(json.loads(row["unique_events"])),
        )
        for row in rows
    }


def _tokens(connection: sqlite3.Connection, key: int) -> dict[int, TokenTrace]:
    sql = """SELECT decision_tokens.*, token_prefixes.ids AS prefix_ids
             FROM decision_tokens JOIN token_prefixes ON token_prefixes.id = prefix WHERE episode = ?"""
    traces = {}
    for row in connection.execute(sql, (key,)):
        prefix = _values(row["prefix_ids"], "<i4")
        traces[row["turn"]] = TokenTrace(
            prompt_ids=prefix + _values(row["prompt_ids"], "<i4"),
            prefix_length=len(prefix),
            completion_ids=_values(row["completion_ids"], "<i4"),
            logprobs=_values(row["logprobs"], "<f4"),
            mask=_values(row["mask"], "u1"),
            temperature=row["temperature"],
            grammar_hash=row["grammar_hash"],
            renderer_hash=row["renderer_hash"],
        )
    return traces


def _values(blob: bytes, dtype: str) -> tuple[Any, ...]:
    return tuple(np.frombuffer(blob, dtype=dtype).tolist())
