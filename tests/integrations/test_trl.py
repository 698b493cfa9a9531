"""The TRL environment by the protocol its documentation states, and one step of the real GRPOTrainer."""

from __future__ import annotations

import inspect
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.core.errors import ConfigError
from task_app.core.types import StepRewardFlags
from task_app.integrations.trl import TaskEnvironment, dataset_rows, environment_class
from task_app.policies import ScriptedPolicy
from task_app.store import TraceStore
from task_app.verify import verify_database
from task_app.wiring import make_spec

SCRIPT = Path(__file__).parent / "train_with_environment.py"


def played(environment: TaskEnvironment, *calls: list[str]) -> list[str]:
    return [environment.interact_many(actions=actions) for actions in calls]  # type: ignore[attr-defined]


def test_the_class_is_what_trl_looks_for():
    factory = environment_class()
    names = [name for name, _ in inspect.getmembers(factory, predicate=inspect.isfunction) if name[0] != "_"]
    assert names == ["get_reward", "interact_many", "reset"]
    assert factory.__name__ == "CrafterEnvironment"
    (row,) = dataset_rows(factory, [7])
    assert (row["seed"], [message["role"] for message in row["prompt"]]) == (7, ["system", "user"])


def test_transformers_makes_the_tools_schema_again():
    utils = pytest.importorskip("transformers.utils", reason="needs the extra `train`")
    tool = getattr(environment_class()(), "interact_many")  # noqa: B009 - as TRL gets it
    (ours,) = (spec := make_spec("crafter", {})).app.tools(spec.options)
    theirs, ours = utils.get_json_schema(tool)["function"], ours["function"]
    assert (theirs["name"], theirs["description"]) == (ours["name"], ours["description"])
    was, made = (f["parameters"]["properties"]["actions"] for f in (ours, theirs))
    assert (made["type"], made["items"]["enum"], made["description"]) == (
        "array",
        was["items"]["enum"],
        was["description"],
    )
    assert theirs["parameters"]["required"] == ["actions"]


def test_an_episode_has_a_reward_for_each_decision_and_their_sum(tmp_path):
    factory = environment_class(
        max_decisions=12, trace_db=tmp_path / "t.db", flags=StepRewardFlags(indicator_lambda=0.5)
    )
    environment = factory()
    first = environment.reset(seed=5, prompt="a column of the dataset")
    spec = make_spec("crafter", {})
    assert first in environment._run.request().messages[1]["content"]  # type: ignore[union-attr]
    expert = ScriptedPolicy(spec.app, "expert", spec.app.baselines(spec.options)["expert"])
    texts = []
    while not environment.done:
        assert environment._run is not None
        (completion,) = expert.decide([environment._run.request()])
        (call,) = completion.message.tool_calls
        texts.append(environment.interact_many(**json.loads(call.arguments)))  # type: ignore[attr-defined]
    assert texts[-1] == "The episode is over (max_decisions)."
    rewards = environment.decision_rewards
    assert [record["turn"] for record in environment.decision_records] == list(range(1, 13))
    unique = [record["unique_delta"] for record in environment.decision_records]
    assert rewards == [delta + (0.5 if delta else 0.0) for delta in unique]
    assert environment.get_reward() == environment.reward == sum(filter(None, rewards)) > 1
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        (stored,) = store.episodes()
    assert (stored.policy, stored.outcome) == ("trl", environment.outcome)
    assert verify_database(tmp_path / "t.db").passed


def test_a_model_that_says_no_more_ends_its_episode_and_keeps_its_rewards(tmp_path):
    environment = environment_class(trace_db=tmp_path / "t.db")()
    environment.reset(seed=1)
    played(environment, ["noop"])
    assert environment.reward == 0.0
    assert (environment.get_reward(), environment.done, environment.outcome) == (0.0, True, 0.0)
    environment.reset(seed=2)
    played(environment, ["noop"])
    environment.reset(seed=3)  # what was played is stored, and there is nothing to store where nothing was
    assert environment.get_reward() == 0.0
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        causes = [(episode.task.seed, episode.status, episode.cause) for episode in store.episodes()]
    assert sorted(causes) == [(1, "truncated", "stopped"), (2, "truncated", "stopped")]
    assert verify_database(tmp_path / "t.db").passed


def test_what_a_model_says_wrong_is_told_recorded_and_executes_nothing():
    environment = environment_class(max_decisions=3)()
    environment.reset(seed=1)
    texts = [
        environment.interact_many(actions=["fly"]),  # type: ignore[attr-defined]
        environment.interact_many(actions=["noop"] * 20),  # type: ignore[attr-defined]
        environment.interact_many(moves="x"),  # type: ignore[attr-defined]
        environment.interact_many(actions=["noop"]),  # type: ignore[attr-defined]
    ]
    assert texts[0].startswith("Nothing was executed: unknown action 'fly'.\n")
    assert texts[2].endswith("The episode is over (max_decisions).")
    assert texts[3] == "The episode is over; nothing was executed."
    assert environment._run is not None
    assert [d.failure.reason for d in environment._run.decisions if d.failure] == [
        "unknown_action", "too_many_actions", "bad_arguments",
    ]  # fmt: skip
    assert environment.decision_rewards == [0.0, 0.0, 0.0]


def test_a_failed_environment_has_no_reward(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no map")

    environment = environment_class()()
    environment.reset(seed=1)
    monkeypatch.setattr("task_app.apps.crafter.engine.CrafterEnv.step", broken)
    assert "The episode is over" in played(environment, ["noop"])[0]
    assert (environment.get_reward(), environment.reward, environment.outcome) == (None, None, None)
    fresh = environment_class()()
    monkeypatch.setattr("task_app.apps.crafter.engine.CrafterEnv.reset", broken)
    assert fresh.reset(seed=1) == "The environment failed; there is no episode."
    assert fresh.get_reward() is None


@pytest.mark.parametrize("seed", [None, -1, True, "1", 2**31])
def test_a_row_without_a_seed_is_refused(seed):
    with pytest.raises(ConfigError, match="a dataset row needs a column seed"):
        environment_class()().reset(seed=seed)


def test_what_cannot_be_an_environment_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="max_decisions must be at least 1"):
        environment_class(max_decisions=0)
    with pytest.raises(ConfigError, match="options"):
        environment_class(options={"speed": 1})
    monkeypatch.setattr("task_app.apps.crafter.app.CrafterApp.tools", lambda self, options: ())
    with pytest.raises(ConfigError, match="has no tools"):
        environment_class()


def test_one_step_of_the_real_trainer(tmp_path):
    pytest.importorskip("trl", reason="needs the extra `dev`")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["steps"] == 1
    assert math.isfinite(said["loss"])
    assert said["rewards"] == said["sums"]
    assert said["tool_calls"] == [2, 2, 2, 2]
    with TraceStore.open(tmp_path / "t.db", read_only=True) as store:
        episodes = sorted(store.episodes(), key=lambda episode: episode.started_at)
    assert [len(episode.decisions) for episode in episodes] == [2] * 4
    assert {episode.task.seed for episode in episodes} == {5}
    assert any(decision.failure for episode in episodes for decision in episode.decisions)
    assert any(episode.steps for episode in episodes)
    assert verify_database(tmp_path / "t.db").passed
