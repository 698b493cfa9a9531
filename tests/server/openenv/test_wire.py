"""OpenEnv's wire on a real port: every message, its refusals, the bounds, and what is stored."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from task_app.config import load_config
from task_app.core.errors import ConfigError
from task_app.core.types import Episode
from task_app.server.openenv.serve import serve_openenv
from task_app.store import TraceStore
from task_app.verify import verify_database


@dataclass(frozen=True)
class Env:
    """A server in a process of its own, and its database."""

    process: subprocess.Popen[str]
    url: str
    db: Path

    @contextmanager
    def talk(self, **headers: str) -> Iterator[Talk]:
        address = self.url.replace("http", "ws", 1) + "/ws"
        with connect(address, additional_headers=headers, proxy=None) as socket:
            yield Talk(socket)

    def episodes(self, count: int) -> list[Episode]:
        """What is stored, in the order of its begin, once there are `count`."""
        deadline = time.monotonic() + 10
        while True:
            with TraceStore.open(self.db, read_only=True) as store:
                found = sorted(store.episodes(), key=lambda episode: episode.started_at)
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.05)


@dataclass(frozen=True)
class Talk:
    """One connection."""

    socket: ClientConnection

    def say(self, kind: str, **data: Any) -> dict[str, Any]:
        return self.raw(json.dumps({"type": kind} | ({"data": data} if data or kind in ("reset", "step") else {})))

    def raw(self, text: str | bytes) -> dict[str, Any]:
        self.socket.send(text)
        return json.loads(self.socket.recv(timeout=20))


@contextmanager
def serving(db: Path, *arguments: str, **environ: str) -> Iterator[Env]:
    command = [sys.executable, "-m", "task_app", "serve", "crafter", "--openenv", "--port", "0", "--trace-db", str(db)]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | environ)
    assert process.stdout is not None
    try:
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        yield Env(process, address[0], db)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> Iterator[Env]:
    with serving(tmp_path_factory.mktemp("openenv") / "t.db") as running:
        yield running


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Env]]:
    with ExitStack() as stack:
        yield lambda *arguments, **environ: stack.enter_context(serving(tmp_path / "t.db", *arguments, **environ))


# -- what is logged -------------------------------------------------------------------------------


def test_a_line_names_the_connection_and_its_episode(start, capfd):
    env = start("--log", "json")
    with env.talk() as talk:
        episode_id = talk.say("reset", seed=1)["data"]["metadata"]["episode_id"]
    ended, lines = time.monotonic() + 10, []
    while not any(line["method"] == "WS" for line in lines) and time.monotonic() < ended:
        time.sleep(0.05)
        lines += map(json.loads, capfd.readouterr().err.splitlines())
    (line,) = (line for line in lines if line["method"] == "WS")
    assert (line["route"], line["status"], line["episode_id"]) == ("/ws", 101, episode_id)
    assert re.fullmatch("[0-9a-f]{16}", line["request_id"])


# -- an episode -----------------------------------------------------------------------------------


def test_an_episode_over_ws_is_stored_with_the_rewards_that_were_told(start):
    env = start()
    with env.talk() as talk:
        first = talk.say("reset", seed=5, episode_id="mine", max_decisions=3)
        assert first["type"] == "observation"
        assert (first["data"]["reward"], first["data"]["done"]) == (None, False)
        assert [message["role"] for message in first["data"]["observation"]["messages"]] == ["system", "user"]
        assert first["data"]["observation"]["tools"][0]["function"]["name"] == "interact_many"
        assert first["data"]["metadata"]["seed"] == 5
        call = {"tool": "interact_many", "args": {"actions": ["do", "do"]}}
        steps = [
            talk.say("step", actions=["move_left", "do"]),
            talk.say("step", tool_calls=[call]),
        ]
        state = talk.say("state")
        assert (state["data"]["episode_id"], state["data"]["step_count"], state["data"]["seed"]) == ("mine", 2, 5)
        steps.append(talk.say("step", message={"content": "I do nothing."}))
        assert talk.say("state")["data"]["done"] is True
        assert talk.say("step", actions=["noop"])["data"]["code"] == "EXECUTION_ERROR"
    (stored,) = env.episodes(1)
    data = [step["data"] for step in steps]
    assert [step["metadata"]["meta"]["turn"] for step in data] == [1, 2, 3]
    assert [step["metadata"]["meta"]["decision_rewards"] for step in data] == [
        decision.rewards.to_wire() for decision in stored.decisions if decision.rewards
    ]
    assert [step["done"] for step in data] == [False, False, True]
    assert data[2]["metadata"]["ending"]["rewards"] == [step["reward"] for step in data]
    assert data[2]["metadata"]["parse_failure"]["reason"] == "no_tool_call"
    assert all(step["observation"]["metadata"] == step["metadata"] for step in data)
    assert (stored.policy, stored.cause, stored.details["client_episode_id"]) == ("client", "max_decisions", "mine")
    assert verify_database(env.db).passed


def test_the_same_seed_is_the_same_world_and_no_seed_is_another(env):
    with env.talk() as one, env.talk() as other:
        assert one.say("reset", seed=3)["data"]["observation"] | {"metadata": 0} == other.say("reset", seed=3)["data"][
            "observation"
        ] | {"metadata": 0}
        seeds = {one.say("reset")["data"]["metadata"]["seed"] for _ in range(4)}
    assert len(seeds) == 4


def test_flags_are_those_of_the_reset(env):
    with env.talk() as talk:
        talk.say("reset", seed=3, step_rewards={"mode": "env_sparse"})
        told = talk.say("step", actions=["noop"])["data"]
        assert "decision_rewards" not in told["metadata"]["meta"]
        assert told["reward"] == sum(told["metadata"]["step_rewards"])


def test_a_client_that_resets_closes_or_leaves_leaves_an_aborted_episode_and_a_free_place(start):
    env = start("--server.max_sessions=1")
    with env.talk() as talk:
        for _ in range(2):  # without a decision nothing is stored
            talk.say("reset", seed=1)
        talk.say("step", actions=["noop"])
        talk.say("reset", seed=1)
        talk.say("step", actions=["noop"])
        talk.socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            talk.socket.recv(timeout=10)
    assert [episode.cause for episode in env.episodes(2)] == ["reset by its client", "closed by its client"]
    with env.talk() as talk:
        talk.say("reset", seed=1)
        talk.say("step", actions=["noop"])
    left = env.episodes(3)[2]
    assert (left.status, left.cause, left.outcome) == ("aborted", "left by its client", None)
    with env.talk() as talk:
        assert talk.say("state")["type"] == "state"


# -- refusals -------------------------------------------------------------------------------------

BAD = [
    ("{", "INVALID_JSON", None, "JSON object"),
    (b"\x00", "INVALID_JSON", None, "text"),
    ("[]", "VALIDATION_ERROR", None, "JSON object"),
    ('{"type": "jump"}', "UNKNOWN_TYPE", None, "reset, step, state, close, mcp"),
    ('{"type": ["step"]}', "UNKNOWN_TYPE", None, "type is one of"),
    ('{"type": "state", "more": 1}', "VALIDATION_ERROR", None, "nothing else"),
    ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR", "seed", "greater than or equal"),
    ('{"type": "reset", "data": {"seed": "jump"}}', "VALIDATION_ERROR", "seed", "integer"),
    ('{"type": "reset", "data": {"speed": 1}}', "VALIDATION_ERROR", "speed", "unknown field"),
    ('{"type": "reset", "data": {"options": {"jump": 1}}}', "VALIDATION_ERROR", "options.jump", ""),
    ('{"type": "reset", "data": {"step_rewards": {"mode": "jump"}}}', "VALIDATION_ERROR", "step_rewards.mode", "off"),
    ('{"type": "reset", "data": {"max_decisions": 100000}}', "VALIDATION_ERROR", "max_decisions", "at most 1000"),
    ('{"type": "reset", "data": 3}', "VALIDATION_ERROR", "", "valid dictionary"),
    ('{"type": "step", "data": {"actions": ["jump"]}}', "VALIDATION_ERROR", "actions", "allowed actions: noop"),
    ('{"type": "step", "data": {"actions": ["noop", "noop", "noop", "noop", "noop", "noop"]}}',
     "VALIDATION_ERROR", "actions", "1 to 5 actions"),
    ('{"type": "step", "data": {"jump": 1}}', "VALIDATION_ERROR", "jump", "unknown field"),
    ('{"type": "step", "data": {}}', "VALIDATION_ERROR", "actions", "exactly one of"),
    ('{"type": "step"}', "VALIDATION_ERROR", "actions", "exactly one of"),
]  # fmt: skip


def test_what_is_wrong_is_named_in_the_protocols_form_and_the_connection_goes_on(env):
    with env.talk() as talk:
        assert talk.say("step", actions=["noop"])["data"]["code"] == "EXECUTION_ERROR"
        talk.say("reset", seed=1)
        for text, code, field, says in BAD:
            refused = talk.raw(text)
            assert (refused["type"], refused["data"]["code"], refused["data"].get("field")) == ("error", code, field)
            assert says in refused["data"]["message"]
            if field != "jump" and field != "options.jump":  # a field's name is named
                assert "jump" not in json.dumps(refused)
        told = talk.say("step", actions=["noop"])["data"]
        assert told["metadata"]["meta"]["turn"] == 1


def test_connections_are_bounded_and_idle_ones_closed(start):
    env = start("--server.max_sessions=1", "--server.session_ttl_s=1.0")
    with env.talk() as talk:
        talk.say("reset", seed=1)
        talk.say("step", actions=["noop"])
        with env.talk() as second:
            full = json.loads(second.socket.recv(timeout=10))
            assert (full["data"]["code"], full["data"]["max_sessions"]) == ("CAPACITY_REACHED", 1)
        late = json.loads(talk.socket.recv(timeout=10))
        assert (late["data"]["code"], late["data"]["message"]) == ("SESSION_ERROR", "nothing was said for 1 s")
    assert [episode.cause for episode in env.episodes(1)] == ["not used for 1 s"]


def test_a_message_too_large_is_refused(start):
    env = start("--server.max_body_bytes=2000")
    with env.talk() as talk:
        talk.socket.send(json.dumps({"type": "reset", "data": {"episode_id": "x" * 5_000}}))
        with pytest.raises(ConnectionClosed):
            talk.socket.recv(timeout=10)


def test_a_server_that_stops_stores_the_episodes_of_its_connections(start):
    env = start()
    with env.talk() as talk:
        talk.say("reset", seed=1)
        talk.say("step", actions=["noop"])
        env.process.send_signal(signal.SIGTERM)
        env.process.wait(timeout=20)
    assert [(e.status, e.cause) for e in env.episodes(1)] == [("aborted", "the server stopped")]


def test_an_episode_that_could_not_be_stored_is_stored_when_its_client_leaves(start):
    env = start()
    with env.talk() as talk:
        talk.say("reset", seed=1, max_decisions=1)
        with sqlite3.connect(env.db) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON steps BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        assert talk.say("step", actions=["noop"])["data"]["code"] == "EXECUTION_ERROR"
        other.execute("DROP TRIGGER full")
        other.commit()
        other.close()
    assert [(e.cause, len(e.decisions)) for e in env.episodes(1)] == [("max_decisions", 1)]


# -- keys -----------------------------------------------------------------------------------------


def test_with_a_key_everything_but_health_needs_it(start):
    env = start(ENVIRONMENT_API_KEY="ek")
    with httpx.Client(base_url=env.url, trust_env=False) as http:
        assert [http.get(path).status_code for path in ("/", "/health")] == [200, 200]
        for path in ("/metadata", "/schema", "/state", "/openapi.json"):
            assert http.get(path).status_code == 401
            assert http.get(path, headers={"X-API-Key": "ek"}).status_code == 200
        assert [http.post(path).status_code for path in ("/reset", "/step", "/mcp")] == [401] * 3
    with pytest.raises(InvalidStatus), env.talk() as talk:
        talk.say("state")
    with env.talk(Authorization="Bearer ek") as talk:
        assert talk.say("state")["type"] == "state"


def test_beyond_this_machine_a_key_is_needed(tmp_path):
    config = load_config(None, {"server.host": "0.0.0.0", "server.port": 0, "rollout.trace_db": str(tmp_path / "t.db")})
    with pytest.raises(ConfigError, match="refusing to serve on '0.0.0.0' without a key"):
        serve_openenv(config, ready=lambda address: None, environ={})


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http(env) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=env.url, trust_env=False, timeout=20) as client:
        yield client


def test_facts(http):
    health, metadata, schema = (http.get(path).json() for path in ("/health", "/metadata", "/schema"))
    assert (health["status"], metadata["name"]) == ("healthy", "crafter")
    assert metadata["description"]
    assert schema["action"]["properties"].keys() == {"actions", "tool_calls", "message", "metadata"}
    assert schema["observation"]["properties"].keys() == {"messages", "tools", "state", "metadata"}
    assert schema["state"]["properties"].keys() == {"episode_id", "step_count"}
    assert {"/reset", "/step", "/state", "/mcp"} <= http.get("/openapi.json").json()["paths"].keys()
    assert http.get("/state").json() == {"episode_id": None, "step_count": 0}


def test_reset_and_step_each_play_in_a_world_of_their_own(http, env):
    one, other = (http.post("/reset", json={"seed": 4}).json() for _ in range(2))
    assert one["observation"]["messages"] == other["observation"]["messages"]
    assert http.post("/reset").status_code == 200
    told = http.post("/step", json={"seed": 4, "action": {"actions": ["noop"]}, "timeout_s": 1.0}).json()
    assert (told["metadata"]["meta"]["turn"], told["done"]) == (1, False)
    assert [e.cause for e in env.episodes(1) if e.task.seed == 4] == ["a step alone"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/reset", {"seed": -1}, "seed"),
        ("/reset", {"options": {"x": 1}}, "options.x"),
        ("/step", {}, "action"),
        ("/step", {"action": {"actions": ["fly"]}}, "action.actions"),
        ("/step", {"action": {"fly": 1}}, "action.fly"),
        ("/step", {"action": {"actions": ["noop"]}, "seed": True}, "seed"),
    ],
)
def test_a_bad_field_is_named(http, path, body, field):
    refused = http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)


# -- tools ----------------------------------------------------------------------------------------


def rpc(http: httpx.Client, method: str, **params: Any) -> dict[str, Any]:
    answer = http.post("/mcp", json={"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert (answer.status_code, answer.json()["id"], answer.json()["jsonrpc"]) == (200, 7, "2.0")
    return answer.json()


def test_tools_are_listed_and_called(http):
    assert rpc(http, "initialize")["result"]["capabilities"] == {"tools": {}}
    assert rpc(http, "ping")["result"] == {}
    (tool,) = rpc(http, "tools/list")["result"]["tools"]
    assert (tool["name"], tool["inputSchema"]["required"]) == ("interact_many", ["actions"])
    result = rpc(http, "tools/call", name="interact_many", arguments={"actions": ["noop"]})["result"]
    assert (result["isError"], result["content"][0]["type"]) == (False, "text")
    assert result["structuredContent"]["metadata"]["executed"] == ["noop"]
    refused = rpc(http, "tools/call", name="interact_many", arguments={"actions": ["fly"]})["result"]
    assert refused["isError"] is True
    assert "allowed actions" in refused["content"][0]["text"]
    assert "fly" not in json.dumps(refused)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "2.0", "method": "ping", "id": true}', -32600),
        (b'{"jsonrpc": "2.0", "method": "fly", "id": 1}', -32601),
        (b'{"jsonrpc": "2.0", "method": "ping", "id": 1, "params": []}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "id": 1, "params": {"name": "fly"}}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "id": 1, "params": {"name": "interact_many", "arguments": 3}}',
         -32602),
    ],
)  # fmt: skip
def test_a_bad_call_has_the_protocols_code(http, body, code):
    answer = http.post("/mcp", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (200, code)
    assert "fly" not in answer.text


def test_a_notification_is_not_answered(http):
    answer = http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (answer.status_code, answer.content) == (202, b"")


def test_tools_called_over_ws_play_the_connections_episode(env):
    with env.talk() as talk:
        talk.say("reset", seed=3)
        call = {"name": "interact_many", "arguments": {"actions": ["noop"]}}
        said = talk.say("mcp", jsonrpc="2.0", id="a", method="tools/call", params=call)
        assert (said["type"], said["data"]["result"]["isError"]) == ("mcp", False)
        assert talk.say("state")["data"]["step_count"] == 1
