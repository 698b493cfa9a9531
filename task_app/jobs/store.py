"""Jobs, files and events in one SQLite file. Every change is one transaction, on disk when the call returns.

A change of status and the event that tells of it are written together. It starts no process and makes no decision.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from task_app.core.errors import StoreError
from task_app.jobs.rows import OVER, Event, EventName, Job, JobKind, JobStatus, TrainingFile

__all__ = ["JobStore"]

_VERSION = 1
_TABLES = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL, started_at REAL, finished_at REAL, attempts INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0, cancelled_at REAL, request TEXT NOT NULL, command TEXT NOT NULL,
    ignored TEXT NOT NULL, body_hash TEXT NOT NULL, idempotency TEXT UNIQUE, place INTEGER NOT NULL);
CREATE INDEX jobs_by_status ON jobs (status, place);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL REFERENCES jobs (id), event TEXT NOT NULL, name TEXT,
    data TEXT NOT NULL, at REAL NOT NULL, UNIQUE (job, name));
CREATE INDEX events_of_job ON events (job, id);
CREATE TABLE files (
    id TEXT PRIMARY KEY, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, lines INTEGER NOT NULL,
    prompt_hashes TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, created_at REAL NOT NULL);
"""


class JobStore:
    """One connection for all threads of the process. Raises StoreError where the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.RLock()
        try:
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._prepare()
        except sqlite3.Error as error:
            raise StoreError(f"the jobs' database {path} cannot be opened: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # -- jobs ------------------------------------------------------------------------------------

    def add_job(self, job: Job, key: str | None, *, max_queued: int) -> Job | None:
        """Keep a new job; where its idempotency key is taken, the job that has it, and None where the queue is full."""
        with self._writing() as db:
            if key and (found := self.job_of_key(key)):
                return found
            waiting = db.execute("SELECT count(*) FROM jobs WHERE status IN ('created', 'queued')").fetchone()[0]
            if waiting >= max_queued:
                return None
            values = asdict(job) | {name: json.dumps(getattr(job, name)) for name in ("request", "command", "ignored")}
            place = db.execute("SELECT coalesce(max(place), 0) + 1 FROM jobs").fetchone()[0]
            values |= {"idempotency": key, "place": place}
            marks = ", ".join(f":{name}" for name in values)
            db.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", values)
            self._tell(job.id, job.status, "")
        return job

    def job(self, job_id: str, kind: JobKind | None = None) -> Job | None:
        """The job of this id; None where there is none, or one of another kind."""
        return next(self._jobs("id = ? AND kind = coalesce(?, kind)", (job_id, kind)), None)

    def job_of_key(self, key: str) -> Job | None:
        """The job that was made with an idempotency key."""
        return next(self._jobs("idempotency = ?", (key,)), None)

    def jobs(self, kind: JobKind | None = None, status: str | None = None, limit: int | None = None) -> list[Job]:
        """Jobs in the order they came to the queue; with `limit`, the last ones, newest first."""
        where = "kind = coalesce(?, kind) AND status = coalesce(?, status)"
        if limit is None:
            return list(self._jobs(f"{where} ORDER BY place", (kind, status)))
        return list(self._jobs(f"{where} ORDER BY created_at DESC, place DESC LIMIT ?", (kind, status, limit)))

    def first_queued(self, most: int) -> list[Job]:
        """The next jobs of the queue, in their order."""
        return list(self._jobs("status = 'queued' ORDER BY place LIMIT ?", (most,))) if most > 0 else []

    def count(self, status: JobStatus) -> int:
        """How many jobs there are of a status; none of them is read."""
        return int(self._rows("SELECT count(*) FROM jobs WHERE status = ?", (status,))[0][0])

    def ahead_of(self, job: Job) -> int:
        """How many queued jobs come before a queued one."""
        sentence = "SELECT count(*) FROM jobs WHERE status = 'queued' AND place < (SELECT place FROM jobs WHERE id = ?)"
        return int(self._rows(sentence, (job.id,))[0][0])

    def move(
        self, job_id: str, before: Iterable[JobStatus], status: JobStatus, reason: str = "", **values: Any
    ) -> bool:
        """Change a job's status, unless it is none of `before` by now; whether it was changed.

        A job that leaves `created` goes to the end of the queue. `values` are further columns.
        """
        allowed = tuple(before)
        if status in OVER:
            values["finished_at"] = time.time()
        with self._writing() as db:
            if allowed == ("created",):
                values["place"] = db.execute("SELECT max(place) + 1 FROM jobs").fetchone()[0]
            changes = {"status": status, "reason": reason, **values}
            settings = ", ".join(f"{name} = ?" for name in changes)
            marks = ", ".join("?" for _ in allowed)
            sentence = f"UPDATE jobs SET {settings} WHERE id = ? AND status IN ({marks})"
            changed = db.execute(sentence, (*changes.values(), job_id, *allowed)).rowcount == 1
            if changed:
                self._tell(job_id, status, reason)
        return changed

    def ask_cancel(self, job_id: str) -> None:
        """Note that a running job is to end; the first time counts."""
        with self._writing() as db:
            db.execute(
                "UPDATE jobs SET cancelled_at = coalesce(cancelled_at, ?) WHERE id = ? AND status = 'running'",
                (time.time(), job_id),
            )

    # -- events ----------------------------------------------------------------------------------

    def add_events(self, job_id: str, event: EventName, named: Mapping[str, Mapping[str, Any]]) -> int:
        """Add what is new of `named` (a name unique for the job → data); how many were."""
        with self._writing() as db:
            before = db.total_changes
            db.executemany(
                "INSERT OR IGNORE INTO events (job, event, name, data, at) VALUES (?, ?, ?, ?, ?)",
                [(job_id, event, name, json.dumps(data), time.time()) for name, data in named.items()],
            )
            new = db.total_changes - before
            if new and event == "metrics":
                db.execute("UPDATE jobs SET deaths = 0 WHERE id = ?", (job_id,))
        return new

    def events(self, job_id: str, after: int = 0, limit: int = 500) -> list[Event]:
        """The next events of a job, in order."""
        sentence = "SELECT id, event, data, at FROM events WHERE job = ? AND id > ? ORDER BY id LIMIT ?"
        rows = self._rows(sentence, (job_id, after, limit))
        return [Event(row["id"], row["event"], json.loads(row["data"]), row["at"]) for row in rows]

    def last_event(self, job_id: str, event: EventName) -> Event | None:
        """The newest event of a sort."""
        sentence = "SELECT id, event, data, at FROM events WHERE job = ? AND event = ? ORDER BY id DESC LIMIT 1"
        rows = self._rows(sentence, (job_id, event))
        return Event(rows[0]["id"], event, json.loads(rows[0]["data"]), rows[0]["at"]) if rows else None

    # -- files -----------------------------------------------------------------------------------

    def add_file(self, file: TrainingFile) -> bool:
        """Keep a file's row; whether it was not there."""
        values = asdict(file) | {"prompt_hashes": json.dumps(file.prompt_hashes)}
        marks = ", ".join(f":{name}" for name in values)
        with self._writing() as db:
            sentence = f"INSERT OR IGNORE INTO files ({', '.join(values)}) VALUES ({marks})"
            return db.execute(sentence, values).rowcount == 1

    def file(self, file_id: str) -> TrainingFile | None:
        """The file of this id."""
        rows = self._rows("SELECT * FROM files WHERE id = ?", (file_id,))
        return TrainingFile(**dict(rows[0]) | {"prompt_hashes": json.loads(rows[0]["prompt_hashes"])}) if rows else None

    # -- inside ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with self._writing() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                raise StoreError(f"{self._path} is of version {version}; this program knows version {_VERSION}")
            if not version:
                for sentence in filter(str.strip, _TABLES.split(";")):
                    db.execute(sentence)
                db.execute(f"PRAGMA user_version = {_VERSION}")

    def _jobs(self, where: str, values: tuple[Any, ...]) -> Iterator[Job]:
        return map(Job.of, self._rows(f"SELECT * FROM jobs WHERE {where}", values))

    def _tell(self, job_id: str, status: JobStatus, reason: str) -> None:
        data = json.dumps({"status": status, "reason": reason})
        self._db.execute(
            "INSERT INTO events (job, event, data, at) VALUES (?, 'status', ?, ?)", (job_id, data, time.time())
        )

    def _rows(self, sentence: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        with self._lock:
            try:
                return self._db.execute(sentence, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"the jobs' database {self._path} cannot be read: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise StoreError(f"the jobs' database {self._path} cannot be written: {error}") from error
