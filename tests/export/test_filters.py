"""Every filter alone and combined on the known database, counted by hand (tests/known_traces.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from task_app.core.errors import ConfigError, TaskAppError
from task_app.export import EpisodeFilters, export_sft
from task_app.store import TraceStore

ORDER = ("base-1", "base-2", "day-1", "day-2", "night-1a", "night-1b", "night-2a")
"""Every episode with a reward, in the store's order: by run, then update, then group, then member."""
ROWS = {"base-1": 2, "base-2": 2, "day-1": 1, "day-2": 3, "night-1a": 3, "night-1b": 2, "night-2a": 4}
"""Readable decisions of each; the first of day-1 is not one."""

CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "base-1 base-2 day-1 day-2 night-1a night-1b night-2a"),
    # names
    ({"model": ["gpt-4o-mini"]}, "night-1a night-1b night-2a"),
    ({"model": ["qwen/qwen3-32b"]}, "day-1 day-2"),
    ({"model": ["qwen/qwen3-32b", "gpt-4o-mini"]}, "day-1 day-2 night-1a night-1b night-2a"),
    ({"model": [""]}, "base-1 base-2"),
    ({"provider": ["groq"]}, "day-1 day-2"),
    ({"provider": ["groq", "openai"]}, "day-1 day-2 night-1a night-1b night-2a"),
    ({"policy": ["random"]}, "base-1 base-2"),
    ({"policy": ["chat"]}, "day-1 day-2 night-1a night-1b night-2a"),
    ({"run_id": ["night"]}, "night-1a night-1b night-2a"),
    ({"run_id": ["night", "base"]}, "base-1 base-2 night-1a night-1b night-2a"),
    # achievements
    ({"require_achievement": ["collect_wood"]}, "base-2 day-1 night-1a"),
    ({"require_achievement": ["collect_wood", "place_table"]}, "night-1a"),
    ({"require_achievement": ["wake_up"]}, "night-2a"),
    ({"exclude_achievement": ["collect_wood"]}, "base-1 base-2 day-1 day-2 night-1a night-1b night-2a"),
    ({"min_unique": 0}, "base-1 base-2 day-1 day-2 night-1a night-1b night-2a"),
    ({"min_unique": 1}, "base-2 day-1 day-2 night-1a night-1b night-2a"),
    ({"min_unique": 2}, "day-2 night-1a night-2a"),
    ({"min_unique": 3}, "night-2a"),
    ({"max_unique": 0}, "base-1"),
    ({"max_unique": 1}, "base-1 base-2 day-1 night-1b"),
    ({"min_unique": 1, "max_unique": 1}, "base-2 day-1 night-1b"),
    ({"min_unique": 2, "exclude_achievement": ["collect_wood"]}, "day-2 night-2a"),
    ({"min_unique": 2, "exclude_achievement": ["collect_sapling", "collect_drink"]}, "night-1a night-2a"),
    ({"min_unique": 2, "exclude_achievement": ["collect_drink", "collect_drink"]}, "night-1a night-2a"),
    ({"max_unique": 0, "exclude_achievement": ["collect_wood"]}, "base-1 base-2 day-1"),
    # event rewards
    ({"event_reward": ["unique_achievement_delta"]}, "base-2 day-1 day-2 night-1a night-1b night-2a"),
    ({"event_reward": ["unique_achievement_delta:2"]}, "day-2 night-1a night-2a"),
    ({"event_reward": ["unique_achievement_delta:2.5"]}, "night-2a"),
    ({"event_reward": ["unique_achievement_delta:0"]}, "base-1 base-2 day-1 day-2 night-1a night-1b night-2a"),
    ({"event_reward": ["achievement_delta:3"]}, "day-2 night-1a night-2a"),
    ({"event_reward": ["sparse"]}, "base-2 day-1 day-2 night-1a night-1b night-2a"),
    ({"event_reward": ["sparse:2"]}, "day-2 night-1a night-2a"),
    ({"event_reward": ["sparse:2.5"]}, "night-2a"),
    ({"event_reward": ["collect_drink"]}, "day-2 night-1b"),
    ({"event_reward": ["collect_drink:1"]}, "day-2 night-1b"),
    ({"event_reward": ["collect_wood", "place_table:1.0"]}, "night-1a"),
    # outcomes
    ({"min_outcome_reward": 2.0}, "day-2 night-1a night-2a"),
    ({"min_outcome_reward": 2.5}, "night-2a"),
    ({"max_outcome_reward": 0.0}, "base-1"),
    ({"min_outcome_reward": 1.0, "max_outcome_reward": 1.0}, "base-2 day-1 night-1b"),
    # how many
    ({"limit": 1}, "base-1"),
    ({"limit": 3}, "base-1 base-2 day-1"),
    ({"limit": 1000}, "base-1 base-2 day-1 day-2 night-1a night-1b night-2a"),
    # together
    ({"model": ["gpt-4o-mini"], "limit": 2}, "night-1a night-1b"),
    ({"policy": ["chat"], "require_achievement": ["collect_drink"]}, "day-2 night-1b"),
    ({"policy": ["chat"], "require_achievement": ["collect_drink"], "min_unique": 2}, "day-2"),
    ({"provider": ["openai"], "min_outcome_reward": 1.5, "max_outcome_reward": 2.5}, "night-1a"),
    ({"run_id": ["night", "day"], "event_reward": ["sparse:1"], "max_unique": 1}, "day-1 night-1b"),
    (
        {
            "policy": ["chat"],
            "run_id": ["night"],
            "exclude_achievement": ["wake_up"],
            "min_unique": 2,
            "event_reward": ["achievement_delta:3"],
            "min_outcome_reward": 2.0,
            "limit": 1,
        },
        "night-1a",
    ),
]


@pytest.mark.parametrize(("filters", "expected"), CASES, ids=lambda value: str(value))
def test_the_hand_counted_episodes_pass_and_all_their_readable_decisions_are_rows(
    known, export, places, filters, expected
):
    rows = export(known, **{name: tuple(v) if isinstance(v, list) else v for name, v in filters.items()})
    episodes = list(dict.fromkeys(episode for episode, _ in places(rows)))
    assert episodes == expected.split()
    assert len(rows) == sum(ROWS[episode] for episode in episodes)


def test_the_cases_use_every_filter():
    used = {name for filters, _ in CASES for name in filters}
    assert used == set(EpisodeFilters.__dataclass_fields__)


def test_what_each_filter_removed_is_counted_in_order(known, tmp_path):
    filters = EpisodeFilters(
        policy=("chat",), require_achievement=("collect_wood",), min_unique=2, min_outcome_reward=1.0, limit=5
    )
    report = export_sft(known, tmp_path / "o.jsonl", filters)
    assert (report.episodes, report.selected) == (8, 1)
    assert report.removed == (
        ("superseded by a resumed run", 0),
        ("without a reward (infra_error, aborted)", 1),
        ("--policy chat", 2),
        ("--require-achievement collect_wood", 3),
        ("--min-unique 2", 1),
        ("--min-outcome-reward 1", 0),
        ("--limit 5", 0),
    )


def test_what_the_limit_left_out_is_counted(known, tmp_path):
    report = export_sft(known, tmp_path / "o.jsonl", EpisodeFilters(limit=3))
    assert report.removed[-1] == ("--limit 3", 4)


def test_superseded_episodes_are_left_out_and_counted(database, by_id, export, places, tmp_path):
    db = database([by_id["night-1a"], replace(by_id["night-1b"], update=1)])
    with TraceStore.open(db) as store:
        assert store.supersede("night", 1) == 1
    assert {episode for episode, _ in places(export(db))} == {"night-1a"}
    assert export_sft(db, tmp_path / "o.jsonl").removed[0] == ("superseded by a resumed run", 1)


def test_deltas_count_without_decision_records(known, export, places):
    """base-2 was recorded in mode off, so the database holds no record of it, only events."""
    with TraceStore.open(known, read_only=True) as store:
        assert not store.query(
            "SELECT 1 FROM decision_rewards JOIN episodes ON id = episode WHERE episode_id = 'base-2'"
        )
    rows = export(known, run_id=("base",), event_reward=("unique_achievement_delta:1",))
    assert places(rows) == [("base-2", 1), ("base-2", 2)]
    assert [row["metadata"]["unique_delta"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"require_achievement": ("colect_wood",)}, "require_achievement", "did you mean 'collect_wood'?"),
        ({"require_achievement": ("sparse",)}, "require_achievement", "no task app of this database has this event"),
        ({"exclude_achievement": ("collect_sappling",)}, "exclude_achievement", "did you mean 'collect_sapling'?"),
        ({"event_reward": ("unique_delta:1",)}, "event_reward", "did you mean 'unique_achievement_delta'?"),
        ({"event_reward": ("sparce",)}, "event_reward", "did you mean 'sparse'?"),
        ({"event_reward": ("zzz",)}, "event_reward", "(known: achievement_delta, collect_coal, "),
        ({"event_reward": ("sparse:much",)}, "event_reward", "a finite number, got 'much'"),
        ({"event_reward": ("sparse:",)}, "event_reward", "a finite number, got ''"),
        ({"event_reward": ("sparse:nan",)}, "event_reward", "a finite number, got 'nan'"),
        ({"event_reward": ("sparse:inf",)}, "event_reward", "a finite number, got 'inf'"),
        ({"min_unique": -1}, "min_unique", "--min-unique -1: must be at least 0"),
        ({"max_unique": -1}, "max_unique", "--max-unique -1: must be at least 0"),
        ({"limit": 0}, "limit", "--limit 0: must be at least 1"),
        ({"min_outcome_reward": float("nan")}, "min_outcome_reward", "must be a finite number"),
        ({"max_outcome_reward": float("inf")}, "max_outcome_reward", "must be a finite number"),
        ({"min_unique": 3, "max_unique": 2}, "min_unique", "--min-unique 3 is above --max-unique 2"),
        (
            {"min_outcome_reward": 1.5, "max_outcome_reward": 1.0},
            "min_outcome_reward",
            "--min-outcome-reward 1.5 is above --max-outcome-reward 1",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(known, export, tmp_path, given, field, says):
    with pytest.raises(ConfigError) as caught:
        export(known, **given)
    assert caught.value.field == field
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_event_of_an_app_that_is_not_installed_is_known_by_what_is_stored(database, by_id, export):
    episode = by_id["night-1b"]
    foreign = replace(episode, task=replace(episode.task, app="gone"))
    assert len(export(database([foreign]), require_achievement=("collect_drink",))) == 2
    with pytest.raises(ConfigError, match=r"'wake_up': .*\(known: collect_drink\)"):
        export(database([]), require_achievement=("wake_up",))


def test_nothing_left_says_what_removed_how_many_and_names_what_was_meant(known, export, tmp_path):
    with pytest.raises(TaskAppError) as caught:
        export(known, model=("gpt-4o-min", "gpt-4o-mini"), provider=("oppenai",), min_unique=2)
    said = str(caught.value)
    assert not isinstance(caught.value, ConfigError)
    assert f"8 episodes in {known}" in said
    assert (
        "removed by superseded by a resumed run: 0; without a reward (infra_error, aborted): 1; "
        "--model gpt-4o-min (no episode has it; did you mean 'gpt-4o-mini'?) --model gpt-4o-mini: 4; "
        "--provider oppenai (no episode has it; did you mean 'openai'?): 3; --min-unique 2: 0"
    ) in said
    assert not list(tmp_path.iterdir())
