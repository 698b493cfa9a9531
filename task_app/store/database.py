"""Opening a trace database: WAL, foreign keys, a long busy time-out, and refusal of any other file."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from sqlite_utils import Database

from task_app.core.errors import StoreError
from task_app.store.schema import APPLICATION_ID, MIGRATIONS

__all__ = ["BUSY_TIMEOUT_S", "open_database"]

BUSY_TIMEOUT_S = 30.0


def open_database(path: Path, *, create: bool, read_only: bool) -> Database:
    """Connect to `path` and bring its schema up to date (unless read-only).

    Raises StoreError when the file is missing (and may not be created), is no SQLite database, is
    another program's, was written by a newer version, or stays locked for `BUSY_TIMEOUT_S`.
    """
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise StoreError(f"trace database {path} does not exist")
        connection = _connect(path, read_only)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"trace database {path} cannot be opened: {error}") from error
    db = Database(connection)
    try:
        _check_identity(db, path, may_be_empty=create)
        if not read_only:
            _use_write_ahead_log(connection)
            _migrate(db, path)
        _check_version(db, path, read_only)
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"trace database {path} cannot be read: {error}") from error
    except StoreError:
        connection.close()
        raise
    return db


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging; unlike elsewhere, SQLite does not wait for a lock here."""
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


def _check_identity(db: Database, path: Path, *, may_be_empty: bool) -> None:
    # Tables before identity: both come with one commit, which another process may make in between.
    empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    identity = db.execute("PRAGMA application_id").fetchone()[0]
    new = empty and may_be_empty and identity == 0
    if identity != APPLICATION_ID and not new:
        raise StoreError(f"{path} is not a trace database of this program" + (" (it is empty)" if empty else ""))


def _migrate(db: Database, path: Path) -> None:
    """Apply pending migrations while holding the write lock, so that two openers cannot race."""
    if not MIGRATIONS.pending(db):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        MIGRATIONS.apply(db)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _check_version(db: Database, path: Path, read_only: bool) -> None:
    applied = {migration.name for migration in MIGRATIONS.applied(db)}
    known = {migration.name for migration in MIGRATIONS._migrations}
    if applied - known:
        raise StoreError(f"{path} was written by a newer version (it has {', '.join(sorted(applied - known))})")
    if read_only and known - applied:
        raise StoreError(f"{path} was written by an older version; open it once for writing to bring it up to date")
