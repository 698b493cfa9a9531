"""docs/event_rewards.md against the code: its flags, its worked example, its estimators."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from task_app.collect import reward_vector
from task_app.config.step_rewards import SHORT_NAMES, StepRewardSettings, resolve
from task_app.config.training import TrainingSection
from task_app.core.rewards import rewards_from_events
from task_app.core.types import (
    AssistantMessage,
    Completion,
    Decision,
    Episode,
    StepRecord,
    StepRewardFlags,
    TaskRef,
)
from task_app.credit import estimator_names

DOC = (Path(__file__).parents[2] / "docs/event_rewards.md").read_text(encoding="utf-8")


def table(first_column: str) -> list[list[str]]:
    """The body rows of the table whose header starts with `first_column`, each cell without backticks."""
    header = re.search(rf"^\| {re.escape(first_column)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert header, first_column
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in header[1].splitlines()]


def example() -> Episode:
    block = re.search(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert block
    told = json.loads(block[1])
    records = rewards_from_events(told["events"])
    decisions, step = [], 0
    for record, names, rewards in zip(records, told["events"], told["step_rewards"], strict=True):
        steps = []
        for index, reward in enumerate(rewards):
            happened = tuple(names) if index == 0 else ()
            steps.append(StepRecord(step, "noop", reward, False, False, happened))
            step += 1
        completion = Completion(AssistantMessage(), "id")
        decisions.append(Decision(record.turn, (), completion, None, tuple(steps), record))
    return Episode(
        episode_id="example",
        run_id="run",
        group_id="group",
        member=0,
        task=TaskRef("crafter", "1", {}, 0),
        policy="none",
        policy_version="1",
        prompt_hash="",
        flags=StepRewardFlags(),
        max_decisions=told["max_decisions"],
        status="truncated",
        cause="",
        terminated=False,
        truncated=True,
        outcome=float(told["outcome"]),
        decisions=tuple(decisions),
    )


def test_flags_table_is_complete_and_its_defaults_are_in_force():
    rows = {row[0]: row for row in table("key")}
    assert set(rows) == set(StepRewardSettings.model_fields)
    assert {row[1]: key for key, row in rows.items()} == dict(SHORT_NAMES)
    documented = {key: tomllib.loads(f"value = {row[3]}")["value"] for key, row in rows.items()}
    assert resolve(documented) == resolve({})
    assert resolve({}) == StepRewardFlags()


def test_flags_table_values_are_the_allowed_ones():
    for key, _, values, _ in table("key"):
        for value in values.split(", "):
            if value.startswith("at least"):
                TrainingSection.model_validate({key: float(value.removeprefix("at least "))})
                with pytest.raises(ValueError, match=key):
                    TrainingSection.model_validate({key: -0.1})
            else:
                TrainingSection.model_validate({key: {"true": True, "false": False}.get(value, value)})
        with pytest.raises(ValueError, match=key):
            TrainingSection.model_validate({key: "anything else"})


def worked_rows() -> list[list[str]]:
    found = re.search(r"^\| mode \| kind \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert found
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


@pytest.mark.parametrize("row", worked_rows(), ids=lambda row: "-".join(row[:5]))
def test_worked_example_is_what_the_collector_builds(row):
    mode, kind, indicator, beta, horizon, values = row
    flags = StepRewardFlags(mode, kind, float(indicator), float(beta), horizon)
    expected = [float(value) for value in values.split(", ")]
    assert list(reward_vector(example(), flags).values) == pytest.approx(expected)


def test_estimators_are_the_registered_ones():
    assert sorted(row[0] for row in table("estimator")) == list(estimator_names())
