"""What `/rollout` refuses: the field is named, the input never comes back, nothing is played."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
MARK = "MARK-7c1e"
MARKED_HOST = "127.11.22.33"

# change → field named
BAD: list[tuple[dict[str, Any], str]] = [
    ({"run_id": None}, "run_id"),
    ({"run_id": ""}, "run_id"),
    ({"run_id": 7}, "run_id"),
    ({"run_id": "x" * 201}, "run_id"),
    ({"env": None}, "env"),
    ({"env__seed": False}, "env.seed"),
    ({"env__seed": "1"}, "env.seed"),
    ({"env__seed": 1.0}, "env.seed"),
    ({"env__seed": -1}, "env.seed"),
    ({"env__seed": 2**31 - 1}, "env.seed"),
    ({"env__seed": None}, "env.seed"),
    ({"env__env_name": "chess"}, "env.env_name"),
    ({"env__sede": 1}, "env.sede"),
    ({"env__config__options": {"max_actions": 5}}, "env.config.options.max_actions"),
    ({"env__config__options": {"max_actions_per_decision": 0}}, "env.config.options.max_actions_per_decision"),
    ({"env__config__options": {"max_actions_per_decision": "5"}}, "env.config.options.max_actions_per_decision"),
    ({"env__config__env_params": {"max_steps_per_episode": 0}}, "env.config.env_params.max_steps_per_episode"),
    ({"env__config__env_params": {"max_steps_per_episode": 10**9}}, "env.config.env_params.max_steps_per_episode"),
    ({"policy__policy_name": "expret"}, "policy.policy_name"),
    ({"policy__policy_name": "embedded"}, "policy.policy_name"),
    ({"policy__policy_name": "chat"}, "policy.config.model"),
    ({"policy__policy_name": "chat", "policy__config__model": "m"}, "policy.config.inference_url"),
    ({"policy__config__temperature": 2.1}, "policy.config.temperature"),
    ({"policy__config__temperature": "1"}, "policy.config.temperature"),
    ({"policy__config__top_p": 0}, "policy.config.top_p"),
    ({"policy__config__max_tokens": 0}, "policy.config.max_tokens"),
    ({"policy__config__max_tokens": 10**9}, "policy.config.max_tokens"),
    ({"policy__config__max_llm_calls": 0}, "policy.config.max_llm_calls"),
    ({"policy__config__max_llm_calls": -3}, "policy.config.max_llm_calls"),
    ({"policy__config__max_llm_calls": 1_001}, "policy.config.max_llm_calls"),
    ({"policy__config__max_llm_calls": 10**30}, "policy.config.max_llm_calls"),
    ({"policy__config__max_llm_calls": 10**9, "ops": ["agent"]}, "policy.config.max_llm_calls"),
    ({"policy__config__max_llm_calls": True}, "policy.config.max_llm_calls"),
    ({"policy__config__extra": 1}, "policy.config.extra"),
    ({"ops": ["agent", "jump"]}, "ops.1"),
    ({"ops": [{"type": ["agent"]}]}, "ops.0"),
    ({"ops": [{}]}, "ops.0"),
    ({"ops": [None]}, "ops.0"),
    ({"ops": [["agent"]]}, "ops.0"),
    ({"ops": ["env", "env"]}, "ops"),
    ({"ops": "agent"}, "ops"),
    ({"ops": ["agent"] * 1_001}, "ops"),
    ({"ops": ["agent"] * 20_001}, "ops"),
    ({"record": {"trace_format": "xml"}}, "record.trace_format"),
    ({"record": {"return_trace": 1}}, "record.return_trace"),
    ({"safety": {"max_ops": 1}}, "safety.max_ops"),
    ({"safety": {"max_ops": -1}}, "safety.max_ops"),
    ({"safety": {"max_ops": 10**9}}, "safety.max_ops"),
    ({"safety": {"max_time_s": 0}}, "safety.max_time_s"),
    ({"safety": {"max_time_s": -1}}, "safety.max_time_s"),
    ({"safety": {"max_time_s": 10**9}}, "safety.max_time_s"),
    ({"on_done": "explode"}, "on_done"),
    ({"member": -1}, "member"),
    ({"noise_seed": -1}, "noise_seed"),
    ({"group_id": ""}, "group_id"),
    ({"runid": "x"}, "runid"),
]


@pytest.mark.parametrize(("changes", "field"), BAD, ids=lambda value: str(value)[:60])
async def test_a_bad_field_is_named_and_nothing_is_played(hosted, changes, field):
    async with hosted() as app:
        refused = await app.rollout(**changes)
        assert app.episodes() == []
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["code"] == "invalid"
    assert refused.json()["error"]["field"] == field
    assert refused.json()["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
async def test_numbers_that_are_none_are_refused(hosted, number):
    body = f'{{"run_id": "a", "env": {{"seed": 1}}, "safety": {{"max_time_s": {number}}}}}'
    async with hosted() as app:
        refused = await app.http.post("/rollout", content=body, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "safety.max_time_s")


async def test_unknown_names_are_answered_with_the_known_ones(hosted):
    async with hosted() as app:
        policy = (await app.rollout(policy__policy_name="expret")).json()["error"]["message"]
        env = (await app.rollout(env__env_name="chess")).json()["error"]["message"]
        op = (await app.rollout(ops=["jump"])).json()["error"]["message"]
    assert "expert" in policy
    assert "random" in policy
    assert "crafter" in env
    assert all(name in op for name in ("agent", "policy", "model", "env", "environment", "step"))


FULL: dict[str, Any] = {
    "run_id": "run",
    "group_id": "g",
    "member": 0,
    "noise_seed": 0,
    "mode": "rl",
    "on_done": "terminate",
    "training_session_id": "t",
    "synth_base_url": "u",
    "safety": {"max_ops": 4, "max_time_s": 60.0},
    "record": {"trajectories": True, "logprobs": True, "value": True, "return_trace": True, "trace_format": "full"},
    "env": {
        "env_id": "e",
        "env_name": "crafter",
        "seed": 1,
        "config": {
            "options": {"max_actions_per_decision": 5, "night_draws": "stock"},
            "difficulty": "d",
            "env_params": {"max_steps_per_episode": 10},
            "step_rewards": {"enabled": True, "mode": "off", "kind": "unique", "horizon": "configured"},
            "training_session_id": "t",
        },
    },
    "policy": {
        "policy_id": "p",
        "policy_name": "chat",
        "config": {
            "model": "m",
            "inference_url": "http://127.0.0.1:9",
            "api_key": "k",
            "provider": "p",
            "use_tools": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 5,
            "max_completion_tokens": 5,
            "max_llm_calls": 2,
            "thinking_mode": "t",
            "thinking_budget": 1,
            "step_rewards": {"step_rewards_indicator_lambda": 0.0, "step_rewards_beta": 0.0},
            "trace_correlation_id": "c",
        },
    },
    "ops": ["agent", {"type": "env"}],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside `value`, containers included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from places(one, (*path, key))


def marked(path: tuple[Any, ...], *, as_key: bool) -> dict[str, Any]:
    """`FULL` with the mark as the value at `path`, or as the name of an unknown field beside it."""
    body = copy.deepcopy(FULL)
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    if as_key:
        place[MARK] = place.pop(path[-1])
    else:
        place[path[-1]] = MARK
    return body


async def test_no_error_repeats_what_was_sent(hosted):
    """The mark as every value and as every field's name; the endpoint named is down, so all of them fail."""
    bodies = [marked(path, as_key=False) for path in places(FULL)]
    bodies += [marked(path, as_key=True) for path in places(FULL) if isinstance(path[-1], str)]
    bodies += [FULL | {"policy": {**FULL["policy"], "config": {**FULL["policy"]["config"], "inference_url": url}}}
               for url in (f"http://{MARKED_HOST}:9", f"http://{MARK}@127.0.0.1:9", f"http://127.0.0.1:9/?x={MARK}",
                           f"http://127.0.0.1:{MARK}", f"{MARK}://x")]  # fmt: skip
    async with hosted(**{"policy.tries": 1}) as app:
        answers = [await app.rollout(body) for body in bodies]
        answers.append(await app.http.get("/task_info", params={"seed": MARK}))
        answers.append(await app.http.get("/task_info", params={MARK: "1"}))
        answers.append(await app.http.get(f"/{MARK}", headers={"X-API-Key": MARK}))
        stored = app.episodes()
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {404, 422, 503}
    assert len(stored) == statuses.count(503) > 10
    assert not [answer.text for answer in answers if MARK.lower() in answer.text.lower() or MARKED_HOST in answer.text]
    assert all(answer.json()["error"]["message"] for answer in answers)
