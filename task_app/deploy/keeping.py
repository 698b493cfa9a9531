"""Copies of a trace database in use: whole, consistent, and only when something was stored since the last.

SQLite needs a file system that knows locks and shared memory. A Modal volume knows neither: where two containers write
one file, the last commit wins, and a write-ahead log may be committed without its database. So a container writes to
its own disk, and what goes to the volume is a finished copy under a name of that container's own.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)


class Keeper:
    """Copies `database` to `kept` and calls `commit` after it. Safe to use from several threads."""

    def __init__(self, database: Path, kept: Path, commit: Callable[[], object]) -> None:
        self._database, self._kept, self._commit = database, kept, commit
        self._lock = threading.Lock()
        self._last: tuple[int, int] | None = None

    def restore(self) -> bool:
        """Begin with what was kept before, if anything was; before the database is opened."""
        if not self._kept.exists():
            return False
        self._database.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._kept, self._database)
        return True

    def keep(self) -> bool:
        """Copy and commit if anything was stored since the last copy; whether it was. Raises OSError, sqlite3.Error."""
        with self._lock:
            if not self._database.exists():
                return False
            state = self._state()
            if state == self._last:
                return False
            self._copy()
            self._commit()
            self._last = state
            return True

    @asynccontextmanager
    async def keeping(self, every_s: float) -> AsyncIterator[None]:
        """Keep every so many seconds while inside; a copy that fails is logged and made at the next turn."""
        ticking = asyncio.create_task(self._tick(every_s))
        try:
            yield
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    async def _tick(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await asyncio.to_thread(self.keep)
            except Exception as error:  # whatever a volume raises: serving goes on, the next turn tries again
                logger.error("traces were not copied to the volume: %s: %s", type(error).__name__, error)

    def _state(self) -> tuple[int, int]:
        """Changes with every transaction: size and time of the file and of its write-ahead log."""
        files = [self._database, self._database.with_name(f"{self._database.name}-wal")]
        found = [path.stat() for path in files if path.exists()]
        return sum(stat.st_size for stat in found), max(stat.st_mtime_ns for stat in found)

    def _copy(self) -> None:
        """The copy replaces the older one in one step, and is a single file without a write-ahead log."""
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        finished = self._database.with_name(f"{self._database.name}.copy")
        finished.unlink(missing_ok=True)
        unchanged = f"{self._database.absolute().as_uri()}?mode=ro"  # read only: closing it folds no log into the file
        with closing(sqlite3.connect(unchanged, uri=True)) as source, closing(sqlite3.connect(finished)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        beside = self._kept.with_name(f"{self._kept.name}.part")
        shutil.copyfile(finished, beside)
        beside.replace(self._kept)
        finished.unlink()
