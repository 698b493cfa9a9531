"""Copies of a database in use: consistent, only when something changed, and never in the way of serving."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from task_app.core.wire import episode_bytes
from task_app.deploy.keeping import Keeper
from task_app.store import TraceStore


class Commits:
    """Counts; fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.count, self.failures = 0, failures

    def __call__(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the volume is busy")
        self.count += 1


def bytes_of(path: Path) -> list[bytes]:
    with TraceStore.open(path, read_only=True) as store:
        return [episode_bytes(episode) for episode in store.episodes()]


def test_a_copy_is_made_of_an_open_database_and_again_only_after_something_was_stored(tmp_path, play_scripted):
    here, kept, commits = tmp_path / "here.db", tmp_path / "volume/traces/c1.db", Commits()
    keeper = Keeper(here, kept, commits)
    assert not keeper.keep()
    first, second = play_scripted(range(2), 1)
    with TraceStore.open(here) as store:
        store.write_episode(first)
        assert keeper.keep()
        assert not keeper.keep()
        assert bytes_of(kept) == [episode_bytes(first)]
        store.write_episode(second)
        assert keeper.keep()
    assert bytes_of(kept) == [episode_bytes(first), episode_bytes(second)]
    assert commits.count == 2
    assert [path.name for path in kept.parent.iterdir()] == ["c1.db"]
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_failed_commit_is_made_up_for(tmp_path, play_scripted):
    here, commits = tmp_path / "here.db", Commits(failures=1)
    keeper = Keeper(here, tmp_path / "kept.db", commits)
    with TraceStore.open(here) as store:
        store.write_episode(play_scripted(range(1), 1)[0])
        with pytest.raises(RuntimeError, match="busy"):
            keeper.keep()
        assert keeper.keep()
    assert commits.count == 1


def test_while_keeping_a_failure_is_logged_and_the_next_turn_copies(tmp_path, play_scripted, caplog):
    here, commits = tmp_path / "here.db", Commits(failures=1)
    keeper = Keeper(here, tmp_path / "kept.db", commits)

    async def some_turns() -> None:
        async with keeper.keeping(0.01):
            while not commits.count:
                await asyncio.sleep(0.01)

    with TraceStore.open(here) as store:
        store.write_episode(play_scripted(range(1), 1)[0])
        asyncio.run(asyncio.wait_for(some_turns(), 10))
    assert "traces were not copied to the volume: RuntimeError: the volume is busy" in caplog.text
    assert len(bytes_of(tmp_path / "kept.db")) == 1


def test_copies_of_a_database_that_is_being_written_are_whole(tmp_path, play_scripted):
    here, kept = tmp_path / "here.db", tmp_path / "kept.db"
    keeper = Keeper(here, kept, lambda: None)
    episodes, counts = play_scripted(range(30), 1), []
    with TraceStore.open(here) as store:
        store.write_episode(episodes[0])
        writer = threading.Thread(target=lambda: [store.write_episode(episode) for episode in episodes[1:]])
        writer.start()
        while True:
            running = writer.is_alive()
            keeper.keep()
            counts.append(len(bytes_of(kept)))
            if not running:
                break
        writer.join()
    assert counts == sorted(counts)
    assert counts[-1] == 30


def test_restoring_begins_with_what_was_kept(tmp_path, play_scripted):
    kept = tmp_path / "kept.db"
    with TraceStore.open(kept) as store:
        store.write_episode(play_scripted(range(1), 1)[0])
    keeper = Keeper(tmp_path / "deeper/here.db", kept, lambda: None)
    assert keeper.restore()
    assert bytes_of(tmp_path / "deeper/here.db") == bytes_of(kept)
    assert not Keeper(tmp_path / "other.db", tmp_path / "none.db", lambda: None).restore()
