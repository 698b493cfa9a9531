"""Proving a trace database: every episode is played again and compared with what is stored of it.

The file is opened read-only, and by each worker process for itself; only what failed is kept, so a
database of any size is checked in little memory. Repairs nothing, deletes nothing.
"""

from __future__ import annotations

import difflib
import json
import multiprocessing
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from math import isclose
from pathlib import Path
from typing import Any

from task_app.core.errors import ConfigError, StoreError, TaskAppError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.rollout.verify import KINDS, Kind, Verdict, shown, verify_episode
from task_app.store.damage import DamageCheck
from task_app.store.database import open_database
from task_app.store.reader import read_episode
from task_app.store.totals import totals_of
from task_app.wiring import make_spec

__all__ = ["FailedEpisode", "Report", "verify_database", "verify_episode"]

Advance = Callable[[], None]
Bar = Callable[[int], AbstractContextManager[Advance]]
"""Opens a progress bar of so many episodes; what it yields moves it on by one."""

_CHUNK = 32
"""Episodes a worker takes at a time: long enough to be worth a trip, short enough to share work evenly."""

_ROUNDED = ("environment_return", "latency_s")
"""Totals that are sums of floats; SQLite and Python may round the last digit of a sum differently."""


@dataclass(frozen=True, slots=True)
class FailedEpisode:
    """An episode that is not what its seed and actions make, and the first difference found."""

    episode_id: str
    run_id: str
    verdict: Verdict

    def line(self) -> str:
        """What is wrong with it, in one line."""
        return f"{self.episode_id}  {self.verdict.kind}: {' '.join(self.verdict.sentence.split())}"

    def to_json(self) -> dict[str, Any]:
        """The same as one flat JSON object."""
        return {"episode_id": self.episode_id, "run_id": self.run_id, **asdict(self.verdict)}


@dataclass(frozen=True, slots=True)
class Report:
    """What was found: episodes per kind of verdict, those that failed, and how much was proved.

    `decisions` and `steps` count those of episodes that passed.
    """

    counts: Counter[Kind] = field(default_factory=Counter)
    failed: list[FailedEpisode] = field(default_factory=list)
    decisions: int = 0
    steps: int = 0

    @property
    def episodes(self) -> int:
        """How many episodes were checked."""
        return self.counts.total()

    @property
    def passed(self) -> bool:
        """Whether every episode passed."""
        return not self.failed

    def table(self) -> list[tuple[str, int, str]]:
        """(verdict, episodes, what it means), in fixed order, of every kind that occurred."""
        return [(kind, self.counts[kind], meaning) for kind, meaning in KINDS.items() if self.counts[kind]]

    def conclusion(self) -> str:
        """The last word: what is proved, or how many episodes are not what they say."""
        if self.failed:
            return f"{len(self.failed)} of {self.episodes} episodes failed"
        return f"all {self.episodes} episodes replay exactly: {self.decisions} decisions, {self.steps} steps"

    def to_json(self) -> dict[str, Any]:
        """The whole report as plain JSON values."""
        return {
            "episodes": self.episodes,
            "passed": self.passed,
            "decisions": self.decisions,
            "steps": self.steps,
            "counts": {kind: self.counts[kind] for kind in KINDS},
            "failed": [failed.to_json() for failed in self.failed],
        }


def verify_database(
    db: Path | str,
    *,
    run_id: str | None = None,
    episode_id: str | None = None,
    workers: int = 1,
    progress: Bar = lambda total: nullcontext(lambda: None),
) -> Report:
    """Check every episode (of one run; or the one whose id is or begins with `episode_id`).

    Superseded episodes are checked only by id. The report is the same whatever the number of `workers`,
    processes that share the work. Raises StoreError for a database that cannot be opened or holds nothing
    to check, ConfigError for `workers` below 1, TaskAppError when a worker process dies.
    """
    path = Path(db)
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}", field="workers")
    with _reading(path) as connection:
        keys = _keys(connection, path, run_id, episode_id)
    counts: Counter[Kind] = Counter()
    failed: list[FailedEpisode] = []
    decisions = steps = 0
    with progress(len(keys)) as advance:
        for part in _parts(path, keys, workers):
            counts += part.counts
            failed += part.failed
            decisions, steps = decisions + part.decisions, steps + part.steps
            for _ in range(part.episodes):
                advance()
    return Report(counts, failed, decisions, steps)


# -- which episodes ------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_database(path, create=False, read_only=True)
    try:
        yield connection
    finally:
        connection.close()


def _keys(connection: sqlite3.Connection, path: Path, run_id: str | None, episode_id: str | None) -> list[int]:
    """Row ids in the order of the store. Raises StoreError when there are none."""
    try:
        if episode_id is not None:
            return [_key_of(connection, path, run_id, episode_id)]
        sql = f"""SELECT id FROM episodes WHERE NOT superseded {"AND run_id = ?" if run_id is not None else ""}
                  ORDER BY run_id, training_update, group_id, member, episode_id"""
        keys = [row[0] for row in connection.execute(sql, () if run_id is None else (run_id,))]
        if not keys:
            raise StoreError(f"no episodes{'' if run_id is None else _of_run(connection, run_id)} in {path}")
        return keys
    except sqlite3.Error as error:
        raise StoreError(f"trace database {path} cannot be read: {error}") from error


def _of_run(connection: sqlite3.Connection, run_id: str) -> str:
    runs = [row[0] for row in connection.execute("SELECT DISTINCT run_id FROM episodes WHERE NOT superseded")]
    near = difflib.get_close_matches(run_id, map(str, runs), n=1)
    return f" of run {run_id!r}" + (f" (did you mean {near[0]!r}?)" if near else "")


def _key_of(connection: sqlite3.Connection, path: Path, run_id: str | None, episode_id: str) -> int:
    sql = "SELECT id, run_id FROM episodes WHERE {} = ?"
    rows = (
        connection.execute(sql.format("episode_id"), (episode_id,)).fetchall()
        or connection.execute(sql.format(f"substr(episode_id, 1, {len(episode_id)})"), (episode_id,)).fetchall()
    )
    if not rows:
        raise StoreError(f"no episode {episode_id!r} in {path}")
    if len(rows) > 1:
        raise StoreError(f"{len(rows)} episodes in {path} begin with {episode_id!r}; give more of the id")
    if run_id is not None and rows[0]["run_id"] != run_id:
        raise StoreError(f"episode {episode_id!r} belongs to run {rows[0]['run_id']!r}, not to {run_id!r}")
    return int(rows[0]["id"])


# -- the work ------------------------------------------------------------------------------------


def _parts(path: Path, keys: Sequence[int], workers: int) -> Iterator[Report]:
    """A report of each chunk of episodes, in order."""
    size = max(1, min(_CHUNK, -(-len(keys) // workers)))
    chunks = [keys[start : start + size] for start in range(0, len(keys), size)]
    if workers == 1 or len(chunks) == 1:
        yield from map(partial(_check, path), chunks)
        return
    pool = ProcessPoolExecutor(min(workers, len(chunks)), multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(partial(_check, path), chunks)
    except BrokenProcessPool as error:
        raise TaskAppError("a worker process died before it was done (out of memory?); nothing is proved") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _check(path: Path, keys: Iterable[int]) -> Report:
    """The report of some episodes. Runs in a worker process: opens the database for itself."""
    counts: Counter[Kind] = Counter()
    failed = []
    decisions = steps = 0
    with _reading(path) as connection:
        damage = _damage_check(connection, path)
        for key in keys:
            verdict, row = _verdict(connection, damage, key)
            counts[verdict.kind] += 1
            if verdict.passed:
                decisions, steps = decisions + row["decision_count"], steps + row["step_count"]
            else:
                names = (str(row["episode_id"]), str(row["run_id"])) if row else (f"row {key}", "")
                failed.append(FailedEpisode(*names, verdict))
    return Report(counts, failed, decisions, steps)


def _damage_check(connection: sqlite3.Connection, path: Path) -> DamageCheck:
    try:
        return DamageCheck(connection)
    except (sqlite3.Error, KeyError) as error:  # KeyError: a column of a type we never made
        raise StoreError(f"trace database {path} cannot be read: {error}") from error


def _verdict(connection: sqlite3.Connection, damage: DamageCheck, key: int) -> tuple[Verdict, Any]:
    """What is found of one episode, and its row (None when it cannot be read at all)."""
    row = None
    connection.execute("BEGIN")  # one moment of the database, whoever else is writing
    try:
        row = connection.execute("SELECT * FROM episodes WHERE id = ?", (key,)).fetchone()
        if row is None:
            return Verdict("damaged", "it was removed while the database was checked"), None
        if damaged := damage.of(key):
            return Verdict("damaged", damaged), row
        episode = read_episode(connection, row)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:  # nothing is wrong with the record
            raise StoreError(f"the trace database cannot be read: {error}") from error
        return Verdict("damaged", f"it cannot be read: {error}"), row
    except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Verdict("damaged", f"it cannot be read: {type(error).__name__}: {error}"), row
    finally:
        if connection.in_transaction:  # SQLite may have rolled back by itself
            connection.execute("ROLLBACK")
    return _compared(episode, row), row


def _compared(episode: Episode, row: sqlite3.Row) -> Verdict:
    try:
        spec = _spec_of(episode.task.app, json.dumps(episode.task.options))
    except ConfigError as error:
        return Verdict("unverifiable", str(error))
    verdict = verify_episode(spec, episode)
    return _totals(episode, row) or verdict if verdict.passed else verdict


@lru_cache(maxsize=64)
def _spec_of(app: str, options: str) -> TaskSpec:
    return make_spec(app, json.loads(options))


def _totals(episode: Episode, row: sqlite3.Row) -> Verdict | None:
    for name, value in totals_of(episode).items():
        equal = row[name] == value or (name in _ROUNDED and isclose(row[name], value, rel_tol=1e-9, abs_tol=1e-9))
        if not equal:
            return Verdict("totals", f"{name} {shown(row[name])} stored, {shown(value)} counted")
    return None
