"""The reading routes, and who may read them."""

from __future__ import annotations

import os
import re

import pytest

from task_app import __version__
from task_app.codehash import code_hash
from task_app.core.errors import ConfigError

pytestmark = pytest.mark.anyio
KEY = "ek-1234567890abcdef"
ENVIRON = {"ENVIRONMENT_API_KEY": KEY}


async def test_root_and_health_are_open_and_the_rest_is_not(hosted):
    async with hosted(ENVIRON) as app:
        root, health = await app.http.get("/"), await app.http.get("/health")
        assert root.json()["task"] == "crafter"
        assert health.json() == {
            "healthy": True,
            "status": "healthy",
            "service": "crafter-task-app",
            "version": __version__,
            "task": "crafter",
            "code_hash": code_hash(),
            "pid": os.getpid(),
            "server_pid": os.getpid(),
            "ready": True,
            "queue": {"running": 0, "waiting": 0, "max_running": 8, "max_waiting": 64},
            "store": {"ok": True},
        }
        for method, path in [("GET", "/info"), ("GET", "/task_info"), ("POST", "/rollout"), ("GET", "/openapi.json"),
                             ("GET", "/nothing"), ("POST", "/"), ("POST", "/health")]:  # fmt: skip
            refused = await app.http.request(method, path)
            assert refused.status_code == 401, path
            assert "ek-1234" not in refused.text


async def test_either_header_reaches_every_route(hosted):
    async with hosted(ENVIRON) as app:
        for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
            app.http.headers = headers
            assert [(await app.http.get(path)).status_code for path in ("/info", "/task_info")] == [200, 200]
            assert (await app.rollout()).status_code == 200


async def test_the_variable_of_the_key_is_the_configs_and_blank_is_none(hosted):
    async with hosted({"MY_KEY": " k "}, **{"server.api_key_env": "MY_KEY"}) as app:
        assert (await app.http.get("/info")).status_code == 401
        assert (await app.http.get("/info", headers={"X-API-Key": "k"})).status_code == 200
    async with hosted({"ENVIRONMENT_API_KEY": "  "}) as app:
        assert (await app.http.get("/info")).status_code == 200


async def test_info_names_the_task_and_how_it_is_played(hosted):
    async with hosted(**{"task.options.max_actions_per_decision": 3, "training.step_rewards_beta": 0.5}) as app:
        info = (await app.http.get("/info")).json()
    assert info["task"]["name"] == "crafter"
    assert info["options"]["max_actions_per_decision"] == 3
    assert info["tools"][0]["function"]["parameters"]["properties"]["actions"]["maxItems"] == 3
    assert info["policies"] == ["chat", "expert", "planner", "random"]
    assert info["step_rewards"] == {
        "mode": "decision_stepwise",
        "kind": "unique",
        "indicator_lambda": 0.0,
        "step_beta": 0.5,
        "horizon": "configured",
    }
    assert len(info["actions"]) == 17
    assert len(info["events"]) == 22
    assert re.fullmatch(r"[0-9a-f]{16}", info["prompt_hash"])


async def test_task_info_shows_each_seeds_own_world(hosted):
    async with hosted() as app:
        plain = (await app.http.get("/task_info")).json()
        found = (await app.http.get("/task_info", params={"seed": [1, 2]})).json()
    assert "instances" not in plain
    one, two = found["instances"]
    assert (one["seed"], two["seed"]) == (1, 2)
    assert one["world"] != two["world"]
    assert sum(material["tiles"] for material in one["world"].values()) == 64 * 64


@pytest.mark.parametrize("query", ["seed=-1", "seed=x", "seed=2147483647", "seed=1&seed=false", "sede=1", "seed="])
async def test_task_info_refuses_what_is_no_seed(hosted, query):
    async with hosted() as app:
        refused = await app.http.get(f"/task_info?{query}")
    assert refused.status_code == 422
    assert refused.json()["error"]["field"].split(".")[0] == query.split("=")[0]


async def test_errors_are_json_on_every_path(hosted):
    async with hosted() as app:
        answers = [
            await app.http.get("/nothing"),
            await app.http.get("/rollout"),
            await app.http.post("/rollout/", json={}),
            await app.http.get("/docs"),
            await app.http.post("/rollout", content=b"x" * 2_000_000),
        ]
    assert [answer.status_code for answer in answers] == [404, 405, 404, 404, 413]
    assert all(set(answer.json()["error"]) == {"code", "message", "field"} for answer in answers)


async def test_the_schema_names_every_field_of_the_contract(hosted):
    async with hosted() as app:
        schemas = (await app.http.get("/openapi.json")).json()["components"]["schemas"]
    fields = {name for schema in schemas.values() for name in schema.get("properties", {})}
    contract = """run_id mode on_done training_session_id synth_base_url safety max_ops max_time_s record trajectories
        logprobs value return_trace trace_format env env_id env_name seed config difficulty env_params
        max_steps_per_episode step_rewards policy policy_id policy_name model inference_url api_key provider use_tools
        temperature top_p max_tokens max_completion_tokens max_llm_calls thinking_mode thinking_budget
        trace_correlation_id ops"""
    assert set(contract.split()) <= fields


async def test_names_that_cannot_be_served_are_refused_before_any_io(hosted, tmp_path):
    with pytest.raises(ConfigError, match="unknown task app 'crafty'; did you mean 'crafter'"):
        async with hosted(**{"task.app": "crafty"}):
            pass
    assert not (tmp_path / "t.db").exists()


async def test_a_bug_is_500_without_its_text(hosted, monkeypatch):
    async with hosted() as app:
        monkeypatch.setattr(app.app.state.service, "describe", lambda: {}["secret"])
        failed = await app.http.get("/info")
    assert failed.status_code == 500
    assert failed.json()["error"]["code"] == "internal"
    assert "secret" not in failed.text
