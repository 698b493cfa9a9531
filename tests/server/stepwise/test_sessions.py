"""The step-wise routes inside the app: what a session is told, what is stored, what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from task_app.core.wire import episode_bytes
from task_app.store import TraceStore
from task_app.verify import verify_database

pytestmark = pytest.mark.anyio
LIMIT = {"policy": {"config": {"max_llm_calls": 3}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "interact_many", "arguments": '{"actions": ["do"]}'}}


async def test_an_episode_played_by_a_client_is_stored_and_verifies(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(**LIMIT)
        assert begun["tools"][0]["function"]["name"] == "interact_many"
        assert [message["role"] for message in begun["messages"]] == ["system", "user"]
        assert (begun["step_idx"], begun["done"], begun["reward"], begun["max_decisions"]) == (0, False, None, 3)
        answers = [
            await http.stepped(begun["env_id"], action="noop"),
            await http.stepped(begun["env_id"], action=["do", "move_left"]),
            await http.stepped(begun["env_id"], tool_calls=[CALL]),
        ]
        (stored,) = app.episodes()
    assert [answer["info"]["executed"] for answer in answers] == [["noop"], ["do", "move_left"], ["do"]]
    assert [answer["info"]["meta"]["turn"] for answer in answers] == [1, 2, 3]
    assert [(a["done"], a["truncated"], "ending" in a) for a in answers] == [(False, False, False)] * 2 + [(True,) * 3]
    assert answers[0]["observation"].keys() >= {"inventory", "achievements_status", "reward_last_step"}
    assert (answers[1]["messages"][1]["role"], answers[2]["messages"]) == ("user", [])
    assert (stored.episode_id, stored.policy, stored.cause) == (begun["env_id"], "client", "max_decisions")
    assert answers[2]["ending"]["outcome_score"] == stored.outcome
    assert answers[2]["ending"]["rewards"] == [answer["reward"] for answer in answers]
    assert verify_database(app.db).passed


@pytest.mark.parametrize("place", ["config", "policy"])
@pytest.mark.parametrize(
    "names", [("kind", "indicator_lambda"), ("event_rewards_kind", "step_rewards_indicator_lambda")]
)
async def test_flags_come_in_either_place_by_either_name_and_records_are_those_of_rollout(hosted, client, place, names):
    flags = {names[0]: "absolute", names[1]: 0.5}
    config = {"config": {"step_rewards": flags}} if place == "config" else {}
    policy = {"max_llm_calls": 8} | ({"step_rewards": flags} if place == "policy" else {})
    async with hosted() as app:
        http = client(app)
        rollout = await app.played(
            env={"seed": 5, "config": {"step_rewards": flags}},
            policy={"policy_name": "expert", "config": {"max_llm_calls": 8}},
        )
        begun = await http.begun(seed=5, policy={"config": policy}, **config)
        steps = rollout["trajectories"][0]["steps"]
        answers = [await http.stepped(begun["env_id"], tool_calls=step["tool_calls"]) for step in steps]
        by_rollout, by_client = app.episodes()
    assert sum(step["reward"] for step in steps) > 0.5
    assert [(a["info"], a["reward"], a["observation"]) for a in answers] == [
        (step["info"], step["reward"], step["obs"]) for step in steps
    ]
    assert by_rollout.flags == by_client.flags
    assert answers[-1]["ending"]["episode_return"] == rollout["metrics"]["episode_returns"][0]
    assert [d.messages for d in by_rollout.decisions] == [d.messages for d in by_client.decisions]


async def test_turns_are_one_based_in_every_record(hosted, client):
    """Known elsewhere: a turn is 1-based in one record and 0-based in another."""
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(**LIMIT)
        answers = [await http.stepped(begun["env_id"], action="noop") for _ in range(3)]
        (stored,) = app.episodes()
    assert [answer["info"]["meta"]["turn"] for answer in answers] == [1, 2, 3]
    assert [answer["info"]["meta"]["decision_rewards"]["turn"] for answer in answers] == [1, 2, 3]
    assert [(d.turn, d.rewards.turn) for d in stored.decisions if d.rewards] == [(1, 1), (2, 2), (3, 3)]


async def test_without_flags_no_record_and_the_outcome_comes_with_the_last_decision(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(config={"step_rewards": {"enabled": False}}, **LIMIT)
        answers = [await http.stepped(begun["env_id"], action=["do"] * 5) for _ in range(3)]
    assert all("decision_rewards" not in answer["info"]["meta"] for answer in answers)
    assert [answer["reward"] for answer in answers] == [0.0, 0.0, answers[-1]["ending"]["outcome_score"]]


async def test_a_reward_that_depends_on_the_end_is_unknown_until_then(hosted, client):
    flags = {"horizon": "episode", "step_beta": 1.0}
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(seed=5, config={"step_rewards": flags}, policy={"config": {"max_llm_calls": 4}})
        rollout = await app.played(
            env={"seed": 5, "config": {"step_rewards": flags}},
            policy={"policy_name": "expert", "config": {"max_llm_calls": 4}},
        )
        steps = rollout["trajectories"][0]["steps"]
        answers = [await http.stepped(begun["env_id"], tool_calls=step["tool_calls"]) for step in steps]
    assert [answer["reward"] for answer in answers[:-1]] == [
        None if step["info"]["meta"]["decision_rewards"]["unique_delta"] else 0.0 for step in steps[:-1]
    ]
    assert None in [answer["reward"] for answer in answers[:-1]]
    assert answers[-1]["ending"]["rewards"] == [step["reward"] for step in steps]


async def test_terminating_stores_what_was_played_as_aborted_and_can_be_said_twice(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        await http.stepped(begun["env_id"], action=["noop"])
        ending = await http.ended(begun["env_id"])
        assert ending == await http.ended(begun["env_id"])
        (stored,) = app.episodes()
    assert (ending["status"], ending["cause"]) == ("aborted", "terminated by its client")
    assert ending["outcome_score"] is ending["episode_return"] is ending["rewards"] is None
    assert (stored.status, len(stored.decisions)) == ("aborted", 1)


async def test_a_step_after_the_end_is_a_conflict_and_adds_nothing(hosted, client):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(policy={"config": {"max_llm_calls": 1}})
        await http.stepped(begun["env_id"], action=["noop"])
        refused = await http.post("/env/crafter/step", env_id=begun["env_id"], action=["noop"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "over")
        assert refused.json()["error"]["ending"] == await http.ended(begun["env_id"])
        assert [len(episode.decisions) for episode in app.episodes()] == [1]


async def test_a_step_sent_again_with_its_request_id_is_played_once_and_answered_alike(hosted, client):
    """Its answer was lost on the way: the client cannot know whether it was played."""
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(**LIMIT)
        bodies = [{"action": ["do", "move_left"], "request_id": f"r{turn}"} for turn in range(3)]
        first = []
        for body in bodies:
            first.append(await http.stepped(begun["env_id"], **body))
            assert await http.stepped(begun["env_id"], **body) == first[-1]
        assert [await http.stepped(begun["env_id"], **body) for body in bodies] == first
        assert [answer["step_idx"] for answer in first] == [1, 2, 3]
        assert first[-1]["ending"]["cause"] == "max_decisions"
        assert [len(episode.decisions) for episode in app.episodes()] == [3]
        refused = await http.post("/env/crafter/step", env_id=begun["env_id"], action="noop", request_id="r1")
        assert (refused.status_code, refused.json()["error"]["field"]) == (409, "request_id")
    assert verify_database(app.db).passed


async def test_request_ids_are_each_sessions_own_and_none_is_no_id(hosted, client):
    async with hosted() as app:
        http = client(app)
        one, other = (await http.begun())["env_id"], (await http.begun())["env_id"]
        for env_id in (one, other):
            assert (await http.stepped(env_id, action="noop", request_id="r"))["step_idx"] == 1
            assert (await http.stepped(env_id, action="noop"))["step_idx"] == 2
            assert (await http.stepped(env_id, action="noop"))["step_idx"] == 3


async def test_a_refused_action_uses_up_no_request_id(hosted, client):
    async with hosted() as app:
        http = client(app)
        env_id = (await http.begun())["env_id"]
        assert (await http.post("/env/crafter/step", env_id=env_id, action="fly", request_id="r")).status_code == 422
        assert (await http.stepped(env_id, action="noop", request_id="r"))["step_idx"] == 1


async def test_the_lines_of_requests_name_the_session(hosted, client, caplog):
    caplog.set_level("INFO", "task_app.http.logs")
    async with hosted() as app:
        http = client(app)
        env_id = (await http.begun())["env_id"]
        policy_id = (await http.post("/policy/create", policy_name="random")).json()["policy_id"]
        await http.decided(policy_id, env_id)
        await http.stepped(env_id, action="noop")
        await http.ended(env_id)
        await http.post("/env/crafter/step", env_id=env_id, action="noop")
        await http.post("/env/crafter/step", env_id="a\nforged line", action="noop")
    lines = [record.facts for record in caplog.records if record.name == "task_app.http.logs"]
    assert [(line["route"].rpartition("/")[2], line["status"], line.get("env_id")) for line in lines] == [
        ("initialize", 200, env_id), ("create", 200, None), ("step", 200, env_id), ("step", 200, env_id),
        ("terminate", 200, env_id), ("step", 409, env_id), ("step", 404, None),
    ]  # fmt: skip


async def test_what_a_model_said_is_recorded_whatever_it_is(hosted, client):
    """Known elsewhere: a refused answer is replaced by invented actions that then look like the model's."""
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(policy={"config": {"max_llm_calls": 2}})
        bad = {"role": "assistant", "content": "I fly.", "tool_calls": [{"tool": "fly", "args": {}}]}
        answer = await http.stepped(begun["env_id"], message=bad)
        await http.stepped(begun["env_id"], message={"content": "Nothing at all."})
        (stored,) = app.episodes()
    assert (answer["info"]["executed"], answer["reward"]) == ([], 0.0)
    assert answer["info"]["parse_failure"]["reason"] == "unknown_tool"
    assert answer["info"]["meta"]["decision_rewards"]["unique_delta"] == 0
    assert [decision.failure.reason for decision in stored.decisions] == ["unknown_tool", "no_tool_call"]
    assert stored.decisions[0].completion.message.content == "I fly."
    assert stored.steps == ()


BAD = [
    ({"action": ["fly"]}, "action", "unknown_action; nothing was executed; allowed actions: noop, move_left"),
    ({"action": ["noop"] * 20}, "action", "interact_many with 1 to 5 actions"),
    ({"action": [3]}, "action", "actions are named by text"),
    ({"action": {"moves": []}}, "action", 'the one key "actions" or "tool_calls"'),
    ({"action": {"actions": []}}, "action.actions", "not empty"),
    ({"action": {"tool_calls": [{"tool": "fly", "args": {}}]}}, "action", "unknown_tool"),
    ({"action": 7}, "action", "valid"),
    ({}, "action", "exactly one of action, tool_calls and message"),
    ({"action": "noop", "tool_calls": [CALL]}, "action", "exactly one of"),
    ({"tool_calls": []}, "action", "exactly one of"),
    ({"tool_calls": ["noop"]}, "tool_calls.0", "valid dictionary"),
    ({"tool_calls": [CALL, CALL]}, "tool_calls", "many_tool_calls"),
    ({"tool_calls": [{"tool": "interact_many"}]}, "tool_calls.0", "a tool call is"),
    ({"tool_calls": [{"function": {"name": "interact_many", "arguments": 3}}]}, "tool_calls.0", "a tool call is"),
    ({"message": {"content": 3}}, "message", "an assistant message has"),
    ({"message": {"tool_calls": ["x"]}}, "message.tool_calls.0", "a tool call is an object"),
    ({"action": "noop", "speed": 2}, "speed", "unknown field"),
]


@pytest.mark.parametrize(("body", "field", "says"), BAD, ids=lambda value: str(value)[:50])
async def test_a_wrong_action_is_named_and_nothing_is_executed(hosted, client, body, field, says):
    """Known elsewhere: 20 actions run though the schema says fewer. Here prompt, schema and code have one limit."""
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        refused = await http.post("/env/crafter/step", env_id=begun["env_id"], **body)
        error = refused.json()["error"]
        assert refused.status_code == 422
        assert error["field"].removesuffix(".str") == field
        assert says in error["message"]
        assert "fly" not in refused.text
        after = await http.stepped(begun["env_id"], action="noop")
    assert (after["step_idx"], after["info"]["meta"]["turn"]) == (1, 1)


@pytest.mark.parametrize("form", [{"tool": "interact_many", "args": {"actions": ["do"]}}, CALL])
async def test_tool_calls_come_in_the_forms_clients_send(hosted, client, form):
    async with hosted() as app:
        http = client(app)
        begun = await http.begun()
        for body in ({"tool_calls": [form]}, {"action": {"tool_calls": [form]}}, {"action": {"actions": ["do"]}}):
            assert (await http.stepped(begun["env_id"], **body))["info"]["executed"] == ["do"]


async def test_unknown_names_and_ids_are_404_and_bad_beginnings_422(hosted, client):
    async with hosted() as app:
        http = client(app)
        for path, body, status, field in [
            ("/env/chess/initialize", {"seed": 1}, 404, "env_name"),
            ("/env/chess/step", {"env_id": "x", "action": "noop"}, 404, "env_name"),
            ("/env/crafter/step", {"env_id": "x", "action": "noop"}, 404, "env_id"),
            ("/env/crafter/terminate", {"env_id": "x"}, 404, "env_id"),
            ("/policy/step", {"policy_id": "x", "env_id": "x"}, 404, "policy_id"),
            ("/policy/create", {"bound_env_id": "x"}, 404, "bound_env_id"),
            ("/env/crafter/initialize", {"seed": -1}, 422, "seed"),
            ("/env/crafter/initialize", {}, 422, "seed"),
            ("/env/crafter/initialize", {"seed": 1, "config": {"options": {"x": 1}}}, 422, "config.options.x"),
            ("/env/crafter/initialize", {"seed": 1, "config": {"step_rewards": {"mode": "x"}}}, 422,
             "config.step_rewards.mode"),
            ("/env/crafter/initialize", {"seed": 1, "policy": {"config": {"max_llm_calls": 10**6}}}, 422,
             "policy.config.max_llm_calls"),
            ("/policy/create", {"policy_name": "expret"}, 422, "policy_name"),
            ("/policy/create", {"policy_name": "chat"}, 422, "config.model"),
        ]:  # fmt: skip
            refused = await http.post(path, **body)
            assert (refused.status_code, refused.json()["error"]["field"]) == (status, field), (path, body)
        assert (await http.begun())["env_id"]
        alias = app.app.state.service.spec.app.aliases[0]
        assert (await http.post(f"/env/{alias}/initialize", seed=1)).status_code == 200


async def test_all_of_it_is_under_the_key(hosted, client):
    async with hosted({"ENVIRONMENT_API_KEY": "ek"}) as app:
        http = client(app)
        for path in ("/env/crafter/initialize", "/env/crafter/step", "/env/crafter/terminate"):
            assert (await http.post(path, seed=1)).status_code == 401
        assert [(await http.post(path)).status_code for path in ("/policy/create", "/policy/step")] == [401, 401]
        app.http.headers = {"Authorization": "Bearer ek"}
        assert (await http.begun())["env_id"]


async def test_fields_without_effect_are_named_and_a_clients_key_is_kept_nowhere(hosted, client):
    config = {"difficulty": "hard", "training_session_id": "ts"}
    policy = {"policy_name": "expert", "config": {"api_key": "sk-secret", "model": "m"}}
    async with hosted() as app:
        http = client(app)
        begun = await http.begun(config=config, policy=policy, parent_env_id="p", rl_run_id="theirs")
        made = await http.post("/policy/create", **policy, mode="rl")
        await http.ended(begun["env_id"])
        (stored,) = app.episodes()
        files = [path.read_bytes() for path in app.db.parent.iterdir() if path.is_file()]
    assert begun["ignored"] == [
        "config.difficulty", "parent_env_id", "policy.config.api_key", "policy.config.model", "policy.policy_name",
    ]  # fmt: skip
    assert made.json()["ignored"] == ["mode", "config.api_key"]
    assert (begun["run_id"], stored.run_id, stored.details["training_session_id"]) == ("theirs", "theirs", "ts")
    assert not any(b"sk-secret" in content for content in files)


async def test_sessions_are_bounded_and_a_place_is_free_when_one_ends(hosted, client):
    async with hosted(**{"server.max_sessions": 2}) as app:
        http = client(app)
        first, _ = await http.begun(), await http.begun()
        refused = await http.post("/env/crafter/initialize", seed=1)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        await http.ended(first["env_id"])
        await http.begun()
        assert (await http.post("/policy/create", policy_name="random")).status_code == 200


async def test_a_session_nobody_uses_is_stored_as_aborted_and_its_place_is_free(hosted, client):
    async with hosted(**{"server.session_ttl_s": 0.3, "server.max_sessions": 1}) as app:
        http = client(app)
        begun = await http.begun()
        await http.stepped(begun["env_id"], action=["noop"])
        async with asyncio.timeout(5):
            while not app.episodes():
                await asyncio.sleep(0.05)
        (stored,) = app.episodes()
        assert (stored.status, stored.cause, len(stored.decisions)) == ("aborted", "not used for 0.3 s", 1)
        again = await http.post("/env/crafter/step", env_id=begun["env_id"], action=["noop"])
        assert again.status_code in (404, 409)
        await http.begun()


async def test_a_server_that_stops_stores_its_sessions(hosted, client):
    async with hosted() as app:
        http = client(app)
        ids = {(await http.begun(seed=seed))["env_id"] for seed in range(2)}
    with TraceStore.open(app.db, read_only=True) as store:
        episodes = list(store.episodes())
    assert {episode.episode_id for episode in episodes} == ids
    assert {(episode.status, episode.cause) for episode in episodes} == {("aborted", "the server stopped")}
    assert verify_database(app.db).passed


async def test_the_id_a_client_holds_is_the_id_in_the_store(hosted, client, tmp_path):
    """Known elsewhere: ids differ between store and registry, so that nothing can be found again."""
    async with hosted(**{"server.trace_dir": str(tmp_path / "sft")}) as app:
        http = client(app)
        begun = await http.begun(policy={"config": {"max_llm_calls": 1}})
        ending = (await http.stepped(begun["env_id"], action=["noop"]))["ending"]
        with TraceStore.open(app.db, read_only=True) as store:
            assert store.episode(begun["env_id"]).episode_id == ending["episode_id"] == begun["env_id"]
    assert ending["trace_file"] == f"{begun['env_id']}.jsonl"
    assert json.loads((tmp_path / "sft" / ending["trace_file"]).read_text())["messages"]


async def test_two_sessions_at_once_are_as_if_alone(hosted, client):
    """Known elsewhere: concurrent rollouts reseed each other."""
    async with hosted() as app:
        http = client(app)
        ids = [(await http.begun(**LIMIT))["env_id"] for _ in range(2)]
        for _ in range(3):
            for env_id in ids:
                await http.stepped(env_id, action=["do", "move_left"])
        one, other = app.episodes()
    assert episode_bytes(one) == episode_bytes(other)
