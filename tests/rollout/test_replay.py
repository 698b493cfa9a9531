"""Replay: the world of a stored episode at any step, and its decisions played again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from task_app.core.errors import EnvError
from task_app.core.types import StepRecord
from task_app.rollout import Limits
from task_app.rollout.replay import replay as replay_episode
from task_app.rollout.replay import world_after


def _with_action(episode, step, action):
    decisions = tuple(
        replace(d, steps=tuple(replace(s, action=action) if s.step == step else s for s in d.steps))
        for d in episode.decisions
    )
    return replace(episode, decisions=decisions)


def _place(toy_world: Any) -> int:
    return toy_world._view().place


def _state(crafter_world: Any) -> bytes:
    return crafter_world.canonical_bytes()


class TestWorldAfter:
    def test_it_is_the_world_that_the_actions_make(self, play_scripted, spec_of):
        (episode,) = play_scripted(range(5, 6), 1, max_decisions=6)
        spec = spec_of()
        env = spec.app.make_env(spec.options)
        env.reset(5)
        for count, step in enumerate(episode.steps):
            assert _state(world_after(spec, episode, count)) == _state(env)
            env.step(step.action)
        assert _state(world_after(spec, episode, len(episode.steps))) == _state(env)

    def test_it_is_there_after_the_end_of_the_world(self, play_one, toy):
        episode = play_one(["right right", "right die right"])
        assert _place(world_after(toy(), episode, 4)) == 3

    @pytest.mark.parametrize("steps", [-1, 7])
    def test_steps_outside_the_episode_are_refused(self, play_one, toy, steps):
        episode = play_one(["right right"], limits=Limits(3))
        with pytest.raises(ValueError, match=f"steps must be 0 to 6 .*, got {steps}"):
            world_after(toy(), episode, steps)

    def test_a_world_over_too_soon_is_named_by_its_step(self, play_one, toy):
        episode = _with_action(play_one(["right right"], limits=Limits(2)), 1, "die")
        assert _place(world_after(toy(), episode, 2)) == 1
        with pytest.raises(EnvError, match="step 2 cannot be replayed: the world was over after step 1"):
            world_after(toy(), episode, 3)

    def test_an_unknown_action_is_named_by_its_step(self, play_scripted, spec_of):
        (episode,) = play_scripted(range(1), 1, max_decisions=2)
        with pytest.raises(EnvError, match=r"step 1 \(fly\) cannot be replayed: unknown Crafter action 'fly'"):
            world_after(spec_of(), _with_action(episode, 1, "fly"), 2)

    def test_a_world_that_cannot_be_made_is_named_by_its_seed(self, play_scripted, spec_of):
        (episode,) = play_scripted(range(1), 1, max_decisions=1)
        with pytest.raises(EnvError, match="the world of seed -3 cannot be made: seed must be"):
            world_after(spec_of(), replace(episode, task=replace(episode.task, seed=-3)), 0)


class TestReplay:
    @pytest.mark.parametrize("policy", ["random", "expert"])
    def test_prompts_steps_and_final_state_are_those_of_the_first_time(self, play_scripted, spec_of, policy):
        spec = spec_of(history_calls=3)
        (episode,) = play_scripted(range(2, 3), 1, policy=policy, max_decisions=12, history_calls=3)
        replayed = list(replay_episode(spec, episode))
        assert [d.turn for d in replayed] == list(range(1, 13))
        assert [d.messages for d in replayed] == [d.messages for d in episode.decisions]
        assert [d.steps for d in replayed] == [d.steps for d in episode.decisions]
        assert spec.app.outcome(replayed[-1].observation) == episode.outcome
        assert not any(d.ended or d.fault for d in replayed)

    def test_a_decision_that_did_not_parse_runs_nothing_and_is_recalled(self, play_one, toy):
        episode = play_one(["right", "jump", "left"], limits=Limits(3))
        replayed = list(replay_episode(toy(), episode))
        assert [len(d.steps) for d in replayed] == [1, 0, 1]
        assert replayed[2].messages[1]["content"] == "turn 3 of 3 at 1 after ['1:right', '2:unknown_word']"
        assert replayed[2].steps == (StepRecord(1, "left", -0.5, False, False),)

    def test_without_texts_nothing_is_rendered(self, play_one, toy):
        assert [d.messages for d in replay_episode(toy(), play_one(["left"]), texts=False)] == [()] * 4

    def test_it_stops_where_the_world_ends(self, play_one, toy):
        episode = _with_action(play_one(["right right"], limits=Limits(3)), 2, "die")
        replayed = list(replay_episode(toy(), episode))
        assert [[s.action for s in d.steps] for d in replayed] == [["right", "right"], ["die"]]
        assert replayed[-1].ended
        assert replayed[-1].fault == ""

    def test_it_stops_where_the_world_raises(self, play_one, toy, toy_app):
        episode = play_one(["right right"], limits=Limits(3))
        toy_app.faults = {"step": {toy_app.calls["step"] + 4}}
        replayed = list(replay_episode(toy(), episode))
        assert [len(d.steps) for d in replayed] == [2, 1]
        assert replayed[-1].fault == "RuntimeError: step broke"
