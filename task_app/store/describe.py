"""What is in one trace database: tables and columns in words, rows, migrations, size.

Reads; changes a file only when asked to bring an older one up to date.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task_app.core.errors import StoreError
from task_app.store.catalogue import CATALOGUE
from task_app.store.database import explain, open_database

__all__ = ["DatabaseFacts", "RelationFacts", "describe_database"]


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """A table or view: rows (None for views, which would have to be computed), columns as (name, unit, meaning)."""

    name: str
    kind: str
    meaning: str
    rows: int | None
    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The whole file. `migrations` as (name, when); `bytes_per_decision` is None without decisions."""

    path: str
    size_bytes: int
    bytes_per_decision: float | None
    upgraded: bool
    migrations: tuple[tuple[str, str], ...]
    relations: tuple[RelationFacts, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)

    def heading(self) -> str:
        """One line: the file, its size, its migrations."""
        each = f" · {self.bytes_per_decision:.0f} bytes per decision" if self.bytes_per_decision is not None else ""
        done = "brought up to date · " if self.upgraded else ""
        names = ", ".join(name for name, _ in self.migrations)
        return f"{self.path} · {self.size_bytes:,} bytes{each} · {done}migrations {names}"


def describe_database(path: Path, *, upgrade: bool = False) -> DatabaseFacts:
    """The facts of one file; with `upgrade`, an older one is brought up to date first.

    Raises StoreError for a file that is no trace database, is of a newer version, or is of an older one that is
    not to be upgraded.
    """
    upgraded = upgrade and _bring_up_to_date(path)
    with closing(open_database(path, create=False, read_only=True)) as connection:
        try:
            connection.execute("BEGIN")
            migrations = connection.execute(
                "SELECT name, applied_at FROM _sqlite_migrations WHERE migration_set = 'task_app' ORDER BY id"
            ).fetchall()
            relations = tuple(_facts(connection, name) for name in CATALOGUE)
        except sqlite3.Error as error:
            raise StoreError(f"trace database {path} cannot be read: {explain(error, path)}") from error
    size = path.stat().st_size
    decisions = next(relation.rows for relation in relations if relation.name == "decisions")
    return DatabaseFacts(
        path=str(path),
        size_bytes=size,
        bytes_per_decision=size / decisions if decisions else None,
        upgraded=upgraded,
        migrations=tuple((row["name"], row["applied_at"]) for row in migrations),
        relations=relations,
    )


def _bring_up_to_date(path: Path) -> bool:
    """Whether there was anything to do."""
    with suppress(StoreError):
        open_database(path, create=False, read_only=True).close()
        return False
    open_database(path, create=False, read_only=False).close()
    return True


def _facts(connection: sqlite3.Connection, name: str) -> RelationFacts:
    told = CATALOGUE[name]
    rows = connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] if told.kind == "table" else None
    columns = tuple((column, about.unit, about.meaning) for column, about in told.columns.items())
    return RelationFacts(name, told.kind, told.meaning, rows, columns)
