"""Many episodes: the same alone or together, in threads or in lockstep; one failure is not everyone's."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest

from task_app.apps.crafter.rules import ACTIONS
from task_app.core.errors import ContextOverflow, PolicyError, StoreError
from task_app.core.types import Completion, StepRewardFlags
from task_app.rollout import Limits, plan_groups, play
from task_app.rollout.episode import EpisodePlan
from task_app.store import TraceStore

FLAGS = StepRewardFlags()


class TestPlans:
    def test_a_group_of_each_seed_in_order(self):
        plans = plan_groups([7, 3], 2, run_id="r", noise_seed=5)
        assert plans == [
            EpisodePlan("r", "s0000000007", 0, 7, "5/-/7/0"),
            EpisodePlan("r", "s0000000007", 1, 7, "5/-/7/1"),
            EpisodePlan("r", "s0000000003", 0, 3, "5/-/3/0"),
            EpisodePlan("r", "s0000000003", 1, 3, "5/-/3/1"),
        ]

    def test_an_update_is_in_the_group_and_in_the_noise(self):
        (plan,) = plan_groups([7], 1, run_id="r", update=12)
        assert (plan.group_id, plan.noise_key, plan.update) == ("u000012-s0000000007", "0/12/7/0", 12)

    def test_group_ids_sort_like_their_updates_and_seeds(self):
        plans = [p for u in (2, 10) for p in plan_groups([2**31 - 2, 9, 10], 1, run_id="r", update=u)]
        by_id = sorted(plans, key=lambda plan: plan.group_id)
        assert [(plan.update, plan.seed) for plan in by_id] == sorted((plan.update, plan.seed) for plan in plans)

    def test_noise_keys_never_repeat_within_a_run(self):
        keys = [p.noise_key for u in range(3) for p in plan_groups(range(20), 8, run_id="r", update=u)]
        assert len(set(keys)) == len(keys)


class NoisePlayer:
    """Plays actions drawn from each decision's noise key: the same whoever else is being played."""

    name, version = "noise", "1"

    def __init__(self, app, batched: bool) -> None:
        self._app, self.batched = app, batched
        self.batches: list[int] = []

    def decide(self, requests):
        self.batches.append(len(requests))
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        digest = hashlib.sha256(request.noise_key.encode()).digest()
        actions = [ACTIONS[byte % len(ACTIONS)] for byte in digest[:5]]
        return Completion(self._app.say(actions), request.noise_key)

    def end_episode(self, episode_id):
        pass


class TestTogetherAndAlone:
    def test_eight_at_once_are_the_eight_one_after_another(self, play_scripted, same_bytes):
        alone = play_scripted(range(4), 2, max_decisions=25)
        together = play_scripted(range(4), 2, max_decisions=25, concurrency=8)
        assert same_bytes(together, alone)
        assert len({tuple(step.action for step in episode.steps) for episode in alone}) == 8

    def test_lockstep_is_the_same_as_threads(self, spec_of, same_bytes):
        spec = spec_of(max_actions_per_decision=5, max_steps=60)
        plans = plan_groups(range(3), 2, run_id="r", noise_seed=3)
        batched, threaded = NoisePlayer(spec.app, True), NoisePlayer(spec.app, False)
        played = [play(plans, spec, policy, Limits(20), FLAGS, lambda episode: None) for policy in (batched, threaded)]
        assert same_bytes(*played)
        assert batched.batches == [6] * 12  # 60 steps of 5 a decision
        assert set(threaded.batches) == {1}

    def test_lockstep_asks_only_for_episodes_that_still_run(self, toy, speaker):
        policy = speaker(["right"], {(seed, seed + 1): "die" for seed in range(4)}, batched=True)
        plans = plan_groups(range(4), 1, run_id="r")
        episodes = play(plans, toy(), policy, Limits(9), FLAGS, lambda episode: None)
        assert all(episode.terminated for episode in episodes)
        assert sorted(policy.asked) == [(seed, turn) for seed in range(4) for turn in range(1, seed + 2)]

    def test_two_processes_with_other_hash_seeds_play_the_same(self, episode_hashes):
        first, second = episode_hashes.values()
        assert first == second
        assert {key.rsplit("/", 1)[0] for key in first} >= {"crafter/random", "crafter/expert"}
        assert len(set(first.values())) == len(first)

    @pytest.mark.parametrize("batched", [False, True])
    def test_no_plans_are_no_episodes(self, toy, speaker, batched):
        assert play([], toy(), speaker(["right"], batched=batched), Limits(1), FLAGS, lambda episode: None) == []


@pytest.mark.parametrize("batched", [False, True], ids=["threads", "lockstep"])
class TestPlaying:
    def test_episodes_come_back_in_the_order_of_their_plans(self, toy, speaker, batched):
        plans = plan_groups([5, 1, 3], 2, run_id="r")
        policy = speaker(["right"], batched=batched, during=lambda r: time.sleep(0.002 * r.seed))
        episodes = play(plans, toy(), policy, Limits(2), FLAGS, lambda episode: None, concurrency=3)
        assert [(e.task.seed, e.member) for e in episodes] == [(p.seed, p.member) for p in plans]
        assert sorted(policy.ended) == sorted(e.episode_id for e in episodes)

    def test_the_sink_gets_each_once_and_one_at_a_time(self, toy, speaker, batched):
        busy, seen = threading.Lock(), []

        def sink(episode):
            assert busy.acquire(blocking=False)
            time.sleep(0.002)
            seen.append(episode)
            busy.release()

        plans = plan_groups(range(12), 1, run_id="r")
        episodes = play(plans, toy(), speaker(["right"], batched=batched), Limits(1), FLAGS, sink, concurrency=6)
        assert sorted(e.episode_id for e in seen) == sorted(e.episode_id for e in episodes)

    def test_a_world_that_breaks_is_not_the_others(self, toy, toy_app, speaker, batched):
        class Breaks(type(toy_app)):
            def make_env(self, options):
                env = super().make_env(options)
                reset = env.reset

                def some(seed):
                    if seed == 2:
                        raise OSError("no such world")
                    return reset(seed)

                env.reset = some
                return env

        spec = type(toy())(Breaks(), toy().options)
        plans = plan_groups(range(4), 1, run_id="r")
        episodes = play(plans, spec, speaker(["right"], batched=batched), Limits(2), FLAGS, lambda episode: None)
        assert [e.status for e in episodes] == ["truncated", "truncated", "infra_error", "truncated"]
        assert [e.outcome for e in episodes] == [2.0, 2.0, None, 2.0]

    def test_late_episodes_are_aborted(self, toy, speaker, batched):
        policy = speaker(["right"], batched=batched, during=lambda r: time.sleep(0.05))
        plans = plan_groups(range(2), 1, run_id="r")
        episodes = play(plans, toy(), policy, Limits(99, max_time_s=0.3), FLAGS, lambda episode: None)
        assert [e.status for e in episodes] == ["aborted", "aborted"]
        assert all(0 < len(e.decisions) < 99 for e in episodes)

    def test_a_sink_that_fails_stops_everything_and_keeps_what_others_have(self, toy, speaker, batched):
        kept, started = [], set()

        def sink(episode):
            if episode.task.seed == 0:
                raise StoreError("disk full")
            kept.append(episode)

        def slower(request):
            started.add(request.seed)
            time.sleep(0.01 * min(request.seed, 1))

        policy = speaker(["right"], {(0, 1): "die"}, during=slower, batched=batched)
        plans = plan_groups(range(20), 1, run_id="r")
        with pytest.raises(StoreError, match="disk full"):
            play(plans, toy(), policy, Limits(50), FLAGS, sink, concurrency=4)
        assert {e.status for e in kept} == {"aborted"}
        assert {e.cause for e in kept} == {"interrupted"}
        assert {e.task.seed for e in kept} >= started - {0}
        assert len(started) == 20 if batched else len(started) < 20
        assert len(policy.ended) == len(kept) + 1

    def test_an_interrupt_records_running_episodes_as_aborted(self, toy, speaker, batched):
        faults = {(1, 3): [KeyboardInterrupt()]}
        policy = speaker(["right"], faults=faults, batched=batched, during=lambda r: time.sleep(0.01))
        kept = []
        with pytest.raises(KeyboardInterrupt):
            play(plan_groups(range(3), 1, run_id="r"), toy(), policy, Limits(50), FLAGS, kept.append, concurrency=3)
        assert {e.status for e in kept} == {"aborted"}
        assert {e.task.seed for e in kept} >= {0, 2}
        assert all(e.outcome is None and e.decisions for e in kept)


def test_a_policy_that_stays_down_for_one_seed_spares_the_others(toy, speaker):
    policy = speaker(["right"], faults={(1, 2): [PolicyError("down")] * 9})
    plans = plan_groups(range(3), 1, run_id="r")
    episodes = play(plans, toy(), policy, Limits(3), FLAGS, lambda episode: None, concurrency=3)
    assert [e.status for e in episodes] == ["truncated", "infra_error", "truncated"]


def test_a_batch_whose_policy_stays_down_fails_as_a_whole(toy, speaker):
    policy = speaker(["right"], faults={(1, 2): [PolicyError("down")] * 9}, batched=True)
    plans = plan_groups(range(3), 1, run_id="r")
    episodes = play(plans, toy(), policy, Limits(3), FLAGS, lambda episode: None)
    assert [(e.status, e.cause, e.outcome, len(e.decisions)) for e in episodes] == [
        ("infra_error", "down", None, 1)
    ] * 3


@pytest.mark.parametrize("batched", [True, False])
def test_an_episode_that_outgrows_the_policys_context_is_truncated_and_the_others_go_on(toy, speaker, batched):
    def outgrow(request):
        if (request.seed, request.turn) == (1, 3):
            raise ContextOverflow("too long", frozenset({request.episode_id}))

    policy = speaker(["right"], during=outgrow, batched=batched)
    plans = plan_groups(range(3), 1, run_id="r")
    episodes = play(plans, toy(), policy, Limits(4), FLAGS, lambda episode: None, concurrency=3)
    assert [(e.status, e.cause, len(e.decisions), e.outcome is None) for e in episodes] == [
        ("truncated", "max_decisions", 4, False),
        ("truncated", "context", 2, False),
        ("truncated", "max_decisions", 4, False),
    ]


def test_eight_players_writing_one_database_keep_all_forty(tmp_path, toy, speaker):
    with TraceStore.open(tmp_path / "t.db") as store:
        plans = plan_groups(range(5), 8, run_id="r")
        episodes = play(plans, toy(), speaker(["right"]), Limits(3), FLAGS, store.write_episode, concurrency=8)
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        assert sorted(store.episodes(), key=lambda e: e.episode_id) == sorted(episodes, key=lambda e: e.episode_id)
