"""Databases with known contents, and what an export made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_app.core.types import AssistantMessage, Decision, Episode, ToolCall
from task_app.export import EpisodeFilters, SftOptions, export_sft
from task_app.store import TraceStore
from tests.known_traces import known_episodes, write_known

Row = dict[str, Any]


@pytest.fixture(scope="session")
def known(tmp_path_factory) -> Path:
    """A database of the known episodes; tests only read it."""
    path = tmp_path_factory.mktemp("known") / "t.db"
    with TraceStore.open(path) as store:
        write_known(store)
    return path


@pytest.fixture(scope="session")
def by_id() -> dict[str, Episode]:
    """The known episodes by their id."""
    return {episode.episode_id: episode for episode in known_episodes()}


@pytest.fixture
def database(tmp_path: Path) -> Callable[[Iterable[Episode]], Path]:
    """Write episodes to a database of the test's own."""

    def write(episodes: Iterable[Episode]) -> Path:
        path = tmp_path / "own.db"
        with TraceStore.open(path) as store:
            for episode in episodes:
                store.write_episode(episode)
        return path

    return write


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., list[Row]]:
    """The rows of an export to one file; keywords are filters and options."""

    def run(database: Path, **given: Any) -> list[Row]:
        options = {key: given.pop(key) for key in ("form", "decisions", "dedupe") if key in given}
        output = tmp_path / "rows.jsonl"
        export_sft(database, output, EpisodeFilters(**given), SftOptions(**options))
        return read(output)

    return run


def read(path: Path) -> list[Row]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text[:-1].split("\n")]


@pytest.fixture(name="read")
def read_fixture() -> Callable[[Path], list[Row]]:
    """Every row of a file."""
    return read


@pytest.fixture
def answering() -> Callable[..., Episode]:
    """A known episode whose decisions say these things instead: texts, arguments, or whole messages."""

    def change(episode: Episode, *said: AssistantMessage | str | None, **changes: Any) -> Episode:
        decisions = [
            decision if message is None else _saying(decision, message)
            for decision, message in zip(episode.decisions, said, strict=True)
        ]
        return replace(episode, decisions=tuple(decisions), **changes)

    return change


def _saying(decision: Decision, message: AssistantMessage | str) -> Decision:
    if isinstance(message, str):
        message = AssistantMessage("so", (ToolCall("interact_many", message, "call_x"),), "tool_calls")
    return replace(decision, completion=replace(decision.completion, message=message))


@pytest.fixture
def places() -> Callable[[Sequence[Row]], list[tuple[str, int]]]:
    """Where rows come from: (episode id, turn)."""
    return lambda rows: [(row["metadata"]["episode_id"], row["metadata"]["turn"]) for row in rows]
