"""Config → objects: names and combinations are checked, keys go where they belong, nothing is touched before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task_app.config import Config
from task_app.config.models import PolicySection
from task_app.core.errors import ConfigError, StoreError
from task_app.policies import ChatPolicy, ReplayPolicy, ScriptedPolicy
from task_app.policies.http_client import HttpClient
from task_app.rollout import Limits
from task_app.store import TraceStore
from task_app.wiring import check, make_limits, make_policy, make_spec, policy_names

SPEC = make_spec("crafter", {})
CHAT: dict[str, Any] = {"name": "chat", "model": "m", "inference_url": "https://api.openai.com/v1"}


def policy(**settings: Any):
    return make_policy(PolicySection(**settings), SPEC, environ={})


class TestTasks:
    def test_a_task_by_name_or_alias_with_its_options(self):
        spec = make_spec("grpo-crafter", {"max_steps": 5})
        assert (spec.app.name, spec.options.model_dump()["max_steps"]) == ("crafter", 5)

    def test_an_unknown_app_is_named_with_the_nearest(self):
        with pytest.raises(ConfigError, match="'craftr'; did you mean 'crafter'"):
            make_spec("craftr", {})

    @pytest.mark.parametrize(
        ("options", "field", "message"),
        [
            ({"max_step": 5}, "task.options.max_step", "unknown key .*; did you mean 'max_steps'"),
            ({"max_steps": 0}, "task.options.max_steps", "greater than or equal to 1, got 0"),
            ({"max_steps": "5"}, "task.options.max_steps", "valid integer, got '5'"),
            ({"min_actions_per_decision": 9}, "task.options", r"min_actions_per_decision \(9\) is above"),
        ],
    )
    def test_wrong_options_are_named(self, options, field, message):
        with pytest.raises(ConfigError, match=message) as caught:
            make_spec("crafter", options)
        assert caught.value.field == field

    def test_the_field_may_be_a_requests(self):
        with pytest.raises(ConfigError) as caught:
            make_spec("crafter", {"max_steps": 0}, field="env.config.options")
        assert caught.value.field == "env.config.options.max_steps"

    def test_what_strangers_are_told_holds_no_value_of_theirs(self):
        with pytest.raises(ConfigError) as caught:
            make_spec("crafter", {"max_steps": "secret"})
        assert "secret" in str(caught.value)
        assert "secret" not in caught.value.public

    def test_checking_a_config_touches_no_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        config = Config.model_validate(
            {"rollout": {"trace_db": Path("a/t.db")}, "policy": {"replay_db": Path("no.db")}}
        )
        assert check(config).app.name == "crafter"
        assert list(tmp_path.iterdir()) == []

    def test_checking_refuses_flags_that_do_nothing(self):
        config = Config.model_validate({"training": {"step_rewards_mode": "off", "step_rewards_beta": 1.0}})
        with pytest.raises(ConfigError, match="no effect"):
            check(config)


def test_limits_are_those_of_the_rollouts():
    rollout = {"max_decisions": 7, "max_parse_failures": 2, "infra_tries": 5}
    assert make_limits(Config.model_validate({"rollout": rollout})) == Limits(7, 2, 5)


class TestPolicies:
    @pytest.mark.parametrize("name", ["random", "expert"])
    def test_scripted_ones_are_the_apps(self, name):
        made = policy(name=name)
        assert isinstance(made, ScriptedPolicy)
        assert made.name == name

    def test_an_unknown_one_is_named_with_the_nearest(self):
        with pytest.raises(ConfigError, match="unknown policy 'randon'; did you mean 'random'") as caught:
            policy(name="randon")
        assert caught.value.field == "policy.name"
        assert caught.value.public == "policies: chat, embedded, expert, planner, random, replay"
        assert policy_names(SPEC.app) == ["chat", "embedded", "expert", "planner", "random", "replay"]

    @pytest.mark.parametrize("missing", ["model", "inference_url"])
    @pytest.mark.parametrize("name", ["chat", "crafter-react"])
    def test_chat_needs_a_model_and_an_address_by_any_of_its_names(self, name, missing):
        with pytest.raises(ConfigError, match=f"policy 'chat' needs {missing}") as caught:
            policy(**CHAT | {"name": name, missing: ""})
        assert caught.value.field == f"policy.{missing}"

    def test_chat_is_made_of_its_settings_and_its_hosts_key(self):
        settings = PolicySection(
            **CHAT, temperature=0.5, top_p=0.9, max_tokens=7, timeout_s=1.0, deadline_s=2.0, tries=4
        )
        environ = {"OPENAI_API_KEY": "sk-o", "GROQ_API_KEY": "sk-g", "ENVIRONMENT_API_KEY": "own"}
        with HttpClient() as client:
            made = make_policy(settings, SPEC, client=client, environ=environ)
        assert isinstance(made, ChatPolicy)
        kept = made._settings
        assert (kept.model, kept.api_key, kept.temperature, kept.top_p) == ("m", "sk-o", 0.5, 0.9)
        assert (kept.max_tokens, kept.timeout_s, kept.deadline_s, kept.tries) == (7, 1.0, 2.0, 4)

    @pytest.mark.parametrize("own", ["ENVIRONMENT_API_KEY", "MY_KEY"])
    def test_the_apps_own_key_is_never_sent(self, own):
        settings = PolicySection(**CHAT, api_key_env=own)
        with pytest.raises(ConfigError, match=f"{own} .*the task app's own key"):
            make_policy(settings, SPEC, environ={own: "own"}, own_key_envs=[own])

    def test_replay_needs_a_database(self, tmp_path):
        with pytest.raises(ConfigError, match="needs replay_db") as caught:
            policy(name="replay")
        assert caught.value.field == "policy.replay_db"
        with pytest.raises(StoreError, match=r"no\.db does not exist"):
            policy(name="replay", replay_db=tmp_path / "no.db")

    def test_replay_says_what_the_database_holds(self, tmp_path, play_scripted):
        episodes = play_scripted(range(1), 2, max_decisions=3)
        with TraceStore.open(tmp_path / "t.db") as store:
            for episode in episodes:
                store.write_episode(episode)
        made = policy(name="replay", replay_db=tmp_path / "t.db")
        assert isinstance(made, ReplayPolicy)
        assert set(made._answers) == {(0, 0), (0, 1)}

    @pytest.mark.parametrize("reasoning", ["drop", "keep"])
    def test_chat_keeps_reasoning_where_it_is_told_to(self, reasoning):
        made = policy(name="chat", model="m", inference_url="http://host", reasoning=reasoning)
        assert isinstance(made, ChatPolicy)
        assert made._settings.keep_reasoning is (reasoning == "keep")
        made.close()

    def test_embedded_is_handed_in(self):
        with pytest.raises(ConfigError, match="embedded policy cannot be played here"):
            policy(name="embedded")
        seen = []
        settings = PolicySection(name="embedded", checkpoint=Path("c"))
        player = policy(name="random")
        made = make_policy(settings, SPEC, embedded=lambda spec, checkpoint: seen.append((spec, checkpoint)) or player)
        assert made is player
        assert seen == [(SPEC, Path("c"))]
