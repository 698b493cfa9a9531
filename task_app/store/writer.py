"""An `Episode` as rows. Pure inserts on an open transaction; the caller owns begin and commit.

Beside the facts an episode's row holds their totals (`store/totals.py`), so that lists and reports of
100,000 episodes need not read every step.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from task_app.core.types import Decision, Episode, Message, TokenTrace
from task_app.store.totals import totals_of

__all__ = ["canonical_json", "content_hash", "insert_episode", "insert_rows", "json_as_given"]


def insert_episode(connection: sqlite3.Connection, episode: Episode) -> None:
    """Insert the episode and all it holds. Raises sqlite3.IntegrityError when its id is taken."""
    tool_set = _interned(connection, "tool_sets", "tools", json_as_given(list(episode.tools)))
    task, flags = episode.task, episode.flags
    columns: dict[str, Any] = {
        "episode_id": episode.episode_id,
        "run_id": episode.run_id,
        "group_id": episode.group_id,
        "member": episode.member,
        "app": task.app,
        "app_version": task.version,
        "options": canonical_json(dict(task.options)),
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
        "details": canonical_json(dict(episode.details)),
        **totals_of(episode),
    }
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT INTO episodes ({', '.join(columns)}) VALUES ({marks})"
    key = connection.execute(sql, *_storable([list(columns.values())])).lastrowid
    assert key is not None
    _insert_decisions(connection, key, episode.decisions, _Messages(connection))
    _insert_steps(connection, key, episode.decisions)


_PLAIN = frozenset({int, bool, bytes, type(None)})
"""Types whose every value SQLite holds as it is."""


class _Messages:
    """Ids of one episode's messages; a prompt that repeats the same object is encoded and looked up once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[int, int] = {}

    def id_of(self, message: Message) -> int:
        """The row id of a message that lives as long as this object."""
        known = self._ids.get(id(message))
        if known is None:
            known = self._ids[id(message)] = _message(self._connection, message)
        return known


def _insert_decisions(
    connection: sqlite3.Connection, key: int, decisions: Sequence[Decision], messages: _Messages
) -> None:
    rows, rewards = [], []
    for decision in decisions:
        completion, failure = decision.completion, decision.failure
        prompt = [messages.id_of(message) for message in decision.messages]
        rows.append(
            (
                key,
                decision.turn,
                f"[{','.join(map(str, prompt))}]",
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
                (key, decision.turn, record.ach_delta, record.unique_delta, _names(record.all), _names(record.unique))
            )
        if completion.tokens is not None:
            _insert_tokens(connection, key, decision.turn, completion.tokens)
    insert_rows(connection, "decisions", rows)
    insert_rows(connection, "decision_rewards", rewards)


def _insert_steps(connection: sqlite3.Connection, key: int, decisions: Sequence[Decision]) -> None:
    steps = [(decision.turn, step) for decision in decisions for step in decision.steps]
    rows = [(key, s.step, turn, s.action, s.reward, s.terminated, s.truncated) for turn, s in steps]
    events = [(key, s.step, index, turn, name) for turn, s in steps if s.events for index, name in enumerate(s.events)]
    insert_rows(connection, "steps", rows)
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
    text = canonical_json(message)
    return _interned(connection, "messages", "message", text, str(message.get("role", "")))


def content_hash(value: str | bytes) -> str:
    """What a text or blob that is stored once is known by: 32 hex digits of its SHA-256."""
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:32]


def _interned(connection: sqlite3.Connection, table: str, column: str, value: str | bytes, role: str = "") -> int:
    """The row id of `value` in a table that holds each value once, inserting it when new."""
    digest = content_hash(value)
    if table == "messages":
        sql, values = "INSERT OR IGNORE INTO messages (hash, message, role) VALUES (?, ?, ?)", (digest, value, role)
    else:
        sql, values = f"INSERT OR IGNORE INTO {table} (hash, {column}) VALUES (?, ?)", (digest, value)
    new = connection.execute(sql, values)  # most texts are new, so insert before looking
    if new.rowcount:
        assert new.lastrowid is not None
        return new.lastrowid
    return int(connection.execute(f"SELECT id FROM {table} WHERE hash = ?", (digest,)).fetchone()[0])


def insert_rows(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert whole rows. Raises ValueError for NaN and infinity, which SQLite would turn into NULL or keep."""
    if rows:
        sql = f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})"
        connection.executemany(sql, _storable(rows))


def _storable(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The rows as SQLite can hold them. Columns are looked at whole: value by value it takes as long as inserting."""
    escaped = False
    for column in zip(*rows, strict=True):
        kinds = set(map(type, column))
        if kinds <= _PLAIN:
            continue
        if not all(map(math.isfinite, [value for value in column if isinstance(value, float)])):
            raise ValueError("NaN and infinity are not stored")
        escaped = escaped or not "".join([value for value in column if isinstance(value, str)]).isascii()
    if not escaped:
        return rows
    return [[_text(value) if isinstance(value, str) else value for value in row] for row in rows]


def _text(value: str) -> str:
    """`value`, with halves of surrogate pairs (which no UTF-8 can hold) written as escapes.

    In JSON text the escape means the same character, so messages are read back as they were said.
    """
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


_ENCODER = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_AS_GIVEN = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def canonical_json(value: Any) -> str:
    """Strict, canonical JSON as stored: no NaN or infinity, keys sorted, no spaces. Raises ValueError for those."""
    if type(value) is dict and value.keys() == {"role", "content"} and type(value["content"]) is str:
        role, content = _ENCODER.encode(value["role"]), _ENCODER.encode(value["content"])
        return _text(f'{{"content":{content},"role":{role}}}')  # what most messages are, in a third of the time
    return _text(_ENCODER.encode(value))


def json_as_given(value: Any) -> str:
    """Strict JSON without spaces, keys in their own order: tools are stored so, as the policy was shown them."""
    return _text(_AS_GIVEN.encode(value))


@lru_cache(maxsize=4096)
def _names(names: tuple[str, ...]) -> str:
    """A list of event names as JSON; few different ones occur."""
    return canonical_json(names)


def _blob(values: Iterable[float], dtype: str) -> bytes:
    array = np.asarray(list(values), dtype=dtype)
    if not np.isfinite(array).all():
        raise ValueError("NaN and infinity are not stored")
    return array.tobytes()
