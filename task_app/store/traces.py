"""`TraceStore`: one trace database, opened; safe to use from many threads.

Writes are one transaction each: a killed process loses at most the episode in flight, and a failed
insert rolls back before anyone else can see it. Order of reading is (update, group, member).
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from task_app.core.errors import StoreError
from task_app.core.types import Episode
from task_app.store.database import begin_writing, explain, open_database
from task_app.store.reader import read_episode
from task_app.store.writer import insert_episode, insert_rows

__all__ = ["Rows", "TraceStore"]

Rows = Callable[..., Iterator[tuple[Any, ...]]]
"""A reading statement and its parameters → its rows."""


class TraceStore:
    """An open trace database. Use as a context manager, or call `close`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path | str, *, create: bool = True, read_only: bool = False) -> Self:
        """Open `path`, creating or migrating it unless told otherwise. Raises StoreError."""
        path = Path(path)
        return cls(path, open_database(path, create=create and not read_only, read_only=read_only))

    def close(self) -> None:
        """Close the connection; SQLite then folds the write-ahead log into the file."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------

    def write_run(self, run_id: str, command: str, config: Mapping[str, Any]) -> None:
        """Record a run's resolved config. A run seen before keeps its first record (resume)."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?)",
                (run_id, command, json.dumps(config, allow_nan=False, sort_keys=True), time.time()),
            )

    def write_episode(self, episode: Episode) -> None:
        """Store one episode in one transaction. Raises StoreError; nothing of it is kept then."""
        with self._transaction() as connection:
            insert_episode(connection, episode)

    def write_episodes(self, episodes: Iterable[Episode]) -> None:
        """Store several episodes in one transaction: all of them, or none. Raises StoreError."""
        with self._transaction() as connection:
            for episode in episodes:
                insert_episode(connection, episode)

    def write_advantages(self, run_id: str, update: int, advantages: Mapping[str, Sequence[float]]) -> None:
        """Record what training credited: per episode id, one advantage per decision, turn 1 first."""
        with self._transaction() as connection:
            for episode_id, values in advantages.items():
                key = self._key(connection, episode_id)
                rows = [(run_id, update, key, turn, value) for turn, value in enumerate(values, start=1)]
                insert_rows(connection, "advantages", rows)

    def supersede(self, run_id: str, from_update: int) -> int:
        """Mark the run's episodes from an update on as replaced, and drop what training said of them.

        One transaction; returns how many were marked. They stay readable by their id.
        """
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM advantages WHERE run_id = ? AND training_update >= ?", (run_id, from_update)
            )
            marked = connection.execute(
                "UPDATE episodes SET superseded = 1 WHERE run_id = ? AND training_update >= ? AND NOT superseded",
                (run_id, from_update),
            )
            return marked.rowcount

    # -- reading ---------------------------------------------------------------------------

    def fault(self) -> str:
        """Why the database cannot be read; empty when it can."""
        try:
            self._rows("SELECT 1 FROM episodes LIMIT 1", ())
        except StoreError as error:
            return str(error)
        return ""

    def episodes(
        self,
        *,
        run_id: str | None = None,
        update: int | None = None,
        policy: str | None = None,
        records: bool = True,
    ) -> Iterator[Episode]:
        """Episodes in order of (run, update, group, member), superseded ones left out.

        `records = False` does not read decision rewards at all (mode `off` needs none).
        """
        wanted = {"run_id": run_id, "training_update": update, "policy": policy}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join(["NOT superseded", *(f"{column} = ?" for column in given)])
        sql = f"""SELECT * FROM episodes WHERE {where}
                  ORDER BY run_id, training_update, group_id, member, episode_id"""
        for row in self._rows(sql, tuple(given.values())):
            with self._reading():
                episode = read_episode(self._connection, row, records=records)
            yield episode

    def episode(self, episode_id: str) -> Episode:
        """The episode with this id, or with the one id that begins so. Raises StoreError for none or several."""
        rows = self._rows("SELECT * FROM episodes WHERE episode_id = ?", (episode_id,)) or self._rows(
            "SELECT * FROM episodes WHERE substr(episode_id, 1, ?) = ?", (len(episode_id), episode_id)
        )
        if not rows:
            raise StoreError(f"no episode {episode_id!r} in {self.path}")
        if len(rows) > 1:
            raise StoreError(f"{len(rows)} episodes in {self.path} begin with {episode_id!r}; give more of the id")
        with self._reading():
            return read_episode(self._connection, rows[0])

    def advantages(self, episode_id: str) -> dict[int, float]:
        """The latest advantages training recorded for an episode, by turn; empty when none did."""
        sql = """SELECT turn, advantage FROM advantages JOIN episodes ON episodes.id = advantages.episode
                 WHERE episode_id = ? ORDER BY advantages.training_update"""
        return {row["turn"]: row["advantage"] for row in self._rows(sql, (episode_id,))}

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of any reading statement; aggregates are meant to be plain SQL. Raises StoreError."""
        return self._rows(sql, tuple(parameters))

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """One moment of the database: what others write meanwhile is not seen, so that numbers agree.

        Yields a function from a reading statement and its parameters to plain tuples, one at a time. Other
        threads wait for their turn on this store; other processes write on. Raises StoreError.
        """
        with self._reading():
            self._connection.execute("BEGIN")
            try:
                yield self._stream
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    # -- inside ----------------------------------------------------------------------------

    def _stream(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, tuple(parameters))

    @staticmethod
    def _key(connection: sqlite3.Connection, episode_id: str) -> int:
        row = connection.execute("SELECT id FROM episodes WHERE episode_id = ?", (episode_id,)).fetchone()
        if row is None:
            raise StoreError(f"no episode {episode_id!r}")
        return int(row[0])

    def _rows(self, sql: str, parameters: Iterable[Any]) -> list[sqlite3.Row]:
        with self._reading():
            return self._connection.execute(sql, tuple(parameters)).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
                raise StoreError(f"trace database {self.path} cannot be read: {explain(error)}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction that is always ended, whatever happens inside."""
        with self._lock:
            try:
                begin_writing(self._connection)
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # SQLite may have rolled back by itself
                        self._connection.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
                raise StoreError(f"trace database {self.path} was not written: {explain(error)}") from error
