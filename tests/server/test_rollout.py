"""`POST /rollout`: what is played, what is answered, what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from task_app.core.types import StepRewardFlags
from task_app.core.wire import episode_bytes, episode_from_json
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play

pytestmark = pytest.mark.anyio


def records(answer: dict[str, Any]) -> list[dict[str, Any]]:
    steps = answer["trajectories"][0]["steps"]
    return [step["info"]["meta"]["decision_rewards"] for step in steps]


def keys_of(value: Any) -> set[str]:
    """Every key anywhere inside a JSON value."""
    if isinstance(value, dict):
        return set(value) | {key for inner in value.values() for key in keys_of(inner)}
    return {key for inner in value for key in keys_of(inner)} if isinstance(value, list) else set()


# -- the answer -----------------------------------------------------------------------------------


async def test_the_answer_has_the_contracts_shape(hosted):
    async with hosted() as app:
        answer = await app.played()
        (stored,) = app.episodes()
    assert set(answer) == {"run_id", "trajectories", "branches", "metrics", "aborted", "ops_executed", "trace"}
    assert (answer["run_id"], answer["branches"], answer["aborted"], answer["trace"]) == ("run", {}, False, None)
    assert answer["ops_executed"] == 6
    (trajectory,) = answer["trajectories"]
    assert set(trajectory) == {"env_id", "policy_id", "steps", "final", "length"}
    assert trajectory["length"] == len(trajectory["steps"]) == 3
    for step, decision in zip(trajectory["steps"], stored.decisions, strict=True):
        assert set(step) == {"obs", "tool_calls", "reward", "done", "truncated", "info"}
        assert step["obs"]["reward_last_step"] == decision.steps[-1].reward
        assert step["tool_calls"] == decision.completion.message.to_wire()["tool_calls"]
        assert step["info"]["executed"] == [one.action for one in decision.steps]
        assert step["info"]["step_rewards"] == [one.reward for one in decision.steps]
    assert [step["done"] for step in trajectory["steps"]] == [False, False, True]
    assert [step["truncated"] for step in trajectory["steps"]] == [False, False, True]
    assert trajectory["final"]["info"] == {"status": "truncated", "cause": "max_decisions"}
    assert set(answer["metrics"]) == {
        "episode_returns", "mean_return", "num_steps", "num_episodes", "outcome_score", "events_score", "details",
    }  # fmt: skip
    assert answer["metrics"]["num_steps"] == 15


async def test_the_metrics_are_four_different_numbers(hosted):
    """Kind absolute pays repeats, lambda adds 0.5 where something is new; the outcome knows neither."""
    async with hosted() as app:
        answer = await app.played(
            policy={"policy_name": "expert", "config": {"max_llm_calls": 6}},
            env__config={"step_rewards": {"kind": "absolute", "indicator_lambda": 0.5}},
        )
        (stored,) = app.episodes()
    metrics, found = answer["metrics"], records(answer)
    new = sum(record["unique_delta"] > 0 for record in found)
    assert metrics["events_score"] == sum(record["ach_delta"] for record in found)
    assert metrics["episode_returns"] == [metrics["events_score"] + 0.5 * new] == [metrics["mean_return"]]
    assert metrics["outcome_score"] == stored.outcome == len(stored.event_counts) > 0
    assert metrics["details"]["environment_return"] == stored.environment_return
    assert metrics["events_score"] > metrics["outcome_score"]  # repeats are paid


async def test_hosted_equals_local(hosted, spec_of):
    """The same plan played here and there gives the same bytes, noise included."""
    spec = spec_of()
    plans = plan_groups(range(2), 2, run_id="run", noise_seed=5)
    baselines = spec.app.baselines(spec.options)
    policy = ScriptedPolicy(spec.app, "random", baselines["random"])
    local = play(plans, spec, policy, Limits(4), StepRewardFlags(), lambda episode: None)
    async with hosted() as app:
        answers = [
            await app.played(
                group_id=plan.group_id,
                member=plan.member,
                noise_seed=5,
                env__seed=plan.seed,
                policy__config__max_llm_calls=4,
                record={"return_trace": True, "trace_format": "full"},
            )
            for plan in plans
        ]
        stored = app.episodes()
    there = [episode_from_json(answer["trace"]["episode"]) for answer in answers]
    assert [episode_bytes(episode) for episode in there] == [episode_bytes(episode) for episode in local]
    assert there == stored
    assert [(episode.group_id, episode.member) for episode in stored] == [(p.group_id, p.member) for p in plans]


@pytest.mark.parametrize("name", ["crafter", "grpo-crafter"])
async def test_the_app_is_known_by_its_name_and_alias(hosted, name):
    async with hosted() as app:
        assert (await app.played(env__env_name=name))["trajectories"][0]["env_id"] == "crafter-1"


async def test_options_come_from_the_request_over_the_servers(hosted):
    async with hosted(**{"task.options.max_actions_per_decision": 4, "task.options.history_calls": 1}) as app:
        await app.played(
            env__config={"options": {"max_actions_per_decision": 2}, "env_params": {"max_steps_per_episode": 3}}
        )
        (stored,) = app.episodes()
    assert stored.task.options["history_calls"] == 1
    assert [len(decision.steps) for decision in stored.decisions] == [2, 1]
    assert (stored.status, stored.cause) == ("truncated", "max_steps")


async def test_one_run_id_twice_makes_two_episodes_and_one_run(hosted):
    async with hosted() as app:
        first, second = await app.played(), await app.played()
        ids = [answer["metrics"]["details"]["episode_id"] for answer in (first, second)]
        assert [episode.episode_id for episode in app.episodes()] == ids
        assert {episode.run_id for episode in app.episodes()} == {"run"}
    assert ids[0] != ids[1]
    groups = [answer["metrics"]["details"]["group_id"] for answer in (first, second)]
    assert groups == [f"alone-{episode_id}" for episode_id in ids]


# -- what to return -------------------------------------------------------------------------------


async def test_trajectories_and_traces_are_returned_as_asked(hosted):
    async with hosted() as app:
        bare = await app.played(record={"trajectories": False})
        compact = (await app.played(record={"return_trace": True}))["trace"]
        full = (await app.played(record={"return_trace": True, "trace_format": "full"}))["trace"]
        stored = app.episodes()
    assert (bare["trajectories"], bare["trace"]) == ([], None)
    assert bare["metrics"]["num_steps"] == 15
    assert compact["session_id"] == stored[1].episode_id
    assert compact["decision_rewards"] == [d.rewards.to_wire() for d in stored[1].decisions if d.rewards]
    assert compact["outcome"] == stored[1].outcome
    assert episode_from_json(full["episode"]) == stored[2]


async def test_what_a_client_says_of_itself_is_stored(hosted, chat):
    async with hosted() as app:
        await app.played(
            mode="eval",
            training_session_id="ts",
            policy__config__trace_correlation_id="tc",
            policy__config__provider="vllm",
            **chat,
        )
        (stored,) = app.episodes()
    said = {"mode": "eval", "training_session_id": "ts", "trace_correlation_id": "tc", "provider": "vllm"}
    assert said.items() <= stored.details.items()


EVERY_FIELD = {
    "run_id": "run",
    "mode": "rl",
    "on_done": "reset",
    "training_session_id": "ts",
    "synth_base_url": "http://127.0.0.1:1",
    "safety": {"max_ops": 100_000, "max_time_s": 3600.0},
    "record": {
        "trajectories": True,
        "logprobs": True,
        "value": True,
        "return_trace": True,
        "trace_format": "compact",
    },
    "env": {
        "env_id": "e",
        "env_name": "crafter",
        "seed": 1,
        "config": {
            "difficulty": "easy",
            "env_params": {"max_steps_per_episode": 100},
            "step_rewards": {
                "enabled": True,
                "mode": "decision_stepwise",
                "kind": "unique",
                "indicator_lambda": 0.0,
                "step_beta": 0.0,
                "horizon": "configured",
            },
            "training_session_id": "ts",
        },
    },
    "policy": {
        "policy_id": "p",
        "policy_name": "chat",
        "config": {
            "model": "m",
            "inference_url": "",
            "api_key": "sk-from-the-client",
            "provider": "vllm",
            "use_tools": True,
            "temperature": 1,
            "top_p": 1.0,
            "max_tokens": 64,
            "max_completion_tokens": 32,
            "max_llm_calls": 2,
            "thinking_mode": "no_think",
            "thinking_budget": 0,
            "step_rewards": {"mode": "decision_stepwise"},
            "trace_correlation_id": "tc",
        },
    },
    "ops": ["agent", "env", {"type": "policy"}, {"op": "step"}, {"type": "model"}, "environment"],
}


async def test_every_field_of_the_contract_is_accepted_and_those_without_effect_are_named(hosted, endpoint):
    body = EVERY_FIELD | {
        "policy": {
            **EVERY_FIELD["policy"],
            "config": {**EVERY_FIELD["policy"]["config"], "inference_url": endpoint.url},
        }
    }
    async with hosted() as app:
        answer = await app.played(body)
    details = answer["metrics"]["details"]
    assert set(details["ignored"]) == {
        "on_done",
        "synth_base_url",
        "env.env_id",
        "env.config.difficulty",
        "env.config.training_session_id",
        "policy.policy_id",
        "policy.config.api_key",
        "policy.config.thinking_mode",
        "policy.config.thinking_budget",
        "record.value",
        "record.logprobs",
    }
    assert details["max_decisions"] == 2
    assert details["max_time_s"] == 600  # the server's own limit is below the one asked for
    assert endpoint.received[0].body["max_tokens"] == 32
    assert "sk-from-the-client" not in str([endpoint.received, answer])


async def test_settings_of_a_model_mean_nothing_to_a_scripted_player(hosted):
    async with hosted() as app:
        answer = await app.played(policy__config__temperature=0.5, policy__config__use_tools=False)
        plain = await app.played()
    assert answer["metrics"]["details"]["ignored"] == ["policy.config.temperature", "policy.config.use_tools"]
    assert plain["metrics"]["details"]["ignored"] == []


# -- step rewards ---------------------------------------------------------------------------------

OFF = {"mode": "off"}
SPARSE = {"mode": "env_sparse"}


@pytest.mark.parametrize(
    "step_rewards", [OFF, {"enabled": False}, {"step_rewards_enabled": False, "mode": "env_sparse"}]
)
async def test_off_leaves_no_record_anywhere(hosted, step_rewards):
    async with hosted() as app:
        answers = [
            await app.played(
                policy={"policy_name": "expert", "config": {"max_llm_calls": 4}},
                env__config={"step_rewards": step_rewards},
                record={"return_trace": True, "trace_format": trace_format},
            )
            for trace_format in ("compact", "full")
        ]
        stored = app.episodes()
    assert "decision_rewards" not in keys_of(answers)
    assert all(decision.rewards is None for episode in stored for decision in episode.decisions)
    rewards = [step["reward"] for step in answers[0]["trajectories"][0]["steps"]]
    assert rewards == [0, 0, 0, answers[0]["metrics"]["outcome_score"]]
    assert answers[0]["metrics"]["episode_returns"] == [answers[0]["metrics"]["outcome_score"]]
    assert answers[0]["metrics"]["events_score"] is None


async def test_env_sparse_pays_the_steps_own_rewards_and_records_nothing(hosted):
    async with hosted() as app:
        answer = await app.played(
            policy={"policy_name": "expert", "config": {"max_llm_calls": 4}}, env__config={"step_rewards": SPARSE}
        )
    assert "decision_rewards" not in keys_of(answer)
    steps = answer["trajectories"][0]["steps"]
    assert [step["reward"] for step in steps] == [sum(step["info"]["step_rewards"]) for step in steps]
    assert answer["metrics"]["mean_return"] == answer["metrics"]["details"]["environment_return"] != 0


async def test_decision_stepwise_has_a_record_per_decision_unreadable_ones_included(hosted, endpoint, chat):
    endpoint.plan(endpoint.call("noop"), endpoint.completion({"content": "no call"}, "stop"))
    async with hosted() as app:
        answer = await app.played(**chat)
    assert [record["turn"] for record in records(answer)] == [1, 2, 3]
    assert records(answer)[1] == {"turn": 2, "ach_delta": 0, "unique_delta": 0, "all": [], "unique": []}
    broken = answer["trajectories"][0]["steps"][1]
    assert broken["info"]["parse_failure"]["reason"] == "no_tool_call"
    assert (broken["info"]["executed"], broken["tool_calls"], broken["reward"]) == ([], [], 0)


async def test_flags_come_from_env_from_policy_or_from_both(hosted):
    short = {
        "mode": "decision_stepwise",
        "kind": "absolute",
        "indicator_lambda": 1,
        "step_beta": 0.5,
        "horizon": "episode",
    }
    long = {
        "step_rewards_mode": "decision_stepwise",
        "event_rewards_kind": "absolute",
        "step_rewards_indicator_lambda": 1.0,
        "step_rewards_beta": 0.5,
        "step_rewards_horizon": "episode",
    }
    async with hosted() as app:
        await app.played(env__config={"step_rewards": short})
        await app.played(policy__config__step_rewards=long)
        await app.played(env__config={"step_rewards": short}, policy__config__step_rewards=long)
        await app.played(
            env__config={"step_rewards": {"kind": "absolute"}}, policy__config__step_rewards={"step_beta": 2}
        )
        flags = [episode.flags for episode in app.episodes()]
    asked = StepRewardFlags("decision_stepwise", "absolute", 1.0, 0.5, "episode")
    assert flags[:3] == [asked] * 3
    assert flags[3] == StepRewardFlags(kind="absolute", beta=2.0)


async def test_without_any_the_servers_own_hold_and_a_request_replaces_them_whole(hosted):
    toml = {"training.event_rewards_kind": "absolute", "rollout.step_rewards_indicator_lambda": 0.5}
    async with hosted(**toml) as app:
        await app.played()
        await app.played(env__config={"step_rewards": {}})
        await app.played(env__config={"step_rewards": OFF})
        flags = [episode.flags for episode in app.episodes()]
    own = StepRewardFlags(kind="absolute", indicator_lambda=0.5)
    assert flags == [own, own, StepRewardFlags(mode="off")]


@pytest.mark.parametrize(
    ("env", "policy", "field", "message"),
    [
        (OFF, SPARSE, "policy.config.step_rewards.mode", "differently"),
        ({"mode": "on"}, None, "env.config.step_rewards.mode", "'off', 'decision_stepwise' or 'env_sparse'"),
        ({"step_rewards_mode": 3}, None, "env.config.step_rewards.step_rewards_mode", "'off'"),
        (None, {"kind": "all"}, "policy.config.step_rewards.kind", "'unique' or 'absolute'"),
        (None, {"indicator_lambda": -1}, "policy.config.step_rewards.indicator_lambda", "greater than or equal to 0"),
        ({"indicator_lambda": "0"}, None, "env.config.step_rewards.indicator_lambda", "valid number"),
        ({"enabled": 1}, None, "env.config.step_rewards.enabled", "valid boolean"),
        ({"beta": 1}, None, "env.config.step_rewards.beta", "unknown field"),
        ({"mode": "off", "step_beta": 1}, None, "env.config.step_rewards.step_beta", "no effect in this mode"),
        ({"mode": "off", "step_rewards_mode": "off"}, None, "env.config.step_rewards.step_rewards_mode", ""),
    ],
)
async def test_flags_that_cannot_be_are_refused_by_the_name_they_were_sent_under(hosted, env, policy, field, message):
    async with hosted() as app:
        refused = await app.rollout(env__config={"step_rewards": env}, policy__config__step_rewards=policy)
        assert app.episodes() == []
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["field"] == field
    assert message in refused.json()["error"]["message"]


# -- limits and operations ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "decisions"),
    [
        ({}, 20),
        ({"ops": ["agent", "env"] * 4}, 4),
        ({"ops": ["policy", "environment", "model", "step"]}, 2),
        ({"ops": [{"type": "agent"}, {"op": "env"}, {"op": "policy", "extra": 1}]}, 2),
        ({"ops": ["agent", "env"] * 4, "policy__config__max_llm_calls": 3}, 3),
        ({"ops": ["agent", "env"] * 2, "policy__config__max_llm_calls": 9}, 2),
        ({"safety": {"max_ops": 7}}, 3),
        ({"safety": {"max_ops": 2}}, 1),
        ({"safety": {"max_ops": 100_000}}, 20),
        ({"safety": {"max_ops": 100_000}, "policy__config__max_llm_calls": 30}, 30),
    ],
)
async def test_the_turn_limit_is_the_smallest_one_asked_for(hosted, body_of, changes, decisions):
    body = body_of(**{"policy__config": {}, **changes})
    async with hosted() as app:
        answer = await app.played(body)
    assert answer["metrics"]["details"]["max_decisions"] == decisions
    assert answer["trajectories"][0]["length"] == decisions
    assert answer["ops_executed"] == 2 * decisions


@pytest.mark.parametrize("policy", ["random", "expert"])
async def test_without_a_policy_the_servers_own_plays(hosted, body_of, policy):
    body = body_of()
    del body["policy"]["policy_name"]
    async with hosted(**{"policy.name": policy}) as app:
        assert (await app.played(body))["trajectories"][0]["policy_id"] == policy


async def test_death_ends_an_episode_as_done_and_not_as_truncated(hosted):
    """Fifty random actions a decision on seed 1: the player does not live long."""
    options = {"min_actions_per_decision": 50, "max_actions_per_decision": 50}
    async with hosted(**{"server.max_decisions": 200}) as app:
        answer = await app.played(
            env__config={"options": options}, policy={"policy_name": "random", "config": {"max_llm_calls": 200}}
        )
        (stored,) = app.episodes()
    last = answer["trajectories"][0]["steps"][-1]
    assert (stored.status, stored.terminated, stored.truncated) == ("ok", True, False)
    assert (last["done"], last["truncated"]) == (True, False)
    assert answer["trajectories"][0]["length"] < 200
    assert last["obs"]["inventory"]["health"] == 0
