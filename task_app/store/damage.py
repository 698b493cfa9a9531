"""Damage that the typed record does not show: rows that belong nowhere, values of a wrong type, gaps in
numbering, texts that are not what their hash says. Reads only; repairs nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from task_app.store.writer import content_hash

__all__ = ["DamageCheck"]

_TABLES = {  # each with its columns of order
    "episodes": "id",
    "decisions": "turn",
    "decision_rewards": "turn",
    "steps": "step",
    "events": "step, ordinal",
    "decision_tokens": "turn",
}
_TYPES: dict[str, set[type]] = {"INTEGER": {int}, "REAL": {float, int}, "TEXT": {str}, "BLOB": {bytes}}
_Rows = dict[str, list[sqlite3.Row]]


class DamageCheck:
    """Checks episodes of one open database, one at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._allowed = {table: _column_types(connection, table) for table in _TABLES}

    def of(self, key: int) -> str:
        """What is damaged in the episode with this row id, "" when nothing is.

        Raises sqlite3.Error for what SQLite cannot read, ValueError and TypeError for broken JSON.
        """
        rows = {table: self._rows(table, order, key) for table, order in _TABLES.items()}
        return next(self._damages(rows), "")

    def _rows(self, table: str, order: str, key: int) -> list[sqlite3.Row]:
        column = "id" if table == "episodes" else "episode"
        return self._connection.execute(f"SELECT * FROM {table} WHERE {column} = ? ORDER BY {order}", (key,)).fetchall()

    def _damages(self, rows: _Rows) -> Iterator[str]:
        for table, allowed in self._allowed.items():
            yield from _wrong_types(table, rows[table], allowed)
        yield from _wrong_places(rows)
        yield from self._wrong_messages(rows["decisions"])
        yield from self._wrong_texts("tool_sets", "tools", {rows["episodes"][0]["tool_set"]})
        yield from self._wrong_texts("token_prefixes", "ids", {row["prefix"] for row in rows["decision_tokens"]})

    def _wrong_messages(self, decisions: Sequence[sqlite3.Row]) -> Iterator[str]:
        wanted: dict[int, int] = {}
        for row in decisions:
            prompt = json.loads(row["prompt"])
            if not isinstance(prompt, list) or not all(type(key) is int for key in prompt):
                yield f"turn {row['turn']}: the prompt is no list of message ids"
                return
            wanted |= dict.fromkeys((*prompt, row["answer"]), row["turn"])
        found = self._stored_once("messages", "message", set(wanted))
        for key, turn in wanted.items():
            if key not in found:
                yield f"turn {turn}: message {key} is missing"
            elif content_hash(found[key]["message"]) != found[key]["hash"]:
                yield f"turn {turn}: the text of message {key} is not the one its hash was made of"
            elif not isinstance(message := json.loads(found[key]["message"]), dict):
                yield f"turn {turn}: message {key} is no JSON object"
            elif str(message.get("role", "")) != found[key]["role"]:
                yield f"turn {turn}: message {key} is stored under role {found[key]['role']!r}, it says otherwise"

    def _wrong_texts(self, table: str, column: str, wanted: set[int]) -> Iterator[str]:
        found = self._stored_once(table, column, wanted)
        for key in sorted(wanted):
            if key not in found:
                yield f"row {key} of {table} is missing"
            elif content_hash(found[key][column]) != found[key]["hash"]:
                yield f"row {key} of {table} is not what its hash was made of"

    def _stored_once(self, table: str, column: str, wanted: set[int]) -> dict[int, sqlite3.Row]:
        sql = f"SELECT * FROM {table} WHERE id IN (SELECT value FROM json_each(?)) AND {column} IS NOT NULL"
        rows = self._connection.execute(sql, (json.dumps(sorted(wanted)),)) if wanted else ()
        return {row["id"]: row for row in rows}


def _column_types(connection: sqlite3.Connection, table: str) -> list[tuple[str, set[type]]]:
    """(name, types a value may have) of each column."""
    return [
        (row["name"], _TYPES[row["type"]] | (set() if row["notnull"] or row["pk"] else {type(None)}))
        for row in connection.execute(f"PRAGMA table_info({table})")
    ]


def _wrong_types(table: str, rows: Sequence[sqlite3.Row], allowed: Sequence[tuple[str, set[type]]]) -> Iterator[str]:
    for signature in {tuple(map(type, row)) for row in rows}:
        for found, (name, types) in zip(signature, allowed, strict=True):
            if found not in types:
                names = " or ".join(sorted(kind.__name__ for kind in types))
                yield f"{table}.{name} holds a value of type {found.__name__}, {names} is stored there"
    for name in ("terminated", "truncated"):
        if any(name == column for column, _ in allowed):
            for row in rows:
                if row[name] not in (0, 1):
                    yield f"{table}.{name} holds {row[name]!r}, 0 or 1 is stored there"


def _wrong_places(rows: _Rows) -> Iterator[str]:
    """Rows whose decision or step does not exist, and gaps in numbering."""
    turns = [row["turn"] for row in rows["decisions"]]
    yield from _gaps("turn", turns, 1)
    for table in ("steps", "decision_rewards", "decision_tokens"):
        for row in rows[table]:
            if not 1 <= row["turn"] <= len(turns):
                yield f"{table} has a row of turn {row['turn']}, the episode has {len(turns)} decisions"
    yield from _gaps("step", [row["step"] for row in rows["steps"]], 0)
    turn_of = {row["step"]: row["turn"] for row in rows["steps"]}
    yield from _wrong_order(list(turn_of.values()))
    events: dict[int, list[int]] = {}
    for row in rows["events"]:
        step, turn = row["step"], row["turn"]
        if step not in turn_of:
            yield f"event {row['name']!r} belongs to step {step}, which the episode does not have"
        elif turn != turn_of[step]:
            yield f"event {row['name']!r} of step {step} is stored under turn {turn}, the step's is {turn_of[step]}"
        events.setdefault(step, []).append(row["ordinal"])
    for step, ordinals in events.items():
        yield from _gaps(f"step {step}: event", ordinals, 0)


def _gaps(what: str, numbers: Sequence[Any], first: int) -> Iterator[str]:
    for expected, number in enumerate(numbers, start=first):
        if number != expected:
            yield f"{what} {expected} is missing, {number} stands in its place"
            return


def _wrong_order(turns: Sequence[int]) -> Iterator[str]:
    for step, (before, after) in enumerate(pairwise(turns), start=1):
        if after < before:
            yield f"step {step} belongs to turn {after}, the step before it to turn {before}"
