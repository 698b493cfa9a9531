"""Several trace databases into a new one: episodes, runs, advantages, marks. Never writes to its inputs.

Row ids are shifted, not looked up: an input's row `id` becomes `id + offset` with the offset past every id
that is taken, so that a whole table is copied by one statement in the order of its key. Only texts and episodes
that the output already holds are mapped one by one. Each input is read in one transaction: what its
writers commit meanwhile is left out, nothing is read by half.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from task_app.core.errors import ConfigError, StoreError
from task_app.store import database
from task_app.store.database import explain, open_database, read_only_uri
from task_app.store.files import made_beside, refuse_existing
from task_app.store.migrations import apply_migrations

__all__ = ["MergeResult", "MergedInput", "merge_databases"]

_INTERNED: Final = {"messages": "message", "tool_sets": "tools", "token_prefixes": "ids"}
"""Tables that hold each text once, by hash, and the column of the text."""

_OF_EPISODE: Final = {
    "decisions": {"prompt": "prompt_of(prompt)", "answer": "messages_of(answer)"},
    "decision_rewards": {},
    "steps": {},
    "events": {},
    "decision_tokens": {"prefix": "token_prefixes_of(prefix)"},
}
"""Tables an episode's facts are in, and how references to texts are copied. `advantages` are no facts of it."""

_NOT_COMPARED: Final = ("id", "superseded")
"""Columns of `episodes` that may differ between two copies of one episode."""


@dataclass(frozen=True, slots=True)
class MergedInput:
    """What came from one database; `known` of its episodes were in an earlier one already, word for word."""

    path: Path
    episodes: int
    decisions: int
    known: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What the merged database holds; `output` is None for a dry run."""

    output: Path | None
    inputs: tuple[MergedInput, ...]
    runs: int
    episodes: int
    decisions: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {
            "output": str(self.output) if self.output else None,
            "inputs": [
                {"path": str(i.path), "episodes": i.episodes, "decisions": i.decisions, "known": i.known}
                for i in self.inputs
            ],
            "runs": self.runs,
            "episodes": self.episodes,
            "decisions": self.decisions,
            "size_bytes": self.size_bytes,
        }


def merge_databases(
    inputs: Sequence[Path], output: Path, *, dry_run: bool = False, keep_first_run: bool = False
) -> MergeResult:
    """Merge into the new file `output`, made beside and renamed when complete; `dry_run` keeps nothing.

    An episode that two inputs hold with equal content is kept once: superseded if either says so, with the
    advantages of both. Raises ConfigError for fewer than two inputs, one given twice, or an output that
    exists or cannot be written; StoreError for an input that cannot be read, an episode id with different
    contents, or a run id with different configs (unless `keep_first_run`).
    """
    _check_names(inputs, output)
    for path in inputs:
        open_database(path, create=False, read_only=True).close()
    if dry_run:
        connection = _connect("")  # SQLite's own temporary file, gone when it is closed
        try:
            return _merge(connection, inputs, None, keep_first_run)
        finally:
            connection.close()
    with made_beside(output, replace=False) as beside:
        connection = _connect(str(beside))
        try:
            result = _merge(connection, inputs, output, keep_first_run)
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as error:
            raise StoreError(f"{output} was not written: {explain(error)}") from error
        finally:
            connection.close()
    return result


def _check_names(inputs: Sequence[Path], output: Path) -> None:
    if len(inputs) < 2:
        raise ConfigError(f"merging needs at least two databases, got {len(inputs)}", field="inputs")
    seen: dict[Path, Path] = {}
    for path in inputs:
        other = seen.setdefault(path.resolve(), path)
        if other is not path:
            raise ConfigError(f"{path} is given twice (as {other} too)", field="inputs")
    refuse_existing(output)


def _connect(name: str) -> sqlite3.Connection:
    """An empty output. It needs no journal: it is thrown away unless it is complete."""
    address = f"{Path(name).absolute().as_uri()}?mode=rwc" if name else ""
    connection = sqlite3.connect(address, uri=True, timeout=database.BUSY_TIMEOUT_S, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA foreign_keys = ON")  # a reference to nothing is an error, not copied
    connection.execute("PRAGMA cache_size = -131072")  # KiB; the index of text hashes is filled in random order
    apply_migrations(connection)
    return connection


def _merge(
    connection: sqlite3.Connection, inputs: Sequence[Path], output: Path | None, keep_first_run: bool
) -> MergeResult:
    merge = _Merge(connection, keep_first_run)
    merged = tuple(merge.add(path) for path in inputs)
    pages, page_size = (merge.number(f"PRAGMA main.{name}") for name in ("page_count", "page_size"))
    counts = {table: merge.number(f"SELECT count(*) FROM main.{table}") for table in ("runs", "episodes", "decisions")}
    return MergeResult(output, merged, **counts, size_bytes=pages * page_size)


@dataclass(slots=True)
class _Ids:
    """Where the ids of one table of an input go: shifted, except those of texts the output holds already."""

    table: str
    present: Container[int]
    offset: int
    shared: dict[int, int]

    def of(self, key: int) -> int:
        """The output's id. Raises LookupError for an id the input itself does not have."""
        if key not in self.present:
            raise LookupError(f"a row refers to {self.table} {key}, which is not there")
        return self.shared.get(key, key + self.offset)


@dataclass(slots=True)
class _Merge:
    """The output being filled."""

    connection: sqlite3.Connection
    keep_first_run: bool
    origins: list[tuple[int, Path]] = field(default_factory=list)
    """From which episode id on the rows came from which input, rising."""
    runs: dict[str, Path] = field(default_factory=dict)
    broken: str = ""

    def add(self, path: Path) -> MergedInput:
        """Copy one input. Raises StoreError naming it."""
        connection = self.connection
        try:
            connection.execute("ATTACH ? AS source", (read_only_uri(path),))
            connection.execute("BEGIN")  # the first read fixes what is seen of the input
            added = self._copy(path)
            connection.execute("COMMIT")
            connection.execute("DETACH source")
        except (sqlite3.Error, OverflowError) as error:
            raise StoreError(f"{path} cannot be merged: {self.broken or explain(error)}") from error
        return added

    def number(self, sql: str, *parameters: Any) -> int:
        """The one number a statement gives."""
        return int(self.connection.execute(sql, parameters).fetchone()[0])

    def _copy(self, path: Path) -> MergedInput:
        episodes, decisions = (self.number(f"SELECT count(*) FROM source.{t}") for t in ("episodes", "decisions"))
        self._copy_runs(path)
        for table, text in _INTERNED.items():
            self._register(self._copy_texts(path, table, text))
        offset = self.number("SELECT coalesce(max(id), 0) FROM main.episodes")
        self._temporary(
            "twice",
            """SELECT s.id AS source, m.id AS target, s.superseded != m.superseded AS mark_differs
               FROM source.episodes AS s JOIN main.episodes AS m USING (episode_id)""",
        )
        known = self.number("SELECT count(*) FROM twice")
        if known:
            self._check_copies(path)
        self._copy_episodes(offset)
        self._copy_advantages(path, offset)
        self.origins.append((offset, path))
        return MergedInput(path, episodes, decisions, known)

    def _temporary(self, name: str, select: str) -> None:
        """A temporary table whose first column is its key."""
        self.connection.execute(f"DROP TABLE IF EXISTS temp.{name}")
        self.connection.execute(f"CREATE TEMP TABLE {name} AS {select}")
        self.connection.execute(f"CREATE UNIQUE INDEX temp.{name}_by_source ON {name} (source)")

    def _copy_runs(self, path: Path) -> None:
        clash = self.connection.execute(
            """SELECT run_id FROM source.runs AS s JOIN main.runs AS m USING (run_id)
               WHERE s.config != m.config OR s.command != m.command ORDER BY run_id"""
        ).fetchone()
        if clash and not self.keep_first_run:
            raise StoreError(
                f"run {clash[0]!r} has another config in {path} than in {self.runs[clash[0]]}; "
                "--keep-first-run keeps the first one's"
            )
        for (run_id,) in self.connection.execute("SELECT run_id FROM source.runs").fetchall():
            self.runs.setdefault(run_id, path)
        self.connection.execute("INSERT OR IGNORE INTO main.runs SELECT * FROM source.runs")

    def _copy_texts(self, path: Path, table: str, text: str) -> _Ids:
        """Copy the texts the output does not hold yet."""
        offset = self.number(f"SELECT coalesce(max(id), 0) FROM main.{table}")
        self._temporary(
            "shared",
            f"""SELECT s.id AS source, m.id AS target, s.{text} IS NOT m.{text} AS differs
                FROM source.{table} AS s JOIN main.{table} AS m USING (hash)""",
        )
        if self.number("SELECT count(*) FROM shared WHERE differs"):
            raise StoreError(f"{path} cannot be merged: a text in {table} does not have the hash it is filed under")
        columns = ", ".join(name for name in self._columns(table) if name != "id")
        self.connection.execute(
            f"""INSERT INTO main.{table} (id, {columns}) SELECT id + ?, {columns} FROM source.{table}
                WHERE id NOT IN (SELECT source FROM shared) ORDER BY id""",
            (offset,),
        )
        shared = dict(self.connection.execute("SELECT source, target FROM shared").fetchall())
        return _Ids(table, self._ids_present(table), offset, shared)

    def _ids_present(self, table: str) -> Container[int]:
        """The input's ids of a table; without a gap, which is the rule, no list of them is made."""
        count, last = self.connection.execute(f"SELECT count(*), max(id) FROM source.{table}").fetchone()
        first = self.connection.execute(f"SELECT min(id) FROM source.{table}").fetchone()[0]
        if count == 0 or (first == 1 and last == count):
            return range(1, count + 1)
        return {key for (key,) in self.connection.execute(f"SELECT id FROM source.{table}")}

    def _register(self, ids: _Ids) -> None:
        """Make the mapping a function of SQL: `<table>_of(id)`, and `prompt_of(list)` for messages."""

        def guarded(map_one: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def call(value: Any) -> Any:
                try:
                    return map_one(value)
                except (LookupError, ValueError, TypeError) as error:
                    self.broken = str(error)
                    raise

            return call

        def prompt_of(prompt: str) -> str:
            return f"[{','.join(str(ids.of(key)) for key in json.loads(prompt))}]"

        self.connection.create_function(f"{ids.table}_of", 1, guarded(ids.of))
        if ids.table == "messages":
            self.connection.create_function("prompt_of", 1, guarded(prompt_of))

    def _check_copies(self, path: Path) -> None:
        """Raise StoreError unless every episode that is there already is the same one."""
        columns = [name for name in self._columns("episodes") if name not in _NOT_COMPARED]
        values = [name if name != "tool_set" else "tool_sets_of(tool_set)" for name in columns]
        self._compare(path, "episodes", "id", columns, values)
        for table, mapped in _OF_EPISODE.items():
            columns = [name for name in self._columns(table) if name != "episode"]
            self._compare(path, table, "episode", columns, [mapped.get(name, name) for name in columns])
        clash = self.connection.execute(
            """SELECT m.episode FROM source.advantages AS s JOIN twice ON twice.source = s.episode
               JOIN main.advantages AS m ON m.episode = twice.target AND m.turn = s.turn
                    AND m.run_id = s.run_id AND m.training_update = s.training_update
               WHERE m.advantage != s.advantage AND NOT mark_differs LIMIT 1"""
        ).fetchone()
        if clash:
            raise self._differs(path, clash[0], "advantages")

    def _compare(self, path: Path, table: str, key: str, columns: Sequence[str], values: Sequence[str]) -> None:
        theirs = f"""SELECT twice.target, {", ".join(values)} FROM source.{table} AS s
                     JOIN twice ON twice.source = s.{key}"""
        ours = f"SELECT {key}, {', '.join(columns)} FROM main.{table} WHERE {key} IN (SELECT target FROM twice)"
        for first, second in ((theirs, ours), (ours, theirs)):
            found = self.connection.execute(f"{first} EXCEPT {second} LIMIT 1").fetchone()
            if found:
                raise self._differs(path, found[0], table)

    def _differs(self, path: Path, key: int, table: str) -> StoreError:
        sql = "SELECT episode_id FROM main.episodes WHERE id = ?"
        episode_id = self.connection.execute(sql, (key,)).fetchone()[0]
        first = next(origin for offset, origin in reversed(self.origins) if key > offset)
        return StoreError(f"episode {episode_id!r} is another one in {path} than in {first} (they differ in {table})")

    def _copy_episodes(self, offset: int) -> None:
        new = "NOT IN (SELECT source FROM twice)"
        columns = [name for name in self._columns("episodes") if name != "id"]
        values = [name if name != "tool_set" else "tool_sets_of(tool_set)" for name in columns]
        self.connection.execute(
            f"""INSERT INTO main.episodes (id, {", ".join(columns)})
                SELECT id + ?, {", ".join(values)} FROM source.episodes WHERE id {new} ORDER BY id""",
            (offset,),
        )
        for table, mapped in _OF_EPISODE.items():
            columns = [name for name in self._columns(table) if name != "episode"]
            values = [mapped.get(name, name) for name in columns]
            self.connection.execute(
                f"""INSERT INTO main.{table} (episode, {", ".join(columns)})
                    SELECT episode + ?, {", ".join(values)} FROM source.{table} WHERE episode {new}""",
                (offset,),
            )

    def _copy_advantages(self, path: Path, offset: int) -> None:
        """Advantages, and the mark of episodes superseded in one copy: what training said of those is gone."""
        columns = ", ".join(name for name in self._columns("advantages") if name != "episode")
        self.connection.execute(
            f"""INSERT OR IGNORE INTO main.advantages (episode, {columns})
                SELECT coalesce((SELECT target FROM twice WHERE source = episode), episode + ?), {columns}
                FROM source.advantages""",
            (offset,),
        )
        marked = "(SELECT target FROM twice WHERE mark_differs)"
        self.connection.execute(f"UPDATE main.episodes SET superseded = 1 WHERE id IN {marked}")
        self.connection.execute(
            f"""DELETE FROM main.advantages WHERE episode IN {marked}
                AND run_id = (SELECT run_id FROM main.episodes WHERE id = episode)"""
        )

    def _columns(self, table: str) -> list[str]:
        return [row[1] for row in self.connection.execute(f"PRAGMA main.table_info({table})")]
