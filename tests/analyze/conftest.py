"""Trace databases for analysis: the one whose contents are known by heart, and empty ones to fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from task_app.core.types import Episode
from task_app.store import TraceStore
from tests.known_traces import known_episodes, write_known


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's database is."""
    return tmp_path / "t.db"


@pytest.fixture
def store(path: Path) -> Iterator[TraceStore]:
    """An empty database, open for writing."""
    with TraceStore.open(path) as opened:
        yield opened


@pytest.fixture
def known(store: TraceStore) -> TraceStore:
    """The database of tests/known_traces.py."""
    write_known(store)
    return store


@pytest.fixture
def write(store: TraceStore) -> Callable[[Sequence[Episode]], TraceStore]:
    """Write episodes, each under an id and in a group of its own place in the list where two would collide."""

    def run(episodes: Sequence[Episode]) -> TraceStore:
        for index, episode in enumerate(episodes):
            store.write_episode(replace(episode, episode_id=f"{index}-{episode.episode_id}"))
        return store

    return run


@pytest.fixture
def one() -> Callable[[str], Episode]:
    """One of the known episodes by its id."""
    return lambda name: next(episode for episode in known_episodes() if episode.episode_id == name)
