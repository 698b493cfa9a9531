"""One episode: how it ends, what is recorded of it, and what a fault does to it."""

from __future__ import annotations

import time
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_app.core.errors import PolicyError
from task_app.core.task import TaskSpec
from task_app.core.types import DecisionRewards, ParseFailure, StepRecord, StepRewardFlags
from task_app.core.wire import episode_bytes
from task_app.rollout import EpisodeRun, Limits, play

OFF = StepRewardFlags(mode="off")


class TestEnds:
    def test_death_terminates_and_nothing_runs_after_it(self, play_one):
        episode = play_one(["right", "right die right"])
        assert (episode.status, episode.cause) == ("ok", "terminated")
        assert (episode.terminated, episode.truncated) == (True, False)
        assert [step.action for step in episode.steps] == ["right", "right", "die"]
        assert episode.outcome == 2.0

    def test_the_turn_limit_truncates(self, play_one):
        episode = play_one(["right left"], limits=Limits(3))
        assert (episode.status, episode.cause) == ("truncated", "max_decisions")
        assert (episode.terminated, episode.truncated) == (False, True)
        assert len(episode.decisions) == episode.max_decisions == 3
        assert episode.outcome == 1.0

    def test_the_worlds_own_limit_truncates(self, play_one):
        episode = play_one(["right right right"], length=4)
        assert (episode.status, episode.cause) == ("truncated", "max_steps")
        assert (episode.terminated, episode.truncated) == (False, True)
        assert [len(decision.steps) for decision in episode.decisions] == [3, 1]
        assert episode.steps[-1].truncated

    def test_death_at_the_last_turn_is_death(self, play_one):
        episode = play_one(["right", "die"], limits=Limits(2))
        assert (episode.status, episode.terminated, episode.truncated) == ("ok", True, False)

    def test_death_at_the_worlds_limit_is_death(self, play_one):
        assert play_one(["right die"], length=2).status == "ok"

    def test_a_budget_of_steps_cuts_the_decision_that_would_go_beyond(self, play_one):
        episode = play_one(["right right"], limits=Limits(9, max_env_steps=5))
        assert (episode.status, episode.cause) == ("truncated", "max_env_steps")
        assert [len(decision.steps) for decision in episode.decisions] == [2, 2, 1]
        assert (episode.outcome, episode.max_decisions) == (5.0, 9)
        assert episode.details["max_env_steps"] == 5

    def test_a_budget_that_is_not_used_up_ends_nothing(self, play_one):
        assert play_one(["right right"], limits=Limits(2, max_env_steps=5)).cause == "max_decisions"
        assert play_one(["right", "right die"], limits=Limits(9, max_env_steps=3)).cause == "terminated"
        assert play_one(["right right"], limits=Limits(9, max_env_steps=3), length=3).cause == "max_steps"
        assert play_one(["what"], limits=Limits(4, max_env_steps=3)).cause == "max_decisions"

    def test_without_a_budget_of_steps_nothing_is_different(self, play_one):
        plain, unused = play_one(["right right"]), play_one(["right right"], limits=Limits(4, max_env_steps=99))
        assert episode_bytes(plain) == episode_bytes(unused)
        assert "max_env_steps" not in plain.details

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        lines=st.lists(
            st.lists(st.sampled_from(["left", "right", "die", "what"]), max_size=4).map(" ".join), min_size=1
        ),
        limit=st.integers(1, 5),
        failures=st.integers(0, 3),
        length=st.integers(1, 12),
    )
    def test_every_episode_ends_in_exactly_one_way(self, play_one, lines, limit, failures, length):
        episode = play_one(lines, limits=Limits(limit, failures), length=length)
        assert episode.terminated != episode.truncated
        assert episode.status == ("ok" if episode.terminated else "truncated")
        assert 1 <= len(episode.decisions) <= limit
        assert [step.step for step in episode.steps] == list(range(len(episode.steps)))
        assert [decision.turn for decision in episode.decisions] == list(range(1, len(episode.decisions) + 1))
        assert not any(step.terminated or step.truncated for step in episode.steps[:-1])
        assert sum(decision.rewards.unique_delta for decision in episode.decisions) == episode.outcome

    def test_a_crafter_player_that_dies_ends_its_episode(self, play_scripted):
        (episode,) = play_scripted(
            range(3, 4), 1, max_decisions=40, min_actions_per_decision=50, max_actions_per_decision=50
        )
        assert (episode.status, episode.terminated, episode.truncated) == ("ok", True, False)
        assert episode.steps[-1].terminated
        assert len(episode.decisions[-1].steps) < 50
        assert episode.outcome == len(episode.event_counts)


class TestRecords:
    def test_steps_have_their_own_rewards_and_events_not_running_totals(self, play_one):
        episode = play_one(["right right", "left right stay"], limits=Limits(2))
        assert episode.steps == (
            StepRecord(0, "right", 1.0, False, False, ("reach_1",)),
            StepRecord(1, "right", 1.0, False, False, ("reach_2",)),
            StepRecord(2, "left", -0.5, False, False),
            StepRecord(3, "right", 1.0, False, False, ("reach_2",)),
            StepRecord(4, "stay", 0.0, False, False),
        )
        assert episode.environment_return == 2.5

    def test_decision_records_count_repeats_in_all_only(self, play_one):
        episode = play_one(["right right", "left right right"], limits=Limits(2))
        assert [decision.rewards for decision in episode.decisions] == [
            DecisionRewards(1, 2, 2, ("reach_1", "reach_2"), ("reach_1", "reach_2")),
            DecisionRewards(2, 2, 1, ("reach_2", "reach_3"), ("reach_3",)),
        ]

    @pytest.mark.parametrize("flags", [OFF, StepRewardFlags(mode="env_sparse")], ids=lambda flags: flags.mode)
    def test_other_modes_record_none_but_the_same_facts(self, play_one, flags):
        episode = play_one(["right right", "what"], flags=flags)
        assert [decision.rewards for decision in episode.decisions] == [None] * 4
        assert episode.steps == play_one(["right right", "what"]).steps
        assert episode.flags == flags

    def test_an_episode_names_its_task_its_policy_and_its_plan(self, plan, toy, speaker):
        spec = toy(length=9)
        run = EpisodeRun(plan(3, 1, update=2, details={"x": 1}), spec, Limits(1), OFF, "p", "v")
        policy = speaker(["right"])
        run.apply(policy.decide([run.request()])[0])
        episode = run.episode()
        assert (episode.run_id, episode.group_id, episode.member, episode.update) == ("run", "s3", 1, 2)
        assert episode.task == spec.ref(3)
        assert episode.prompt_hash == spec.prompt_hash
        assert (episode.policy, episode.policy_version) == ("p", "v")
        assert episode.details["x"] == 1
        assert episode.details["noise_key"] == "0/-/3/1"
        assert 0 < episode.started_at <= episode.finished_at

    def test_a_running_episode_is_no_record(self, plan, toy):
        run = EpisodeRun(plan(), toy(), Limits(1), OFF, "p", "v")
        with pytest.raises(ValueError, match="is still running"):
            run.episode()


class TestPrompts:
    def test_the_prompt_is_the_rules_and_the_state_with_its_history(self, play_one, speaker):
        policy = speaker(["right right", "jump", "left"])
        episode = play_one(policy, limits=Limits(3))
        texts = [decision.messages[1]["content"] for decision in episode.decisions]
        assert texts == [
            "turn 1 of 3 at 0 after []",
            "turn 2 of 3 at 2 after ['1:right,right']",
            "turn 3 of 3 at 2 after ['1:right,right', '2:unknown_word']",
        ]
        assert {decision.messages[0]["content"] for decision in episode.decisions} == {"Walk."}
        assert [len(decision.messages) for decision in episode.decisions] == [2, 2, 2]

    def test_several_parts_stay_parts(self, play_one):
        (decision,) = play_one(["right"], limits=Limits(1), parts=2).decisions
        assert [part["type"] for part in decision.messages[1]["content"]] == ["text", "text"]

    def test_a_request_says_where_it_stands(self, play_one, speaker):
        policy = speaker(["right"])
        play_one(policy, limits=Limits(2), seed=5)
        assert [(r.turn, r.max_decisions, r.seed, r.member, r.noise_key) for r in policy.requests] == [
            (1, 2, 5, 0, "0/-/5/0/1"),
            (2, 2, 5, 0, "0/-/5/0/2"),
        ]
        assert policy.requests[1].observation.place == 1
        assert policy.requests[0].time_left_s is None

    def test_crafter_recalls_the_last_calls(self, play_scripted):
        (episode,) = play_scripted(range(1), 1, max_decisions=5, history_calls=2)
        recalled = [
            [line for line in decision.messages[1]["content"].splitlines() if line.startswith("last:")]
            for decision in episode.decisions
        ]
        assert [len(lines) for lines in recalled] == [0, 1, 2, 2, 2]
        assert recalled[2][1] == recalled[3][0]


class TestParseFailures:
    def test_one_runs_nothing_is_kept_as_said_uses_a_turn_and_has_a_zero_record(self, play_one):
        episode = play_one(["right", "right jump right", "right"], limits=Limits(3))
        failed = episode.decisions[1]
        assert failed.completion.message.content == "right jump right"
        assert failed.failure == ParseFailure("unknown_word", "jump")
        assert failed.steps == ()
        assert failed.rewards == DecisionRewards(2, 0, 0, (), ())
        assert [decision.turn for decision in episode.decisions] == [1, 2, 3]
        assert [step.step for step in episode.steps] == [0, 1]
        assert episode.outcome == 2.0

    def test_so_many_in_a_row_truncate(self, play_one):
        episode = play_one(["jump", "right", "jump", "jump", "right"], limits=Limits(9, max_parse_failures=2))
        assert (episode.status, episode.cause) == ("truncated", "max_parse_failures")
        assert [decision.failure is None for decision in episode.decisions] == [False, True, False, False]

    def test_without_that_limit_they_last_until_the_turn_limit(self, play_one):
        episode = play_one(["jump"], limits=Limits(9))
        assert episode.cause == "max_decisions"
        assert (len(episode.decisions), episode.outcome) == (9, 0.0)


class TestEnvironmentFaults:
    LINES = ("right right", "left right", "right right left", "right")

    def test_a_crash_is_resumed_by_replay_without_a_trace(self, play_one, toy_app, same_bytes):
        whole = play_one(self.LINES)
        steps = toy_app.calls["step"]
        for step in range(1, steps + 1):
            toy_app.calls["step"] = 0
            toy_app.faults = {"step": {step}}
            assert same_bytes([play_one(self.LINES)], [whole]), f"crash in step {step}"
            assert toy_app.calls["step"] > steps

    def test_a_crash_while_replaying_is_a_try_too(self, play_one, toy_app, same_bytes):
        whole = play_one(self.LINES)
        toy_app.calls["step"] = 0
        toy_app.faults = {"step": {6, 8}}  # in the third decision, and in the replay of the first two
        assert same_bytes([play_one(self.LINES)], [whole])

    def test_crafter_resumes_after_a_crash_byte_for_byte(self, spec_of, player, plan, same_bytes):
        spec = spec_of()
        calls = count(1)

        class FlakyCrafter(type(spec.app)):
            def make_env(self, options):
                env = super().make_env(options)
                step = env.step

                def flaky(action):
                    if next(calls) in (17, 60):
                        step(action)  # it even moved before it broke
                        raise OSError("the world hung up")
                    return step(action)

                env.step = flaky
                return env

        flaky = TaskSpec(FlakyCrafter(), spec.options)
        played = [
            play([plan(4)], one, player(one), Limits(12), StepRewardFlags(), lambda episode: None)
            for one in (spec, flaky)
        ]
        assert same_bytes(*played)
        assert next(calls) > 60 + 1  # both faults happened, and steps were replayed

    def test_a_world_that_always_crashes_carries_no_reward(self, play_one, toy_app):
        toy_app.faults = {"step": range(4, 10_000)}
        episode = play_one(["right", "right right"])
        assert (episode.status, episode.outcome) == ("infra_error", None)
        assert episode.cause == "environment failed 3 times: RuntimeError: step broke"
        assert (episode.terminated, episode.truncated) == (False, False)
        assert [len(decision.steps) for decision in episode.decisions] == [1, 2]  # the third broke
        assert not episode.rewarded

    @pytest.mark.parametrize(("tries", "status"), [(1, "infra_error"), (2, "infra_error"), (3, "truncated")])
    def test_a_step_is_tried_as_often_as_the_limit_says(self, play_one, toy_app, tries, status):
        toy_app.faults = {"step": {1, 2}}
        assert play_one(["right"], limits=Limits(1, infra_tries=tries)).status == status
        assert toy_app.calls["step"] == tries

    def test_a_world_that_cannot_be_made_asks_no_policy(self, play_one, toy_app, speaker):
        toy_app.faults = {"reset": range(1, 100)}
        policy = speaker(["right"])
        episode = play_one(policy)
        assert (episode.status, episode.outcome, episode.decisions) == ("infra_error", None, ())
        assert episode.cause == "environment failed 3 times: RuntimeError: reset broke"
        assert policy.asked == []

    def test_a_world_made_at_the_second_try_plays_on(self, play_one, toy_app):
        toy_app.faults = {"reset": {1}}
        assert play_one(["right"]).status == "truncated"


class TestPolicyFaults:
    def test_a_passing_fault_is_asked_again_from_memory(self, play_one, speaker, same_bytes):
        policy = speaker(["right"], faults={(0, 2): [PolicyError("busy"), PolicyError("busy")]})
        assert same_bytes([play_one(policy)], [play_one(["right"])])
        assert policy.asked == [(0, 1), (0, 2), (0, 2), (0, 2), (0, 3), (0, 4)]

    def test_one_that_stays_ends_the_episode_without_a_reward(self, play_one, speaker):
        policy = speaker(["right"], faults={(0, 2): [PolicyError("down")] * 9})
        episode = play_one(policy)
        assert (episode.status, episode.cause, episode.outcome) == ("infra_error", "down", None)
        assert len(episode.decisions) == 1
        assert policy.asked == [(0, 1)] + [(0, 2)] * 3

    def test_one_that_asking_again_cannot_help_is_not_asked_again(self, play_one, speaker):
        policy = speaker(["right"], faults={(0, 1): [PolicyError("wrong key", retryable=False)]})
        episode = play_one(policy)
        assert (episode.status, episode.cause, episode.decisions) == ("infra_error", "wrong key", ())
        assert policy.asked == [(0, 1)]


class TestDeadline:
    def test_a_late_episode_is_aborted_at_its_next_decision(self, play_one, speaker):
        policy = speaker(["right"], during=lambda request: time.sleep(0.15))
        episode = play_one(policy, limits=Limits(100, max_time_s=0.2))
        assert (episode.status, episode.cause, episode.outcome) == ("aborted", "took longer than 0.2 s", None)
        assert 1 <= len(episode.decisions) <= 2
        left = [request.time_left_s for request in policy.requests]
        assert 0 < left[0] <= 0.2
        assert left == sorted(left, reverse=True)

    def test_no_time_at_all_is_a_limit_too(self, play_one):
        episode = play_one(["right"], limits=Limits(100, max_time_s=0.0))
        assert (episode.status, episode.decisions) == ("aborted", ())
