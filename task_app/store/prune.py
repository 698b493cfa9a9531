"""Deleting episodes from a trace database, with everything that belongs to them and nothing else.

One write transaction finds the episodes, deletes them and then the texts nobody refers to any more. Since
a writer looks up its texts inside its own write transaction, none can come to rely on one that is about to go.
Never deletes without a filter.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, get_args

from task_app.core.errors import ConfigError, StoreError
from task_app.core.names import did_you_mean
from task_app.core.types import Status
from task_app.store.database import explain, open_database

__all__ = ["PruneFilter", "Pruned", "parse_age", "prune_database"]

_SECONDS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0}

_REFERENCES: Final = {
    "messages": """SELECT answer FROM decisions
                   UNION ALL SELECT value FROM decisions, json_each(decisions.prompt)""",
    "tool_sets": "SELECT tool_set FROM episodes",
    "token_prefixes": "SELECT prefix FROM decision_tokens",
}
"""Tables of shared texts, and every reference to them."""


@dataclass(frozen=True, slots=True)
class PruneFilter:
    """Which episodes go: those that match all that is given, whether or not a later update replaced them.

    `older_than_s` counts from the end of the episode; `superseded` takes only replaced ones.
    """

    run_ids: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    older_than_s: float | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted (or would be): `bytes` is what the file shrinks by, an estimate until it is done.

    `runs` had no other episodes. `done` is False for a dry run and when the answer was no. `compacted` is False when
    the file could not be shrunk because others were using it; its space is used again.
    """

    episodes: int
    decisions: int
    runs: int
    bytes: int
    done: bool = False
    compacted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)


def parse_age(text: str) -> float:
    """Seconds of `7d`, `12h` or `30m`. Raises ConfigError for anything else."""
    match = re.fullmatch(r"(\d{1,6})([dhm])", text.strip())
    if not match or int(match[1]) == 0:
        raise ConfigError(
            f"an age is a number of days, hours or minutes such as 7d, 12h or 30m, got {text!r}", field="older_than"
        )
    return int(match[1]) * _SECONDS[match[2]]


def prune_database(
    path: Path, wanted: PruneFilter, *, dry_run: bool = False, confirm: Callable[[Pruned], bool] = lambda found: True
) -> Pruned:
    """Delete the episodes that match and give the file's space back.

    What is found is shown to `confirm` first, with no lock held; nothing is deleted unless it agrees. Raises
    ConfigError without any filter, for an unknown status or an unknown run; StoreError for a database that
    cannot be read or written.
    """
    where, parameters = _condition(wanted, time.time())
    found = _look(path, wanted, where, parameters)
    if dry_run or not found.episodes or not confirm(found):
        return found
    before = _size(path)
    with closing(open_database(path, create=False, read_only=False)) as connection:
        try:
            # Off, because without an index on the referring columns SQLite would search whole tables for every row.
            connection.execute("PRAGMA foreign_keys = OFF")
            episodes, decisions, runs = _delete(connection, where, parameters)
        except sqlite3.Error as error:
            raise StoreError(f"trace database {path} was not pruned: {explain(error)}") from error
        compacted = _compact(connection)
    return Pruned(episodes, decisions, runs, before - _size(path), done=True, compacted=compacted)


def _condition(wanted: PruneFilter, now: float) -> tuple[str, tuple[Any, ...]]:
    """The filter as SQL over `episodes`. Raises ConfigError when it would match everything or names no status."""
    allowed = get_args(Status)
    for status in wanted.statuses:
        if status not in allowed:
            raise ConfigError(f"unknown status {status!r}{_hint(status, allowed)}", field="status")
    parts: list[str] = []
    parameters: list[Any] = []
    for column, values in (("run_id", wanted.run_ids), ("status", wanted.statuses)):
        if values:
            parts.append(f"{column} IN ({', '.join('?' * len(values))})")
            parameters += values
    if wanted.older_than_s is not None:
        parts.append("finished_at < ?")
        parameters.append(now - wanted.older_than_s)
    if wanted.superseded:
        parts.append("superseded")
    if not parts:
        raise ConfigError("prune needs at least one of --run-id, --older-than, --status, --superseded", field="filter")
    return " AND ".join(parts), tuple(parameters)


def _hint(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f" (there are: {', '.join(known[:20]) or 'none'})"


def _look(path: Path, wanted: PruneFilter, where: str, parameters: tuple[Any, ...]) -> Pruned:
    with closing(open_database(path, create=False, read_only=True)) as connection:
        try:
            connection.execute("BEGIN")
            known = [row[0] for row in connection.execute("SELECT run_id FROM episodes UNION SELECT run_id FROM runs")]
            for run_id in wanted.run_ids:
                if run_id not in known:
                    raise ConfigError(f"no run {run_id!r} in {path}{_hint(run_id, known)}", field="run_id")
            episodes, decisions, runs = _count(connection, where, parameters)
            every = connection.execute("SELECT count(*) FROM decisions").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreError(f"trace database {path} cannot be read: {explain(error, path)}") from error
    return Pruned(episodes, decisions, runs, round(_size(path) * decisions / every) if every else 0)


def _count(connection: sqlite3.Connection, where: str, parameters: tuple[Any, ...]) -> tuple[int, int, int]:
    """Episodes that match, their decisions, and the runs that would be left without any."""
    matching = f"(SELECT id FROM episodes WHERE {where})"
    statements = (
        (f"SELECT count(*) FROM {matching}", parameters),
        (f"SELECT count(*) FROM decisions WHERE episode IN {matching}", parameters),
        (
            f"""SELECT count(*) FROM runs WHERE run_id IN (SELECT run_id FROM episodes WHERE {where})
                AND run_id NOT IN (SELECT run_id FROM episodes WHERE id NOT IN {matching})""",
            parameters * 2,
        ),
    )
    episodes, decisions, runs = (connection.execute(*statement).fetchone()[0] for statement in statements)
    return episodes, decisions, runs


def _delete(connection: sqlite3.Connection, where: str, parameters: tuple[Any, ...]) -> tuple[int, int, int]:
    """The whole deletion in one write transaction; counts as `_count` gives them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        counts = _count(connection, where, parameters)
        connection.execute("CREATE TEMP TABLE doomed (id INTEGER PRIMARY KEY)")
        connection.execute(f"INSERT INTO doomed SELECT id FROM episodes WHERE {where}", parameters)
        runs = [row[0] for row in connection.execute("SELECT DISTINCT run_id FROM episodes JOIN doomed USING (id)")]
        for table in _tables_of_episodes(connection):
            connection.execute(f"DELETE FROM {table} WHERE episode IN (SELECT id FROM doomed)")
        connection.execute("DELETE FROM episodes WHERE id IN (SELECT id FROM doomed)")
        sql = "DELETE FROM runs WHERE run_id = ? AND run_id NOT IN (SELECT run_id FROM episodes)"
        connection.executemany(sql, [(run_id,) for run_id in runs])
        for table, references in _REFERENCES.items():
            connection.execute(f"DELETE FROM {table} WHERE id NOT IN ({references})")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return counts


def _tables_of_episodes(connection: sqlite3.Connection) -> list[str]:
    """Every table with rows that belong to an episode, as the schema itself declares it."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [
        table
        for table in tables
        if any(row[2] == "episodes" for row in connection.execute(f"PRAGMA foreign_key_list({table})"))
    ]


def _compact(connection: sqlite3.Connection) -> bool:
    """Give free space back to the file system; False when others are using the file or the disk is full."""
    try:
        connection.execute("VACUUM")
        return connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    except sqlite3.OperationalError:
        return False


def _size(path: Path) -> int:
    """Bytes of the file and of the log beside it."""
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)
