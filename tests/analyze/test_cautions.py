"""Warnings and notes: each fires when it is true, and never when it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task_app.analyze.database import analyze_database
from task_app.config.models import PriceSection
from task_app.core.types import StepRewardFlags


def kinds(report):
    return [caution.kind for caution in (*report.warnings, *report.notes)]


class TestOutcomeMismatch:
    def test_equal_numbers_do_not_warn(self, write, play_scripted):
        """Real episodes of the real game, whose outcome is its achievements."""
        assert kinds(analyze_database(write(play_scripted(range(4), 2, policy="expert", max_decisions=12)))) == []

    @pytest.mark.parametrize("outcome", [0.0, 1.9, 3.0])
    def test_a_difference_warns_once_an_episode(self, write, one, outcome):
        wrong, right = replace(one("night-1a"), outcome=outcome), one("night-1b")
        (warning,) = analyze_database(write([wrong, right])).warnings
        assert (warning.kind, warning.count, warning.examples) == ("outcome_mismatch", 1, ("0-night-1a",))

    def test_an_app_whose_outcome_is_another_number_is_not_compared(self, write, one):
        episode = one("night-1a")
        other = replace(episode, outcome=7.0, task=replace(episode.task, app="chess"))
        assert kinds(analyze_database(write([other]))) == []

    def test_without_records_there_is_nothing_to_compare(self, write, one):
        episode = one("base-2")
        assert episode.flags == StepRewardFlags("off")
        assert kinds(analyze_database(write([replace(episode, outcome=7.0)]))) == ["recomputed"]

    def test_without_reward_there_is_nothing_to_compare(self, write, one):
        failed = replace(one("night-2b"), group_id="alone", member=0)
        assert kinds(analyze_database(write([failed]))) == ["incomplete_groups"]

    def test_many_have_five_examples(self, write, one):
        wrong = [replace(one("day-1"), outcome=9.0, group_id=f"g{n}") for n in range(7)]
        (warning,) = analyze_database(write(wrong)).warnings
        assert (warning.count, len(warning.examples)) == (7, 5)


class TestIncompleteGroups:
    @pytest.mark.parametrize(
        ("members", "lacking"),
        [
            ({"a": (0, 1), "b": (0, 1)}, []),
            ({"a": (0, 1), "b": (0,)}, ["night/b"]),
            ({"a": (0, 1), "b": (1,)}, ["night/b"]),
            ({"a": (0, 2)}, ["night/a"]),
            ({"a": (0,), "b": (0,)}, []),
            ({"a": (0, 0, 1), "b": (0, 1)}, []),
        ],
        ids=str,
    )
    def test_the_largest_group_of_the_run_says_the_size(self, write, one, members, lacking):
        episode = replace(one("night-1b"), update=None)
        episodes = [
            replace(episode, group_id=group, member=member) for group, every in members.items() for member in every
        ]
        found = [w for w in analyze_database(write(episodes)).warnings if w.kind == "incomplete_groups"]
        assert [example for warning in found for example in warning.examples] == lacking

    @pytest.mark.parametrize(("command", "warned"), [("rollout", True), ("train", True), ("eval", False)])
    def test_the_config_says_the_size_where_the_command_plays_groups(self, store, write, one, command, warned):
        store.write_run("night", command, {"rollout": {"group_size": 3}})
        episode = replace(one("night-1b"), update=None)
        report = analyze_database(write([replace(episode, member=member) for member in (0, 1)]))
        assert ("incomplete_groups" in kinds(report)) == warned

    def test_a_member_number_of_any_size_is_only_a_number(self, write, one):
        (warning,) = analyze_database(write([replace(one("night-1b"), member=2**31 - 1)])).warnings
        assert (warning.kind, warning.count) == ("incomplete_groups", 1)

    def test_two_updates_of_a_run_have_groups_of_their_own(self, write, one):
        episode = one("night-1b")
        pair = [replace(episode, update=update, member=update) for update in (0, 1)]
        (warning,) = analyze_database(write(pair)).warnings
        assert warning.examples == ("night/update 0/s1", "night/update 1/s1")

    def test_one_run_does_not_set_the_size_of_another(self, write, one):
        episode = replace(one("night-1b"), update=None)
        pair = [replace(episode, member=member) for member in (0, 1)]
        assert kinds(analyze_database(write([*pair, one("day-1")]))) == []


def test_prompts_that_differ_within_a_run_and_policy_warn(write, one):
    episode, other = one("day-1"), replace(one("day-2"), prompt_hash="another")
    (warning,) = analyze_database(write([episode, other])).warnings
    assert (warning.kind, warning.count, warning.examples) == ("mixed_prompts", 1, ("day/chat",))


def test_prompts_that_differ_between_runs_or_policies_do_not(write, one):
    moved = replace(one("day-2"), prompt_hash="another", run_id="elsewhere")
    scripted = replace(one("day-2"), prompt_hash="a third", policy="expert")
    assert kinds(analyze_database(write([one("day-1"), moved, scripted]))) == []


def test_a_missing_record_warns(write, one):
    episode = one("day-2")
    decisions = (*episode.decisions[:2], replace(episode.decisions[2], rewards=None))
    (warning,) = analyze_database(write([replace(episode, decisions=decisions)])).warnings
    assert (warning.kind, warning.count) == ("broken_records", 1)


class TestPrices:
    def test_priced_calls_without_tokens_are_counted(self, write, one):
        episode = one("day-2")
        silent = replace(episode.decisions[0], completion=replace(episode.decisions[0].completion, prompt_tokens=None))
        store = write([replace(episode, decisions=(silent, *episode.decisions[1:]))])
        (note,) = analyze_database(store, prices={"qwen/qwen3-32b": PriceSection(input=1.0)}).notes
        assert (note.kind, note.count, note.examples) == ("missing_tokens", 1, ("0-day-2",))
        assert analyze_database(store, prices={"qwen/qwen3-32b": PriceSection(gpu_hour=1.0)}).notes == ()
        assert analyze_database(store).notes == ()

    def test_a_price_whose_name_is_nearly_a_models_is_named(self, write, one):
        store = write([one("day-1")])
        (note,) = analyze_database(store, prices={"qwen/qwen3-23b": PriceSection(input=1.0)}).notes
        assert note.examples == ("'qwen/qwen3-23b' (did you mean 'qwen/qwen3-32b'?)",)
        both = {"qwen/qwen3-23b": PriceSection(input=1.0), "qwen/qwen3-32b": PriceSection(input=1.0)}
        assert analyze_database(store, prices=both).notes == ()
        assert analyze_database(store, prices={"claude": PriceSection(input=1.0)}).notes == ()
