"""An update from stored episodes: whose advantage trains what, and what the loss is divided by."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from task_app.credit import CreditResult, GroupCredit
from task_app.train.update import Updater


@pytest.fixture
def updater(config_in, line, network, tmp_path):
    """Of updates of two groups of four."""
    settings = {"rollout__group_size": 4, "policy__temperature": 0.8, "training__learning_rate": 1e-12}
    return Updater(config_in(tmp_path, **settings), line, network)


def test_every_decision_is_trained_on_with_its_own_advantage(updater, episodes):
    batch, number = updater.collect(1, episodes), count(1)
    told = [tuple(tuple(float(next(number)) for _ in m.rewards) for m in group.members) for group in batch.groups]
    credits = [GroupCredit(group.group_id, values, False, 0) for group, values in zip(batch.groups, told, strict=True)]
    rows = updater._build_rows(batch, CreditResult(tuple(credits), {}))
    decisions = [d for group in batch.groups for member in group.members for d in member.episode.decisions]
    assert [row.advantages for row in rows] == [(float(index),) for index in range(1, len(decisions) + 1)]
    for row, decision in zip(rows, decisions, strict=True):
        trace = decision.completion.tokens
        assert (trace.prompt_ids + trace.completion_ids)[: len(row.input_ids)] == row.input_ids


def test_a_dropped_group_still_counts_in_the_normaliser(updater, episodes):
    failed = replace(episodes[-1], status="infra_error", cause="no such world", outcome=None)
    batch = updater.collect(1, [*episodes[:-1], failed])
    assert (len(batch.groups), len(batch.dropped)) == (1, 1)
    credit = updater.credit(batch)
    rows = updater._build_rows(batch, credit)
    total = sum(row.advantages[0] * len(row.targets) for row in rows)
    assert abs(total) > 0.1
    assert updater.learn(1, batch, credit)["train/loss"] == pytest.approx(-total / (2 * 4 * 100), rel=1e-4)
