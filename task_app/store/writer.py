"""An `Episode` as rows. Pure inserts on an open transaction; the caller owns begin and commit."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from task_app.core.types import Decision, Episode, Message, TokenTrace

__all__ = ["insert_episode", "insert_rows"]


def insert_episode(connection: sqlite3.Connection, episode: Episode) -> None:
    """Insert the episode and all it holds. Raises sqlite3.IntegrityError when its id is taken."""
    tool_set = _interned(connection, "tool_sets", "tools", _json(list(episode.tools)))
    task, flags = episode.task, episode.flags
    columns: dict[str, Any] = {
        "episode_id": episode.episode_id,
        "run_id": episode.run_id,
        "group_id": episode.group_id,
        "member": episode.member,
        "app": task.app,
        "app_version": task.version,
        "options": _json(dict(task.options)),
        "seed": task.seed,
        "policy": episode.policy,
        "policy_version": episode.policy_version,
        "prompt_hash": episode.prompt_hash,
        "step_rewards_mode": flags.mode,
        "event_rewards_kind": flags.kind,
        "indicator_lambda": flags.indicator_lambda,
        "beta": flags.beta,
        "horizon": flags.horizon,
        "max_decisions": episode.max_decisions,
        "status": episode.status,
        "cause": episode.cause,
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "outcome": episode.outcome,
        "training_update": episode.update,
        "tool_set": tool_set,
        "started_at": episode.started_at,
        "finished_at": episode.finished_at,
        "details": _json(dict(episode.details)),
    }
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT INTO episodes ({', '.join(columns)}) VALUES ({marks})"
    key = connection.execute(sql, _storable(columns.values())).lastrowid
    assert key is not None
    _insert_decisions(connection, key, episode.decisions)
    _insert_steps(connection, key, episode.decisions)


def _insert_decisions(connection: sqlite3.Connection, key: int, decisions: Sequence[Decision]) -> None:
    rows, rewards = [], []
    for decision in decisions:
        completion, failure = decision.completion, decision.failure
        prompt = [_message(connection, message) for message in decision.messages]
        rows.append(
            (
                key,
                decision.turn,
                _json(prompt),
                _message(connection, completion.message.to_wire()),
                completion.message.finish_reason,
                failure.reason if failure else None,
                failure.detail if failure else None,
                completion.completion_id,
                completion.model,
                completion.prompt_tokens,
                completion.completion_tokens,
                completion.latency_s,
                decision.env_s,
                decision.started_at,
            )
        )
        if decision.rewards is not None:
            record = decision.rewards
            rewards.append(
                (key, decision.turn, record.ach_delta, record.unique_delta, _json(record.all), _json(record.unique))
            )
        if completion.tokens is not None:
            _insert_tokens(connection, key, decision.turn, completion.tokens)
    insert_rows(connection, "decisions", rows)
    insert_rows(connection, "decision_rewards", rewards)


def _insert_steps(connection: sqlite3.Connection, key: int, decisions: Sequence[Decision]) -> None:
    steps, events = [], []
    for decision in decisions:
        for step in decision.steps:
            steps.append((key, step.step, decision.turn, step.action, step.reward, step.terminated, step.truncated))
            events += [(key, step.step, index, decision.turn, name) for index, name in enumerate(step.events)]
    insert_rows(connection, "steps", steps)
    insert_rows(connection, "events", events)


def _insert_tokens(connection: sqlite3.Connection, key: int, turn: int, tokens: TokenTrace) -> None:
    prefix = _blob(tokens.prompt_ids[: tokens.prefix_length], "<i4")
    row = (
        key,
        turn,
        _interned(connection, "token_prefixes", "ids", prefix),
        _blob(tokens.prompt_ids[tokens.prefix_length :], "<i4"),
        _blob(tokens.completion_ids, "<i4"),
        _blob(tokens.logprobs, "<f4"),
        _blob(tokens.mask, "u1"),
        tokens.temperature,
        tokens.grammar_hash,
        tokens.renderer_hash,
    )
    insert_rows(connection, "decision_tokens", [row])


def _message(connection: sqlite3.Connection, message: Message) -> int:
    return _interned(connection, "messages", "message", _json(message), role=str(message.get("role", "")))


def _interned(connection: sqlite3.Connection, table: str, column: str, value: str | bytes, **extra: str) -> int:
    """The row id of `value` in a table that holds each value once, inserting it when new."""
    digest = hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:32]
    found = connection.execute(f"SELECT id FROM {table} WHERE hash = ?", (digest,)).fetchone()
    if found:
        return int(found[0])
    columns = {"hash": digest, column: value, **extra}
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
    key = connection.execute(sql, list(columns.values())).lastrowid
    assert key is not None
    return key


def insert_rows(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert whole rows. Raises ValueError for NaN and infinity, which SQLite would turn into NULL or keep."""
    if rows:
        sql = f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})"
        connection.executemany(sql, [_storable(row) for row in rows])


def _storable(values: Iterable[Any]) -> list[Any]:
    row = [_text(value) if isinstance(value, str) else value for value in values]
    if not all(math.isfinite(value) for value in row if isinstance(value, float)):
        raise ValueError("NaN and infinity are not stored")
    return row


def _text(value: str) -> str:
    """`value`, with halves of surrogate pairs (which no UTF-8 can hold) written as escapes.

    In JSON text the escape means the same character, so messages are read back as they were said.
    """
    return value.encode("utf-8", "backslashreplace").decode()


def _json(value: Any) -> str:
    """Strict, canonical JSON: no NaN or infinity, keys sorted, no spaces."""
    return _text(json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def _blob(values: Iterable[float], dtype: str) -> bytes:
    array = np.asarray(list(values), dtype=dtype)
    if not np.isfinite(array).all():
        raise ValueError("NaN and infinity are not stored")
    return array.tobytes()
