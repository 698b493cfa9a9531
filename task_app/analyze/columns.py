"""A trace database as columns: one pass of SQL per table, one snapshot for all of them. Never builds an `Episode`.

What a report of 100,000 episodes needs is a few numbers of each, so they are read into arrays; steps are
not read at all (their totals stand beside the episodes). Computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from task_app.store import Rows, TraceStore

__all__ = ["Columns", "EventTimes", "GroupMembers", "Text", "read_columns"]

_TEXTS = (
    "episode_id", "run_id", "app", "policy", "policy_version", "model", "prompt_hash", "status", "cause",
    "setting",
)  # fmt: skip
_NUMBERS = (
    "id", "seed", "outcome", "episode_return", "environment_return", "decision_count",
    "step_count", "parse_failures", "ach_delta", "unique_delta", "prompt_tokens", "completion_tokens", "latency_s",
)  # fmt: skip
_CHUNK = 4096
"""Episodes turned into arrays at once, so that few of their rows are in memory."""
_SETTING = "json_array(app, app_version, options, max_decisions) AS setting"
"""What two episodes of one seed must share to be comparable."""

_EVENT_NAMES = """
WITH RECURSIVE found(name) AS (
    SELECT min(name) FROM events
    UNION ALL SELECT (SELECT min(name) FROM events WHERE name > found.name) FROM found WHERE name IS NOT NULL
) SELECT name FROM found WHERE name IS NOT NULL"""
"""Every event's name, by jumping through the index instead of reading all of it."""

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Text:
    """A column of texts: `names[codes[i]]` is the text of episode i."""

    codes: Array
    names: tuple[str, ...]

    def of(self, index: int) -> str:
        """The text of one episode."""
        return self.names[int(self.codes[index])]


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Where one event happened: (M,) each, in order of episode and turn, a pair of them once.

    episodes  index of the episode     turns  1-based turn     times  how often in that decision
    """

    episodes: Array
    turns: Array
    times: Array


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """A group: how many different members carry a reward, and the largest 0-based member number it has."""

    run: str
    update: int | None
    group: str
    rewarded: int
    largest: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of N episodes, C calls and R decision records with an event; tables refer to episodes by index.

    texts, numbers  (N,) by column name; numbers are float64, NaN where the database says NULL
    records         (N,) decision records stored of each episode
    calls           (C,) episode, latency_s, and whether a token count is missing (`unknown`)
    deltas          (R,) episode, turn, ach_delta, unique_delta of the records that are not all zero
    events          by name
    groups          of the same episodes, in order of run, update and group
    runs            run id → (command, the group size of its config or None)
    """

    texts: Mapping[str, Text]
    numbers: Mapping[str, Array]
    records: Array
    calls: Array
    deltas: Array
    events: Mapping[str, EventTimes]
    groups: tuple[GroupMembers, ...]
    runs: Mapping[str, tuple[str, int | None]]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def rewarded(self) -> Array:
        """(N,) whether the status carries a reward."""
        status = self.texts["status"]
        return np.isin(status.codes, [code for code, name in enumerate(status.names) if name in ("ok", "truncated")])


class _Codes(dict[str, int]):
    """Numbers texts in the order they are first met."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def read_columns(store: TraceStore, run_ids: Sequence[str] | None = None) -> Columns:
    """The columns of every episode that is not superseded, or of those of some runs. Raises StoreError."""
    with store.snapshot() as rows:
        texts, numbers = _episodes(rows, run_ids)
        groups = tuple(GroupMembers(*row) for row in rows(_GROUPS.format(where=_where(run_ids)), run_ids or ()))
        keys = numbers["id"].astype(np.int64)
        return Columns(
            texts=texts,
            numbers=numbers,
            records=_record_counts(rows, keys),
            calls=_indexed(_read(rows, _CALLS, _between(keys), _CALL), keys),
            deltas=_indexed(_read(rows, _DELTAS, _between(keys), _DELTA), keys),
            events={name: times for name in _event_names(rows) if len((times := _event(rows, name, keys)).turns)},
            groups=groups,
            runs={run: (command, size if isinstance(size, int) else None) for run, command, size in rows(_RUNS)},
        )


def _where(run_ids: Sequence[str] | None) -> str:
    """Which episodes; the run ids are the parameters."""
    return "NOT superseded" + (f" AND run_id IN ({', '.join('?' * len(run_ids))})" if run_ids is not None else "")


def _episodes(rows: Rows, run_ids: Sequence[str] | None) -> tuple[dict[str, Text], dict[str, Array]]:
    columns = ", ".join([*_TEXTS[:-1], _SETTING, *_NUMBERS])
    found = rows(f"SELECT {columns} FROM episode_summaries WHERE {_where(run_ids)} ORDER BY id", run_ids or ())
    codes = [_Codes() for _ in _TEXTS]
    chunks: list[list[Array]] = [[np.empty(0)] for _ in (*_TEXTS, *_NUMBERS)]
    while chunk := list(islice(found, _CHUNK)):
        columns_of_chunk = list(zip(*chunk, strict=True))
        for numbered, column, kept in zip(codes, columns_of_chunk, chunks, strict=False):
            kept.append(np.fromiter(map(numbered.__getitem__, column), dtype=np.int64))
        for column, kept in zip(columns_of_chunk[len(_TEXTS) :], chunks[len(_TEXTS) :], strict=True):
            kept.append(np.array(column, dtype=np.float64))
    every = [np.concatenate(kept) for kept in chunks]
    texts = {
        name: Text(column.astype(np.int64), tuple(numbered))
        for name, column, numbered in zip(_TEXTS, every, codes, strict=False)
    }
    return texts, dict(zip(_NUMBERS, every[len(_TEXTS) :], strict=True))


_RUNS = "SELECT run_id, command, json_extract(config, '$.rollout.group_size') FROM runs"
_GROUPS = """SELECT run_id, training_update, group_id,
             count(DISTINCT CASE WHEN status IN ('ok', 'truncated') THEN member END), max(member)
             FROM episodes WHERE {where} GROUP BY run_id, training_update, group_id"""
_CALL = np.dtype([("episode", np.int64), ("latency_s", np.float64), ("unknown", np.bool_)])
_CALLS = """SELECT episode, latency_s, prompt_tokens IS NULL OR completion_tokens IS NULL
            FROM decisions WHERE episode BETWEEN ? AND ?"""
_DELTA = np.dtype([("episode", np.int64), ("turn", np.int64), ("ach_delta", np.int64), ("unique_delta", np.int64)])
_DELTAS = """SELECT episode, turn, ach_delta, unique_delta FROM decision_rewards
             WHERE (ach_delta <> 0 OR unique_delta <> 0) AND episode BETWEEN ? AND ?"""
_TIME = np.dtype([("episode", np.int64), ("turn", np.int64), ("times", np.int64)])
_TIMES = """SELECT episode, turn, count(*) FROM events WHERE name = ? AND episode BETWEEN ? AND ?
            GROUP BY episode, turn"""
_COUNT = np.dtype([("episode", np.int64), ("records", np.int64)])
_COUNTS = "SELECT episode, count(*) FROM decision_rewards WHERE episode BETWEEN ? AND ? GROUP BY episode"


def _between(keys: Array) -> tuple[int, int]:
    """The stretch of the other tables that holds the episodes (with strangers in between, perhaps)."""
    return (int(keys[0]), int(keys[-1])) if len(keys) else (1, 0)


def _read(rows: Rows, sql: str, parameters: Sequence[Any], kind: np.dtype) -> Array:
    """The rows of a query as one array; every column is a number."""
    names = kind.names or ()
    values = np.fromiter(chain.from_iterable(rows(sql, parameters)), dtype=np.float64).reshape(-1, len(names))
    table = np.empty(len(values), dtype=kind)
    for index, name in enumerate(names):
        table[name] = values[:, index]
    return table


def _indexed(table: Array, keys: Array) -> Array:
    """The rows of known episodes, their key replaced by the episode's index."""
    if not len(keys):
        return table[:0]
    index = np.searchsorted(keys, table["episode"]).clip(max=len(keys) - 1)
    known = keys[index] == table["episode"]
    table["episode"] = index
    return table[known]


def _record_counts(rows: Rows, keys: Array) -> Array:
    table = _indexed(_read(rows, _COUNTS, _between(keys), _COUNT), keys)
    counts = np.zeros(len(keys), dtype=np.int64)
    counts[table["episode"]] = table["records"]
    return counts


def _event_names(rows: Rows) -> list[str]:
    return [name for (name,) in rows(_EVENT_NAMES)]


def _event(rows: Rows, name: str, keys: Array) -> EventTimes:
    table = _indexed(_read(rows, _TIMES, (name, *_between(keys)), _TIME), keys)
    return EventTimes(table["episode"], table["turn"], table["times"])
