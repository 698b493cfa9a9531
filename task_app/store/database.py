"""Opening a trace database: WAL, foreign keys, a long busy time-out, and refusal of any other file."""

from __future__ import annotations

import os
import shlex
import sqlite3
import time
from pathlib import Path

from task_app.core.errors import StoreError
from task_app.store.schema import APPLICATION_ID, STATEMENTS

__all__ = ["BUSY_TIMEOUT_S", "begin_writing", "explain", "open_database", "read_only_uri", "use_write_ahead_log"]

BUSY_TIMEOUT_S = 30.0


def open_database(path: Path, *, create: bool, read_only: bool) -> sqlite3.Connection:
    """Connect to `path` and bring its schema up to date (unless read-only).

    Raises StoreError when the file is missing (and may not be created), is no SQLite database, is
    another program's, was written by a newer version (or, read-only, by an older one), may not be written,
    or stays locked for `BUSY_TIMEOUT_S`.
    """
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise StoreError(f"trace database {path} does not exist")
        if path.is_dir():
            raise StoreError(f"trace database {path} cannot be opened: it is a folder")
        if not read_only and path.exists() and not os.access(path, os.W_OK):
            raise StoreError(f"trace database {path} cannot be opened for writing: the file is read-only")
        connection = _connect(path, read_only)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"trace database {path} cannot be opened: {explain(error)}") from error
    try:
        _check_identity(connection, path, may_be_empty=create)
        if not read_only:
            _use_as_traces_are(connection)
            _migrate(connection)
        _check_version(connection, path, read_only)
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"trace database {path} cannot be read: {explain(error, path)}") from error
    except StoreError:
        connection.close()
        raise
    return connection


def begin_writing(connection: sqlite3.Connection, timeout_s: float = BUSY_TIMEOUT_S) -> None:
    """Begin a write transaction, waiting while another process writes. Raises sqlite3.Error after the time.

    SQLite's own wait sleeps longer with each look, up to a tenth of a second: of two processes that write often, one
    then stands still again and again. This one looks every millisecond.
    """
    deadline = time.monotonic() + timeout_s
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.001)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * timeout_s)}")


def read_only_uri(path: Path) -> str:
    """The address SQLite reads the file at.

    A file with write-ahead logging needs two files beside it, which in a folder that may not be written
    cannot be made. Without a log there is nothing in them, and the file is read alone (`immutable`).
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    alone = not os.access(path.absolute().parent, os.W_OK) and not _log_size(path)
    return f"{uri}&immutable=1" if alone else uri


def _log_size(path: Path) -> int:
    log = path.with_name(f"{path.name}-wal")
    return log.stat().st_size if log.exists() else 0


def explain(error: Exception, path: Path | None = None) -> str:
    """The error in words, with what it means where SQLite's own do not say."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return f"{error} (another process kept it locked for {BUSY_TIMEOUT_S:g} s)"
    if code == sqlite3.SQLITE_FULL:
        return f"{error} (what was stored before is kept; make room and run the same command again)"
    if code == sqlite3.SQLITE_CANTOPEN and path is not None and _log_size(path):
        return (
            f"{error} (episodes are waiting in {path.name}-wal, and the folder cannot be written; "
            "copy both files to a folder that can)"
        )
    return str(error)


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        read_only_uri(path) if read_only else f"{path.absolute().as_uri()}?mode=rwc",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, synced at checkpoints. Raises sqlite3.Error after `BUSY_TIMEOUT_S`.

    Unlike elsewhere, SQLite does not wait for a lock here.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = NORMAL")


def _use_as_traces_are(connection: sqlite3.Connection) -> None:
    use_write_ahead_log(connection)
    # An episode touches dozens of pages all over the index of texts: a checkpoint every 32 MB of log instead of every
    # 4 writes each of them once for many episodes. A larger page cache than SQLite's own makes nothing faster.
    connection.execute("PRAGMA wal_autocheckpoint = 8000")


def _check_identity(connection: sqlite3.Connection, path: Path, *, may_be_empty: bool) -> None:
    # Tables before identity: both come with one commit, which another process may make in between.
    empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    identity = connection.execute("PRAGMA application_id").fetchone()[0]
    new = empty and may_be_empty and identity == 0
    if identity != APPLICATION_ID and not new:
        raise StoreError(f"{path} is not a trace database of this program" + (" (it is empty)" if empty else ""))


def _applied(connection: sqlite3.Connection) -> set[str]:
    """Names of the migrations the file has."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = '_sqlite_migrations'").fetchone()
    if known is None:
        return set()
    rows = connection.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = 'task_app'")
    return {row[0] for row in rows}


def _migrate(connection: sqlite3.Connection) -> None:
    """Apply pending migrations while holding the write lock, so that two openers cannot race."""
    if STATEMENTS.keys() <= _applied(connection):
        return
    from task_app.store.migrations import apply_migrations  # what it imports is slow, and seldom needed

    connection.execute("BEGIN IMMEDIATE")
    try:
        apply_migrations(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself where the disk is full
            connection.execute("ROLLBACK")
        raise


def _check_version(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    applied = _applied(connection)
    newer = sorted(applied - STATEMENTS.keys())
    if newer:
        raise StoreError(f"{path} was written by a newer version (it has {', '.join(newer)})")
    if read_only and STATEMENTS.keys() - applied:
        command = f"task-app traces schema --db {shlex.quote(str(path))} --upgrade"
        raise StoreError(f"{path} was written by an older version; bring it up to date with: {command}")
