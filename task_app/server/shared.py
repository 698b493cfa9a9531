"""What the worker processes of one server share: who plays and who waits, what is to be aborted, and answers by
idempotency key.

An SQLite file beside the trace database, whose loss costs no episode; only its owner may read it. Rows of a process
that has ended count for nothing. Of keys it holds hashes alone. Reading never waits for a writer, and what cannot be
written as a rollout ends is written later: a full disk costs no place. Plays nothing; times are seconds of the epoch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from task_app.core.errors import StoreError
from task_app.http.errors import Busy, Conflict
from task_app.http.process import identity_of, is_running
from task_app.store.database import BUSY_TIMEOUT_S, begin_writing, use_write_ahead_log

__all__ = ["KEPT_S", "Counts", "Request", "RunningRollout", "Shared", "shared_path"]

logger = logging.getLogger(__name__)

State = Literal["waiting", "running"]

KEPT_S = 24 * 3600.0
"""How long an answer is kept for its idempotency key."""
_NOBODY = "0:"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    episode_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL,
    since REAL NOT NULL, abort INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    key TEXT PRIMARY KEY, body TEXT NOT NULL, episode_id TEXT NOT NULL, owner TEXT NOT NULL, answer BLOB,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS requests_by_time ON requests (at);
CREATE TABLE IF NOT EXISTS calls (
    caller TEXT NOT NULL, minute INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (caller, minute)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS readers (token BLOB PRIMARY KEY, ends REAL NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rollouts play and wait, in all workers together."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RunningRollout:
    """One rollout that plays or waits; `aborting` once its end was asked for."""

    episode_id: str
    state: State
    since: float
    aborting: bool


@dataclass(frozen=True, slots=True)
class Request:
    """Where a request with an idempotency key stands.

    episode_id  of the rollout that the first such request began
    answer      what it was answered, once it was
    lost        whether the process that played it has ended without an answer
    """

    episode_id: str
    answer: bytes | None
    lost: bool


def shared_path(trace_db: Path) -> Path:
    """The file beside a trace database: `task_app.db` → `task_app.serving.db`."""
    return trace_db.with_suffix(".serving.db")


class Shared:
    """One process's connection. Safe to use from many threads; every call is one short transaction."""

    def __init__(self, path: Path, max_running: int, max_waiting: int) -> None:
        self._path = path
        self._connection, self._reader = _connect(path), _connect(path)
        self._max_running, self._max_waiting = max_running, max_waiting
        self._lock, self._reading_lock = threading.Lock(), threading.Lock()
        self._owner = identity_of(os.getpid())
        self._owed: list[tuple[str, tuple[Any, ...]]] = []

    @classmethod
    def open(cls, path: Path, *, max_running: int, max_waiting: int) -> Self:
        """Open or create the file and drop what processes that have ended left in it. Raises StoreError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            shared = cls(path, max_running, max_waiting)
            use_write_ahead_log(shared._connection)
            shared._connection.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise _unusable(path, error) from error
        with shared._transaction() as rows:
            shared._drop_the_dead(rows)
            shared._drop_the_old(rows)
            rows.execute("DELETE FROM calls WHERE minute < ?", (int(time.time() // 60),))
        return shared

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, max_running: int, max_waiting: int) -> Iterator[Self]:
        """`open` and `close` around a block."""
        shared = cls.open(path, max_running=max_running, max_waiting=max_waiting)
        try:
            yield shared
        finally:
            shared.close()

    def close(self) -> None:
        """Give up what this process holds, and close the connection."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM rollouts WHERE owner = ?", (self._owner,))
            rows.execute("UPDATE requests SET owner = ? WHERE owner = ? AND answer IS NULL", (_NOBODY, self._owner))
        with self._lock, self._reading_lock:
            self._connection.close()
            self._reader.close()

    # -- rollouts ------------------------------------------------------------------------------

    def enter(self, episode_id: str, run_id: str) -> bool:
        """Take a place: True to play at once, False to wait behind those that wait. Raises Busy where too many do."""
        with self._transaction() as rows:
            counts = self._counted(rows)
            if counts.waiting or counts.running >= self._max_running:
                self._drop_the_dead(rows)
                counts = self._counted(rows)
            if counts.running + counts.waiting >= self._max_running + self._max_waiting:
                raise Busy
            plays = not counts.waiting and counts.running < self._max_running
            state: State = "running" if plays else "waiting"
            values = (episode_id, run_id, self._owner, state, time.time())
            rows.execute("INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, 0)", values)
            return plays

    def has_turn(self) -> bool:
        """Whether `advance` would let in one of this process; looks and changes nothing."""
        with self._reading() as rows:
            return bool(self._next_of_mine(rows))

    def advance(self) -> list[str]:
        """Let those play that have waited longest, as many as places are free; the episodes of this process."""
        with self._transaction() as rows:
            self._drop_the_dead(rows)
            return self._let_in(rows)

    def leave(self, episode_id: str) -> list[str]:
        """Give the place back, now or as soon as the file can be written; the episodes of this process that play now
        since they were next."""
        sql, values = "DELETE FROM rollouts WHERE episode_id = ?", (episode_id,)
        try:
            with self._transaction() as rows:
                rows.execute(sql, values)
                return self._let_in(rows)
        except StoreError as error:
            self._owe(sql, values, error)
            return []

    def drop_the_dead(self) -> None:
        """Free the places of processes that have ended; writes only if there are any."""
        with self._reading() as rows:
            dead = self._dead(rows)
        if dead:
            with self._transaction() as rows:
                self._drop_the_dead(rows)

    @property
    def owes(self) -> bool:
        """Whether something could not be written yet."""
        return bool(self._owed)

    def settle(self) -> None:
        """Write what could not be written before. Raises StoreError while it still cannot be."""
        if self._owed:
            with self._transaction():
                pass

    def counts(self) -> Counts:
        """How many play and wait; those of processes that have ended are not counted."""
        with self._reading() as rows:
            owners = dict(rows.execute("SELECT owner || ' ' || state, count(*) FROM rollouts GROUP BY owner, state"))
        alive = {label: number for label, number in owners.items() if is_running(label.partition(" ")[0])}
        by_state = {
            state: sum(number for label, number in alive.items() if label.endswith(f" {state}"))
            for state in ("running", "waiting")
        }
        return Counts(**by_state)

    def rollouts_of(self, run_id: str) -> list[RunningRollout]:
        """What plays and waits of a run, in order of its beginning."""
        sql = "SELECT episode_id, state, since, abort, owner FROM rollouts WHERE run_id = ? ORDER BY since, episode_id"
        with self._reading() as rows:
            found = rows.execute(sql, (run_id,)).fetchall()
        return [
            RunningRollout(episode_id, state, since, bool(abort))
            for episode_id, state, since, abort, owner in found
            if is_running(owner)
        ]

    def abort(self, run_id: str) -> int:
        """Ask for the end of all that plays and waits of a run, whichever process it is in; how many there are."""
        with self._transaction() as rows:
            self._drop_the_dead(rows)
            return rows.execute("UPDATE rollouts SET abort = 1 WHERE run_id = ?", (run_id,)).rowcount

    def to_abort(self) -> set[str]:
        """This process's episodes whose end was asked for."""
        with self._reading() as rows:
            found = rows.execute("SELECT episode_id FROM rollouts WHERE abort AND owner = ?", (self._owner,)).fetchall()
        return {row[0] for row in found}

    # -- idempotency ---------------------------------------------------------------------------

    def begin_request(self, key: str, body: bytes, episode_id: str) -> Request | None:
        """Note that `episode_id` answers the request; None for the first with this key, else how that one stands.

        Raises Conflict when the same key came with another body.
        """
        name, content = _hash(key.encode()), _hash(body)
        with self._transaction() as rows:
            sql = "SELECT body, episode_id, owner, answer FROM requests WHERE key = ? AND at >= ?"
            found = rows.execute(sql, (name, time.time() - KEPT_S)).fetchone()
            if found is None:
                self._drop_the_old(rows)
                values = (name, content, episode_id, self._owner, time.time())
                rows.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, NULL, ?)", values)
                return None
            if found[0] != content:
                raise Conflict("the Idempotency-Key was used with another body", field="Idempotency-Key")
            return Request(found[1], found[3], lost=found[3] is None and not is_running(found[2]))

    def take_over(self, key: str, lost: str, episode_id: str) -> bool:
        """Answer a request in the place of a process that has ended while playing `lost`; False if another does."""
        with self._transaction() as rows:
            taken = rows.execute(
                "UPDATE requests SET episode_id = ?, owner = ? WHERE key = ? AND episode_id = ? AND answer IS NULL",
                (episode_id, self._owner, _hash(key.encode()), lost),
            )
            return taken.rowcount == 1

    def finish_request(self, key: str, answer: bytes) -> None:
        """Keep the answer for every further request with the key, now or as soon as the file can be written."""
        self._write_or_owe("UPDATE requests SET answer = ? WHERE key = ?", (answer, _hash(key.encode())))

    def forget_request(self, key: str) -> None:
        """The request came to nothing: the next one with its key begins anew."""
        self._write_or_owe("DELETE FROM requests WHERE key = ? AND answer IS NULL", (_hash(key.encode()),))

    # -- rates ---------------------------------------------------------------------------------

    def calls_this_minute(self, caller: bytes) -> int:
        """Count one more call of a caller in the running minute."""
        minute = int(time.time() // 60)
        with self._transaction() as rows:
            rows.execute("DELETE FROM calls WHERE minute < ?", (minute,))
            sql = """INSERT INTO calls VALUES (?, ?, 1)
                     ON CONFLICT DO UPDATE SET number = number + 1 RETURNING number"""
            return rows.execute(sql, (_hash(caller), minute)).fetchone()[0]

    # -- readers of the page -------------------------------------------------------------------

    def begin_session(self, token: bytes, ends: float, most: int) -> None:
        """Keep a reader's token, by its hash, until a time; beyond `most` the one that ends first is forgotten."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM readers WHERE ends <= ?", (time.time(),))
            older = "SELECT token FROM readers ORDER BY ends DESC LIMIT -1 OFFSET ?"
            rows.execute(f"DELETE FROM readers WHERE token IN ({older})", (most - 1,))
            rows.execute("INSERT INTO readers VALUES (?, ?)", (token, ends))

    def session_ends(self, token: bytes) -> float:
        """Until when a token is good; 0 for one that was never given or is forgotten."""
        with self._reading() as rows:
            found = rows.execute("SELECT ends FROM readers WHERE token = ?", (token,)).fetchone()
        return found[0] if found else 0.0

    def end_session(self, token: bytes) -> None:
        """Forget a token."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM readers WHERE token = ?", (token,))

    def end_sessions(self) -> None:
        """Forget all tokens: a server that begins lets nobody in who was let in by another."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM readers")

    # -- the file ------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, which begins with what is owed."""
        with self._lock, self._told():
            begin_writing(self._connection)
            try:
                owed = list(self._owed)
                for sql, values in owed:
                    self._connection.execute(sql, values)
                yield self._connection
                self._connection.execute("COMMIT")
                del self._owed[: len(owed)]
            except BaseException:
                if self._connection.in_transaction:  # SQLite may have rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise

    def _write_or_owe(self, sql: str, values: tuple[Any, ...]) -> None:
        try:
            with self._transaction() as rows:
                rows.execute(sql, values)
        except StoreError as error:
            self._owe(sql, values, error)

    def _owe(self, sql: str, values: tuple[Any, ...], error: StoreError) -> None:
        logger.warning("%s; it will be written later", error)
        self._owed.append((sql, values))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own, so that nobody who reads waits for one who waits to write."""
        with self._reading_lock, self._told():
            yield self._reader

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _unusable(self._path, error) from error

    def _next_of_mine(self, rows: sqlite3.Connection) -> list[str]:
        """This process's among those that have waited longest, as many as places are free."""
        free = max(0, self._max_running - self._counted(rows).running)
        sql = "SELECT episode_id, owner FROM rollouts WHERE state = 'waiting' ORDER BY since, episode_id LIMIT ?"
        return [row[0] for row in rows.execute(sql, (free,)) if row[1] == self._owner]

    def _let_in(self, rows: sqlite3.Connection) -> list[str]:
        mine = self._next_of_mine(rows)
        for episode_id in mine:
            rows.execute("UPDATE rollouts SET state = 'running' WHERE episode_id = ?", (episode_id,))
        return mine

    @staticmethod
    def _counted(rows: sqlite3.Connection) -> Counts:
        sql = "SELECT coalesce(sum(state = 'running'), 0), coalesce(sum(state = 'waiting'), 0) FROM rollouts"
        return Counts(*rows.execute(sql).fetchone())

    @staticmethod
    def _drop_the_old(rows: sqlite3.Connection) -> None:
        rows.execute("DELETE FROM requests WHERE at < ?", (time.time() - KEPT_S,))

    @staticmethod
    def _dead(rows: sqlite3.Connection) -> list[str]:
        owners = [row[0] for row in rows.execute("SELECT DISTINCT owner FROM rollouts")]
        return [owner for owner in owners if not is_running(owner)]

    def _drop_the_dead(self, rows: sqlite3.Connection) -> None:
        for owner in self._dead(rows):
            rows.execute("DELETE FROM rollouts WHERE owner = ?", (owner,))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path}, which a server keeps beside its trace database, cannot be used: {error}")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
