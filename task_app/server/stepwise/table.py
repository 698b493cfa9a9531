"""What makes a session, in a SQLite file beside the trace database: how it began, what was said so far, who holds it.

Every worker process opens the same file, so that any of them can serve any session, and none of it is lost with a
process. One request at a time holds a session; a holder that died holds it no longer. Ages are measured by the
machine's monotonic clock, which all its processes share and nobody sets. Plays nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from task_app.core.errors import StoreError
from task_app.http.process import identity_of, is_running
from task_app.store.database import BUSY_TIMEOUT_S, begin_writing, use_write_ahead_log

__all__ = ["Answer", "SessionRow", "SessionTable"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    env_id TEXT PRIMARY KEY, request TEXT NOT NULL, prompt_hash TEXT NOT NULL, started_at REAL NOT NULL,
    used REAL NOT NULL, owner TEXT NOT NULL, held_by TEXT, ending TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS answers (
    env_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, turn INTEGER NOT NULL, completion TEXT NOT NULL,
    said_at REAL NOT NULL, PRIMARY KEY (env_id, turn)
) STRICT;
CREATE TABLE IF NOT EXISTS step_requests (
    env_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, request_id TEXT NOT NULL, turn INTEGER NOT NULL,
    said TEXT NOT NULL, PRIMARY KEY (env_id, request_id)
) STRICT;
CREATE TABLE IF NOT EXISTS policies (
    policy_id TEXT PRIMARY KEY, policy TEXT NOT NULL, bound_env_id TEXT, used REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS decided (
    policy_id TEXT NOT NULL REFERENCES policies ON DELETE CASCADE, env_id TEXT NOT NULL, turn INTEGER NOT NULL,
    completion TEXT NOT NULL, PRIMARY KEY (policy_id, env_id, turn)
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session; `ending` is what its client was told at the end, None while it runs."""

    env_id: str
    request: dict[str, Any]
    prompt_hash: str
    started_at: float
    ending: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said at one turn: a completion as plain JSON, and when (seconds since 1970)."""

    turn: int
    completion: dict[str, Any]
    said_at: float


class SessionTable:
    """An open file of sessions; safe to use from many threads, and beside other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.me = identity_of(os.getpid())
        self._guard = threading.RLock()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.touch(mode=0o600, exist_ok=True)  # an endpoint's address may carry a secret
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"session database {path} cannot be opened: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        with self._guard:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- sessions --------------------------------------------------------------------------------

    def open_session(
        self, env_id: str, request: Mapping[str, Any], prompt_hash: str, *, most: int
    ) -> SessionRow | None:
        """Keep a new session, or None when `most` are open already. Held by nobody."""
        with self._transaction() as execute:
            if execute("SELECT count(*) FROM sessions WHERE ending IS NULL").fetchone()[0] >= most:
                return None
            now = time.time()
            execute(
                "INSERT INTO sessions (env_id, request, prompt_hash, started_at, used, owner) VALUES (?,?,?,?,?,?)",
                (env_id, json.dumps(request), prompt_hash, now, time.monotonic(), self.me),
            )
        return SessionRow(env_id, dict(request), prompt_hash, now, None)

    def session(self, env_id: str) -> SessionRow | None:
        """The session as it stands, or None for an id that is unknown or long over."""
        with self._transaction() as execute:
            return _session(execute("SELECT * FROM sessions WHERE env_id = ?", (env_id,)).fetchone())

    def hold(self, env_id: str) -> str | None:
        """Take hold of the session and give the token that lets go of it; None while another request holds it.

        Holding counts as using it. A session that is unknown can be held: nothing comes of it.
        """
        token = f"{self.me}:{uuid.uuid4().hex}"
        with self._transaction() as execute:
            row = execute("SELECT held_by FROM sessions WHERE env_id = ?", (env_id,)).fetchone()
            if row is not None and row["held_by"] and is_running(row["held_by"].rpartition(":")[0]):
                return None
            execute(
                "UPDATE sessions SET held_by = ?, owner = ?, used = ? WHERE env_id = ?",
                (token, self.me, time.monotonic(), env_id),
            )
        return token

    def touch(self, env_id: str) -> None:
        """Count as using the session, without holding it."""
        with self._transaction() as execute:
            execute("UPDATE sessions SET used = ? WHERE env_id = ? AND ending IS NULL", (time.monotonic(), env_id))

    def release(self, env_id: str, token: str) -> None:
        """Let go of the session."""
        with self._transaction() as execute:
            execute("UPDATE sessions SET held_by = NULL WHERE env_id = ? AND held_by = ?", (env_id, token))

    def answers(self, env_id: str, after: int = 0) -> list[Answer]:
        """What was said in the session at the turns beyond `after`, in order."""
        with self._transaction() as execute:
            rows = execute("SELECT * FROM answers WHERE env_id = ? AND turn > ? ORDER BY turn", (env_id, after))
            return [Answer(row["turn"], json.loads(row["completion"]), row["said_at"]) for row in rows.fetchall()]

    def add_answer(self, env_id: str, answer: Answer, request: tuple[str, str] | None = None) -> None:
        """Keep what was said at one turn, and its request's id and content, if it has one.

        Raises StoreError when that turn, or that id, has an answer.
        """
        with self._transaction() as execute:
            said = json.dumps(answer.completion)
            execute("INSERT INTO answers VALUES (?, ?, ?, ?)", (env_id, answer.turn, said, answer.said_at))
            if request is not None:
                execute("INSERT INTO step_requests VALUES (?, ?, ?, ?)", (env_id, request[0], answer.turn, request[1]))

    def step_request(self, env_id: str, request_id: str) -> tuple[int, str] | None:
        """The turn that a request with this id made, and its content; None when there was none."""
        with self._transaction() as execute:
            sql = "SELECT turn, said FROM step_requests WHERE env_id = ? AND request_id = ?"
            row = execute(sql, (env_id, request_id)).fetchone()
        return None if row is None else (row["turn"], row["said"])

    def end(self, env_id: str, ending: Mapping[str, Any]) -> None:
        """The session's episode is stored; what its client is told of it is kept for a while."""
        with self._transaction() as execute:
            execute(
                "UPDATE sessions SET ending = ?, used = ? WHERE env_id = ?",
                (json.dumps(ending), time.monotonic(), env_id),
            )

    def idle(self, ttl_s: float) -> list[str]:
        """The open sessions that nobody has used for `ttl_s` seconds, or not since the machine started."""
        with self._transaction() as execute:
            now = time.monotonic()
            sql = "SELECT env_id FROM sessions WHERE ending IS NULL AND (used > ? OR used < ?)"
            return [row["env_id"] for row in execute(sql, (now, now - ttl_s)).fetchall()]

    def open_ids(self) -> set[str]:
        """The ids of all open sessions."""
        with self._transaction() as execute:
            return {row["env_id"] for row in execute("SELECT env_id FROM sessions WHERE ending IS NULL").fetchall()}

    def owned(self) -> list[str]:
        """The open sessions that this process served last, or a process that is no more."""
        with self._transaction() as execute:
            rows = execute("SELECT env_id, owner FROM sessions WHERE ending IS NULL").fetchall()
        return [row["env_id"] for row in rows if row["owner"] == self.me or not is_running(row["owner"])]

    def forget(self, ttl_s: float) -> None:
        """Remove what was over, and the policies that were not used, for `ttl_s` seconds."""
        with self._transaction() as execute:
            now = time.monotonic()
            old = (now, now - ttl_s)
            execute("DELETE FROM sessions WHERE ending IS NOT NULL AND (used > ? OR used < ?)", old)
            execute("DELETE FROM policies WHERE used > ? OR used < ?", old)

    # -- policies --------------------------------------------------------------------------------

    def open_policy(self, policy_id: str, policy: Mapping[str, Any], bound_env_id: str | None, *, most: int) -> bool:
        """Keep a policy; False when `most` are kept already."""
        with self._transaction() as execute:
            if execute("SELECT count(*) FROM policies").fetchone()[0] >= most:
                return False
            execute(
                "INSERT INTO policies VALUES (?, ?, ?, ?)",
                (policy_id, json.dumps(policy), bound_env_id, time.monotonic()),
            )
        return True

    def policy(self, policy_id: str) -> tuple[dict[str, Any], str | None] | None:
        """A policy's settings and the session it is bound to, or None when it is unknown; counts as using it."""
        with self._transaction() as execute:
            execute("UPDATE policies SET used = ? WHERE policy_id = ?", (time.monotonic(), policy_id))
            row = execute("SELECT * FROM policies WHERE policy_id = ?", (policy_id,)).fetchone()
        return None if row is None else (json.loads(row["policy"]), row["bound_env_id"])

    def decided(self, policy_id: str, env_id: str, turn: int) -> dict[str, Any] | None:
        """What the policy decided there before, as a completion's JSON."""
        with self._transaction() as execute:
            sql = "SELECT completion FROM decided WHERE policy_id = ? AND env_id = ? AND turn = ?"
            row = execute(sql, (policy_id, env_id, turn)).fetchone()
        return None if row is None else json.loads(row["completion"])

    def keep_decided(self, policy_id: str, env_id: str, turn: int, completion: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a decision, unless there is one: the first counts, and is given back."""
        with self._transaction() as execute:
            said = (policy_id, env_id, turn, json.dumps(completion))
            execute("INSERT OR IGNORE INTO decided VALUES (?, ?, ?, ?)", said)
        kept = self.decided(policy_id, env_id, turn)
        return dict(completion) if kept is None else kept

    # -- inside ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Write-ahead log and tables. Several workers start at once."""
        use_write_ahead_log(self._connection)
        begin_writing(self._connection)
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._connection.execute(statement)
        self._connection.execute("COMMIT")

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A write transaction that is always ended; yields the connection's `execute`. Raises StoreError."""
        with self._guard:
            try:
                begin_writing(self._connection)
                try:
                    yield self._connection.execute
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(f"session database {self.path}: {error}") from error


def _session(row: sqlite3.Row | None) -> SessionRow | None:
    if row is None:
        return None
    ending = json.loads(row["ending"]) if row["ending"] else None
    return SessionRow(row["env_id"], json.loads(row["request"]), row["prompt_hash"], row["started_at"], ending)
