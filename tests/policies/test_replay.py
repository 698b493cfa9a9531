"""Replay: stored answers said again give the same rewards and events; what is not stored is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task_app.core.types import StepRewardFlags, TokenTrace
from task_app.policies import ReplayPolicy
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore

FLAGS = StepRewardFlags()


def test_a_replayed_database_gives_the_same_steps_events_and_outcomes(tmp_path, spec_of, play_scripted):
    episodes = play_scripted(range(3), 2, max_decisions=20)
    with TraceStore.open(tmp_path / "t.db") as store:
        for episode in reversed(episodes):
            store.write_episode(episode)
        policy = ReplayPolicy(store.episodes(records=False))
    plans = plan_groups(range(3), 2, run_id="again")
    again = play(plans, spec_of(), policy, Limits(20), FLAGS, lambda episode: None, concurrency=4)
    assert [e.steps for e in again] == [e.steps for e in episodes]
    assert [e.outcome for e in again] == [e.outcome for e in episodes]
    assert [[d.rewards for d in e.decisions] for e in again] == [[d.rewards for d in e.decisions] for e in episodes]
    assert [[d.messages for d in e.decisions] for e in again] == [[d.messages for d in e.decisions] for e in episodes]
    assert {e.policy for e in again} == {"replay"}


def test_an_unreadable_answer_is_said_again_as_it_was(play_one, toy, plan):
    stored = play_one(["right", "jump high", "left"])
    (again,) = play([plan()], toy(), ReplayPolicy([stored]), Limits(4), FLAGS, lambda episode: None)
    assert [d.completion.message for d in again.decisions] == [d.completion.message for d in stored.decisions]
    assert again.decisions[1].failure == stored.decisions[1].failure


def test_the_first_of_two_episodes_of_one_seed_and_member_is_said(play_one, toy, plan):
    first, second = play_one(["right"]), play_one(["left"])
    (again,) = play([plan()], toy(), ReplayPolicy([first, second]), Limits(4), FLAGS, lambda episode: None)
    assert again.steps == first.steps


def test_tokens_are_not_said_again(play_one, speaker, toy, plan):
    stored = play_one(["right"], limits=Limits(1))
    tokens = TokenTrace((), 0, (1,), (0.0,), (0,), 1.0, "g", "r")
    (decision,) = stored.decisions
    stored = replace(stored, decisions=(replace(decision, completion=replace(decision.completion, tokens=tokens)),))
    (again,) = play([plan()], toy(), ReplayPolicy([stored]), Limits(1), FLAGS, lambda episode: None)
    assert again.decisions[0].completion == decision.completion


@pytest.mark.parametrize(
    ("seed", "member", "limit", "cause", "decisions"),
    [
        (9, 0, 4, "no stored episode of seed 9, member 0 to replay", 0),
        (0, 1, 4, "no stored episode of seed 0, member 1 to replay", 0),
        (0, 0, 6, "the stored episode of seed 0, member 0 has 4 decisions; turn 5 was asked for", 4),
    ],
)
def test_what_is_not_stored_fails_at_once(play_one, toy, plan, seed, member, limit, cause, decisions):
    policy = ReplayPolicy([play_one(["right"])])
    (episode,) = play([plan(seed, member)], toy(), policy, Limits(limit), FLAGS, lambda episode: None)
    assert (episode.status, episode.cause, episode.outcome) == ("infra_error", cause, None)
    assert len(episode.decisions) == decisions


def test_such_a_failure_is_not_asked_again(play_one, toy, plan):
    asked = []

    class Counting(ReplayPolicy):
        def decide(self, requests):
            asked.append(len(requests))
            return super().decide(requests)

    play([plan()], toy(), Counting([]), Limits(4), FLAGS, lambda episode: None)
    assert asked == [1]
