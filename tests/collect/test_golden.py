"""Flags off: the collector's bytes equal a file committed before decision rewards existed (R37)."""

from __future__ import annotations

from pathlib import Path

from task_app.collect import collect_rows
from task_app.core.types import StepRewardFlags
from task_app.store import TraceStore

GOLDEN = Path(__file__).parent / "golden_off.jsonl"


def test_off_is_byte_identical_to_the_outcome_only_file(tmp_path, play_scripted):
    off = StepRewardFlags(mode="off")
    with TraceStore.open(tmp_path / "t.db") as store:
        for episode in play_scripted(range(3), 2, flags=off, max_decisions=20):
            store.write_episode(episode)
        lines = "".join(row + "\n" for row in collect_rows(store.episodes(records=False), off))
    assert lines.encode() == GOLDEN.read_bytes()
