"""What every task app must do, played over each one that is found."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_app.apps import find_apps
from task_app.collect import reward_vector
from task_app.core.errors import EnvError
from task_app.core.task import TaskSpec, TurnContext
from task_app.core.types import AssistantMessage, Episode, ParseFailure, StepRewardFlags, ToolCall
from task_app.core.wire import episode_bytes, episode_from_json, episode_to_json
from task_app.policies import ReplayPolicy, ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore

APPS = {name: found.app for name, found in find_apps().items()}
FLAGS = StepRewardFlags()
MODES = ("off", "decision_stepwise", "env_sparse")

pytestmark = pytest.mark.parametrize("spec", [TaskSpec(a, a.options_model()) for a in APPS.values()], ids=list(APPS))


def random_player(spec: TaskSpec) -> ScriptedPolicy:
    return ScriptedPolicy(spec.app, "random", spec.app.baselines(spec.options)["random"])


def played(spec: TaskSpec, policy: Any = None, flags: StepRewardFlags = FLAGS, decisions: int = 12) -> list[Episode]:
    plans = plan_groups(range(400, 402), 2, run_id="conformance")
    return play(plans, spec, policy or random_player(spec), Limits(decisions), flags, lambda episode: None)


def some_actions(spec: TaskSpec, count: int, seed: int = 0) -> list[str]:
    return random.Random(seed).choices(spec.app.action_names, k=count)


def run(env: Any, actions: list[str]) -> list[Any]:
    """The results of the actions, up to the end."""
    results = []
    for action in actions:
        results.append(env.step(action))
        if results[-1].terminated or results[-1].truncated:
            break
    return results


def test_its_names_are_names(spec):
    app = spec.app
    for names in (app.event_names, app.action_names, (app.name, *app.aliases)):
        assert len(names) == len(set(names)) > 0
        assert all(name == name.strip() and name for name in names)
    assert app.title
    assert app.description
    assert app.version


def test_two_processes_with_other_hash_seeds_play_the_same_bytes(spec, episode_hashes):
    first, second = episode_hashes.values()
    mine = {key: digest for key, digest in first.items() if key.startswith(f"{spec.app.name}/")}
    assert mine == {key: digest for key, digest in second.items() if key.startswith(f"{spec.app.name}/")}
    assert len(mine) == 3 * len(spec.app.baselines(spec.options))


def test_the_same_seed_and_actions_give_the_same_in_one_process(spec):
    assert [episode_bytes(e) for e in played(spec)] == [episode_bytes(e) for e in played(spec)]


def test_other_seeds_are_other_worlds(spec):
    texts = {json.dumps(episode.decisions[0].messages[1]) for episode in played(spec)}
    assert len(texts) == 2


def test_its_tools_are_schemas_as_endpoints_want_them(spec):
    for tool in json.loads(json.dumps(spec.app.tools(spec.options), allow_nan=False)):
        function = tool["function"]
        assert (tool["type"], set(function)) == ("function", {"name", "description", "parameters"})
        assert function["parameters"]["type"] == "object"
        assert set(function["parameters"].get("required", ())) <= set(function["parameters"]["properties"])


def test_a_random_player_finishes_with_legal_answers(spec):
    for episode in played(spec, decisions=30):
        assert episode.status in ("ok", "truncated")
        assert episode.outcome is not None
        assert all(decision.failure is None for decision in episode.decisions)
        assert {step.action for step in episode.steps} <= set(spec.app.action_names)
        assert set(episode.event_counts) <= set(spec.app.event_names)
        assert all(list(step.events) == sorted(step.events) for step in episode.steps)


def test_every_baseline_plays(spec):
    for name, factory in spec.app.baselines(spec.options).items():
        episodes = played(spec, ScriptedPolicy(spec.app, name, factory), decisions=4)
        assert {episode.status for episode in episodes} <= {"ok", "truncated"}


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_records_what_it_should_and_the_same_facts(spec, mode):
    flags = StepRewardFlags(mode=mode)
    facts = [episode.steps for episode in played(spec)]
    for episode, steps in zip(played(spec, flags=flags), facts, strict=True):
        assert episode.steps == steps
        recorded = [decision.rewards is not None for decision in episode.decisions]
        assert set(recorded) == {mode == "decision_stepwise"}
        assert len(reward_vector(episode, flags).decisions) == len(episode.decisions)


def test_its_episodes_survive_store_and_wire(spec, tmp_path):
    with TraceStore.open(tmp_path / "t.db") as store:
        for episode in played(spec):
            store.write_episode(episode)
            assert store.episode(episode.episode_id) == episode
            assert episode_from_json(json.loads(json.dumps(episode_to_json(episode), allow_nan=False))) == episode


def test_its_episodes_are_replayed(spec):
    stored = played(spec)
    again = played(spec, ReplayPolicy(stored))
    assert [replace(e, policy="", policy_version="").steps for e in again] == [e.steps for e in stored]
    assert [episode.outcome for episode in again] == [episode.outcome for episode in stored]


def test_a_snapshot_goes_on_as_the_world_it_was_taken_of(spec):
    env, fork = spec.app.make_env(spec.options), spec.app.make_env(spec.options)
    env.reset(1)
    before = run(env, some_actions(spec, 40))
    if before[-1].terminated or before[-1].truncated:
        pytest.skip("the world was over too soon")
    view = fork.restore(env.snapshot())
    assert view == before[-1].observation
    assert run(fork, some_actions(spec, 40, seed=1)) == run(env, some_actions(spec, 40, seed=1))


def test_its_picture_is_one_a_browser_shows_and_does_not_move_the_world(spec):
    env, undrawn = spec.app.make_env(spec.options), spec.app.make_env(spec.options)
    env.reset(1)
    undrawn.reset(1)
    for action in some_actions(spec, 5):
        first, second = spec.app.picture(env), spec.app.picture(env)
        assert first == second
        if first is not None:
            assert first.media_type in ("image/png", "image/svg+xml")
            assert first.data
        result = env.step(action)
        assert result == undrawn.step(action)
        if result.terminated or result.truncated:
            break
    spec.app.picture(env)


def test_misuse_of_its_world_is_an_environment_error(spec):
    env = spec.app.make_env(spec.options)
    with pytest.raises(EnvError):
        env.step(spec.app.action_names[0])
    env.reset(1)
    with pytest.raises(EnvError):
        env.step("no such action")
    for seed in (-1, 2**31, "1"):
        with pytest.raises(EnvError):
            env.reset(seed)


def test_what_it_shows_is_strict_json_and_the_same_twice(spec):
    env = spec.app.make_env(spec.options)
    view, context = env.reset(3), TurnContext(1, 20, {})
    parts = spec.app.observe(view, (), context, spec.options)
    assert parts
    assert parts == spec.app.observe(view, (), context, spec.options)
    json.dumps([parts, spec.app.status_fields(view), spec.app.seed_info(3, spec.options)], allow_nan=False)
    assert spec.app.outcome(view) == 0.0


def test_its_canonical_answers_are_read_back(spec):
    agent = spec.app.baselines(spec.options)["random"](0)
    view = spec.app.make_env(spec.options).reset(3)
    for _ in range(20):
        actions = tuple(agent.act(view))
        assert spec.app.parse(spec.app.say(actions), spec.options) == actions


calls = st.builds(ToolCall, name=st.text(max_size=8), arguments=st.text(max_size=20))
messages = st.builds(AssistantMessage, content=st.none() | st.text(), tool_calls=st.lists(calls, max_size=3).map(tuple))


@given(message=messages)
def test_any_answer_is_actions_or_a_failure_with_a_reason(spec, message):
    parsed = spec.app.parse(message, spec.options)
    if isinstance(parsed, ParseFailure):
        assert parsed.reason
    else:
        assert set(parsed) <= set(spec.app.action_names)


def test_a_walk_through_its_grammar_is_a_legal_answer_of_known_words(spec):
    grammar = spec.app.grammar(spec.options)
    if grammar is None:
        pytest.skip("free text")
    assert set(grammar.words) <= set(spec.app.vocabulary(spec.options))
    rng = random.Random(0)
    for _ in range(20):
        state, words = grammar.start, []
        while state != grammar.final:
            words.append(rng.choice(grammar.allowed(state)))
            state = grammar.edges[state][words[-1]]
        message = spec.app.words_to_message(words)
        assert not isinstance(spec.app.parse(message, spec.options), ParseFailure)
        assert spec.app.message_to_words(message, spec.options) == tuple(words)
    assert isinstance(spec.app.message_to_words(AssistantMessage("no such answer ⟂"), spec.options), ParseFailure)
