"""Two players on shared worlds: hand-worked head-to-head numbers, and names that find one player or say why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task_app.analyze.compare import SeedRow
from task_app.analyze.database import analyze_database
from task_app.core.errors import ConfigError


@pytest.fixture
def duel(write, one):
    """Write episodes `(policy, seed, outcome, changes)` and compare `a` with `b`."""
    base = replace(one("base-1"), decisions=())

    def run(*rows, compare=None):
        episodes = []
        for policy, seed, outcome, *changes in rows:
            made = replace(base, policy=policy, task=replace(base.task, seed=seed), outcome=outcome)
            episodes.append(replace(made, **(changes[0] if changes else {})))
        return analyze_database(write(episodes), compare=compare).comparison

    return run


def test_known_contents(known):
    """Seed 1: gpt (2, 1) against qwen 1; seed 2: gpt 3 (its other member failed) against qwen 2."""
    found = analyze_database(known, compare=("gpt-4o-mini", "qwen/qwen3-32b")).comparison
    assert found is not None
    assert found.seeds == (SeedRow(1, 2, 1.5, 1, 1.0), SeedRow(2, 1, 3.0, 1, 2.0))
    assert (found.wins, found.losses, found.ties) == (2, 0, 0)
    assert (found.first.label, found.first.mean.mean) == ("chat:gpt-4o-mini", 2.25)
    assert (found.second.label, found.second.mean.mean) == ("chat:qwen/qwen3-32b", 1.5)
    # differences .5 and 1: mean .75, deviation .353553, standard error .25, t(.975, 1) = 12.7062 → ± 3.17655
    assert (found.difference.n, found.difference.mean) == (2, 0.75)
    assert found.difference.low == pytest.approx(0.75 - 3.17655, abs=1e-4)
    assert found.difference.high == pytest.approx(0.75 + 3.17655, abs=1e-4)


def test_the_order_asked_for_is_kept(known):
    found = analyze_database(known, compare=("random", "gpt-4o-mini")).comparison
    assert found is not None
    assert (found.first.label, found.difference.mean, found.losses) == ("random", -1.75, 2)


def test_three_players_are_not_compared_unasked(known):
    assert analyze_database(known).comparison is None


def test_two_players_are_compared_unasked(known):
    found = analyze_database(known, run_ids=["night", "base"]).comparison
    assert found is not None
    assert (found.first.label, found.second.label, found.wins) == ("chat:gpt-4o-mini", "random", 2)


def test_wins_losses_ties_and_unshared_worlds(duel):
    found = duel(
        ("a", 1, 3.0), ("b", 1, 1.0), ("a", 2, 0.0), ("b", 2, 4.0), ("a", 3, 2.0), ("b", 3, 2.0),
        ("a", 4, 9.0), ("b", 5, 9.0), ("b", 6, 9.0),
    )  # fmt: skip
    assert (found.wins, found.losses, found.ties) == (1, 1, 1)
    assert (found.first.unshared, found.second.unshared) == (1, 2)
    # differences 2, −4, 0: mean −2/3, deviation 3.05505, standard error 1.76383, t(.975, 2) = 4.30265 → ± 7.58915
    assert found.difference.mean == pytest.approx(-2 / 3)
    assert found.difference.high == pytest.approx(-2 / 3 + 7.58915, abs=1e-4)
    assert (found.first.mean.n, found.first.mean.mean) == (3, pytest.approx(5 / 3))


def test_a_world_counts_once_however_often_it_was_played(duel):
    found = duel(("a", 1, 4.0), ("a", 1, 0.0), ("a", 1, 2.0), ("b", 1, 1.0), ("a", 2, 0.0), ("b", 2, 1.0))
    assert found.seeds == (SeedRow(1, 3, 2.0, 1, 1.0), SeedRow(2, 1, 0.0, 1, 1.0))
    assert (found.difference.n, found.difference.mean) == (2, 0.0)


@pytest.mark.parametrize("change", ["app", "version", "options", "max_decisions"])
def test_a_seed_under_another_setting_is_another_world(duel, one, change):
    task = replace(one("base-1").task, seed=1)
    other = {
        "app": {"task": replace(task, app="chess")},
        "version": {"task": replace(task, version="2")},
        "options": {"task": replace(task, options={**task.options, "history_calls": 3})},
        "max_decisions": {"max_decisions": 9},
    }[change]
    found = duel(("a", 1, 3.0), ("b", 1, 1.0, other))
    assert (found.difference.n, found.difference.mean, found.seeds) == (0, None, ())
    assert (found.first.unshared, found.second.unshared) == (1, 1)


def test_episodes_without_reward_are_no_zeros(duel):
    failed = {"status": "infra_error", "truncated": False}
    found = duel(("a", 1, 3.0), ("b", 1, 1.0), ("b", 1, None, failed), ("a", 2, 1.0), ("b", 2, None, failed))
    assert found.seeds == (SeedRow(1, 1, 3.0, 1, 1.0),)


def test_one_version_can_be_compared_with_another(duel):
    versions = [("a", seed, outcome, {"policy_version": version})
                for version, outcome in (("before", 1.0), ("after", 3.0)) for seed in (1, 2)]  # fmt: skip
    found = duel(*versions, compare=("a@after", "a@before"))
    assert (found.first.label, found.second.label, found.wins, found.difference.mean) == ("a@after", "a@before", 2, 2.0)
    whole = duel(compare=("a", "a@before"))  # nothing new is written
    assert (whole.first.versions, whole.first.mean.mean, whole.second.mean.mean) == (2, 2.0, 1.0)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("chat", "random"), "'chat' could be any of chat:gpt-4o-mini, chat:qwen/qwen3-32b"),
        (("rndom", "chat:gpt-4o-mini"), "no player 'rndom' in the database; did you mean 'random'"),
        (("zzz", "random"), "players: chat:gpt-4o-mini, chat:qwen/qwen3-32b, random"),
        (("", "random"), "no player ''"),
        (("random", "random"), "are the same player"),
        (("random", "random@1"), "are the same player"),
        (("random@2", "gpt-4o-mini"), "'random' has no version '2' (versions: 1)"),
    ],
)
def test_names_that_name_no_two_players_are_refused(known, names, said):
    with pytest.raises(ConfigError) as caught:
        analyze_database(known, compare=names)
    assert said in str(caught.value)
    assert caught.value.field == "compare"


def test_a_model_name_with_an_at_sign_is_found_whole(duel):
    found = duel(("a@1", 1, 3.0), ("a", 1, 1.0), compare=("a@1", "a"))
    assert (found.first.label, found.first.mean.mean) == ("a@1", 3.0)
