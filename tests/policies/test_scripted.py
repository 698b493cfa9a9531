"""Scripted players as policies: one agent per episode, seeded by the episode's noise, forgotten at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task_app.apps.crafter.rules import ACTIONS
from task_app.core.types import AssistantMessage, DecisionRequest, StepRewardFlags
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play

REQUEST = DecisionRequest("e1", 1, 20, 0, 0, "0/-/0/0/1", (), (), observation="start")


class Counter:
    """An agent that says how many times it was asked, what it saw, and its seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.seen = seed, []

    def act(self, observation):
        self.seen.append(str(observation))
        return [str(self.seed), *self.seen]


@pytest.fixture
def policy(toy_app):
    return ScriptedPolicy(toy_app, "counter", Counter)


def words(policy, *requests):
    return [completion.message.content.split() for completion in policy.decide(requests)]


def test_an_episode_keeps_its_agent_and_the_agent_its_memory(policy):
    (first,) = words(policy, REQUEST)
    (second,) = words(policy, replace(REQUEST, turn=2, noise_key="0/-/0/0/2", observation="later"))
    assert second == [first[0], "start", "later"]


def test_episodes_have_agents_of_their_own(policy):
    other = replace(REQUEST, episode_id="e2", member=1, noise_key="0/-/0/1/1")
    first, second = words(policy, REQUEST, other)
    assert first[1:] == second[1:] == ["start"]
    assert first[0] != second[0]


def test_the_seed_is_the_noise_of_the_episode_without_its_turn(policy):
    twin = replace(REQUEST, episode_id="e2", turn=7, noise_key="0/-/0/0/7")
    assert words(policy, REQUEST) == words(policy, twin)


def test_an_ended_episode_is_forgotten(policy):
    words(policy, REQUEST)
    policy.end_episode("e1")
    assert words(policy, REQUEST)[0][1:] == ["start"]
    policy.end_episode("never played")


def test_a_completion_says_what_the_app_says(policy, toy_app):
    (completion,) = policy.decide([REQUEST])
    assert isinstance(completion.message, AssistantMessage)
    assert completion.completion_id == "counter-0/-/0/0/1"
    assert (completion.model, completion.tokens) == ("counter", None)
    assert (policy.name, policy.version, policy.batched) == ("counter", "toy-1", False)


@pytest.mark.parametrize("limits", [(1, 5), (3, 3), (1, 1)])
def test_the_random_player_says_the_most_allowed_of_known_actions(spec_of, player, limits):
    low, high = limits
    spec = spec_of(min_actions_per_decision=low, max_actions_per_decision=high)
    plans = plan_groups(range(1), 2, run_id="r")
    episodes = play(plans, spec, player(spec), Limits(30), StepRewardFlags(), lambda episode: None)
    said = [spec.app.parse(d.completion.message, spec.options) for e in episodes for d in e.decisions]
    assert {len(actions) for actions in said} == {high}
    assert {action for actions in said for action in actions} <= set(ACTIONS)
    assert episodes[0].steps != episodes[1].steps
    if high == 5:
        assert {action for actions in said for action in actions} == set(ACTIONS)  # 300 draws of 17
