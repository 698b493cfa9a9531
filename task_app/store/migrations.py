"""The schema's migrations for sqlite-utils, which keeps account of them in the file.

Imported only when a file has to be made or brought up to date: sqlite-utils loads pandas where that is installed,
which takes longer than most commands.
"""

from __future__ import annotations

import sqlite3

from sqlite_utils import Database, Migrations

from task_app.store.schema import STATEMENTS

__all__ = ["apply_migrations"]


def apply_migrations(connection: sqlite3.Connection, *, stop_before: str | None = None) -> None:
    """Apply what the file lacks, within the caller's transaction; with `stop_before`, only what comes earlier."""
    migrations = Migrations("task_app")
    for name in STATEMENTS:
        _register(migrations, name)
    migrations.apply(Database(connection), stop_before=stop_before)


def _register(migrations: Migrations, name: str) -> None:
    @migrations(name=name)
    def run(db: Database) -> None:
        for statement in STATEMENTS[name]:
            db.execute(statement)
