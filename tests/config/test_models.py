"""Each section refuses unknown keys, wrong types and values out of range, and says which key is meant."""

from __future__ import annotations

from datetime import date

import pytest

from task_app.config import Config, SeedRange, load_config
from task_app.config.models import ServerSection
from task_app.core.errors import ConfigError


def test_an_empty_file_is_all_defaults(load):
    assert load("") == load_config() == Config()


@pytest.mark.parametrize(
    ("text", "field", "near"),
    [
        ("sed = 1", "sed", "did you mean 'seed'?"),
        ("[trainin]\nupdates = 1", "trainin", "did you mean 'training'?"),
        ("[hyperparameter]\nx = 1", "hyperparameter", "did you mean 'hyperparameters'?"),
        ("[rollout]\ngroup_siz = 8", "rollout.group_siz", "did you mean 'group_size'?"),
        ("[rollout]\nstep_reward_mode = 'off'", "rollout.step_reward_mode", "did you mean 'step_rewards_mode'?"),
        ("[training.credit]\ngama = 1.0", "training.credit.gama", "did you mean 'gamma'?"),
        ("[training.objective]\nclip_hi = 1.0", "training.objective.clip_hi", "did you mean 'clip_high'?"),
        ("[prices.gpt]\ninptu = 1.0", "prices.gpt.inptu", "did you mean 'input'?"),
        ("[eval.seeds]\nstart = 1\nstop = 2\nstep = 3", "eval.seeds.step", "did you mean 'stop'?"),
        ("[task]\nzzz = 1", "task.zzz", "(known: app, options)"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(load, text, field, near):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert caught.value.field == field
    assert f"unknown key '{field}'" in str(caught.value)
    assert str(caught.value).endswith(near)


def test_an_unknown_section_is_told_the_sections_but_not_the_inner_field(load):
    with pytest.raises(ConfigError) as caught:
        load("[xyz]")
    assert "rollout" in str(caught.value)
    assert "vllm" in str(caught.value)
    assert "forwarded" not in str(caught.value)


@pytest.mark.parametrize("text", ["forwarded = 1", "[forwarded.vllm]\nx = 1"])
def test_the_inner_name_of_forwarded_sections_is_no_key(load, text):
    with pytest.raises(ConfigError, match="unknown key 'forwarded'") as caught:
        load(text)
    assert caught.value.field == "forwarded"


@pytest.mark.parametrize(
    ("text", "field", "got"),
    [
        ("seed = false", "seed", "got False"),
        ("seed = 1.0", "seed", "got 1.0"),
        ("seed = '1'", "seed", "got '1'"),
        ("seed = -1", "seed", "got -1"),
        ("seed = 2147483648", "seed", "got 2147483648"),
        ("type = 'dpo'", "type", "'rl', 'sft', 'eval', 'server', 'rollout' or 'jobs', got 'dpo'"),
        ("rollout = 3", "rollout", "got 3"),
        ("[rollout]\ngroup_size = 0", "rollout.group_size", "greater than or equal to 1, got 0"),
        ("[rollout]\nmax_decisions = 10001", "rollout.max_decisions", "less than or equal to 10000, got 10001"),
        ("[rollout]\ntrace_db = 3", "rollout.trace_db", "got 3"),
        ("[policy]\ntemperature = 'hot'", "policy.temperature", "got 'hot'"),
        ("[policy]\ntemperature = true", "policy.temperature", "got True"),
        ("[server]\nport = 65536", "server.port", "got 65536"),
        ("[training]\nlearning_rate = nan", "training.learning_rate", "finite number, got nan"),
        ("[training]\nlearning_rate = inf", "training.learning_rate", "got inf"),
        ("[training]\nstep_rewards_enabled = 'yes'", "training.step_rewards_enabled", "got 'yes'"),
        ("[training]\nstep_rewards_indicator_lambda = nan", "training.step_rewards_indicator_lambda", "got nan"),
        ("[training]\nstep_rewards_beta = -0.1", "training.step_rewards_beta", "got -0.1"),
        ("[training.credit]\ngamma = 0.0", "training.credit.gamma", "got 0.0"),
        ("[training.credit]\nscale = 'std'", "training.credit.scale", "'none', 'group_rms' or 'batch_rms'"),
        ("[prices.gpt]\ninput = -0.1", "prices.gpt.input", "greater than or equal to 0, got -0.1"),
        ("[prices.gpt]\ninput = 'dear'", "prices.gpt.input", "got 'dear'"),
        ("[prices.gpt]", "prices.gpt", "at least one of input, output, gpu_hour"),
        ("[prices]\ngpt = 3", "prices.gpt", "got 3"),
        ("[model]\nheads = 5", "model", "heads (5) must divide hidden_size (128)"),
        ("[model]\nkv_heads = 3", "model", "kv_heads (3) must divide heads (4)"),
    ],
)
def test_a_wrong_type_or_value_names_the_key_the_value_and_what_is_allowed(load, text, field, got):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert caught.value.field == field
    assert got in str(caught.value)
    assert str(caught.value).split(": ")[1] == field


def test_an_integer_may_stand_for_a_number(load):
    assert load("[training]\nlearning_rate = 1").training.learning_rate == 1.0


def test_prices_are_by_model_name_whatever_is_in_it(load):
    prices = load('[prices]\n"qwen/qwen2.5-7b" = { gpu_hour = 2 }\n[prices.gpt-4o-mini]\ninput = 0.15').prices
    assert {name: price.model_dump() for name, price in prices.items()} == {
        "qwen/qwen2.5-7b": {"input": 0.0, "output": 0.0, "gpu_hour": 2.0},
        "gpt-4o-mini": {"input": 0.15, "output": 0.0, "gpu_hour": 0.0},
    }


class TestSeeds:
    @pytest.mark.parametrize(
        ("written", "seeds"),
        [("'3:6'", [3, 4, 5]), ("'7'", [7]), ("' 0:2 '", [0, 1]), ("{ start = 3, stop = 5 }", [3, 4])],
    )
    def test_a_range_leaves_its_end_out(self, load, written, seeds):
        read = load(f"[rollout]\nseeds = {written}").rollout.seeds
        assert list(read.seeds()) == seeds
        assert len(read) == len(seeds)

    def test_a_range_is_written_as_it_is_read(self):
        assert str(SeedRange.parse("3:6")) == "3:6"
        assert SeedRange.parse(str(SeedRange.parse("7"))) == SeedRange(start=7, stop=8)

    def test_the_last_seed_a_world_can_have_is_allowed(self):
        assert len(SeedRange.parse(f"{2**31 - 2}")) == 1

    @pytest.mark.parametrize(
        "written",
        [
            "'3:1'",
            "'3:3'",
            "'-1:3'",
            "'a:b'",
            "'1:2:3'",
            "''",
            f"'{2**31 - 1}'",
            f"'0:{2**31}'",
            "3",
            "false",
            "{ start = 3, stop = 1 }",
            "{ start = -1, stop = 1 }",
            "{ start = 0, stop = true }",
            "{ start = 0 }",
        ],
    )
    def test_anything_else_is_refused_by_name(self, load, written):
        with pytest.raises(ConfigError) as caught:
            load(f"[eval]\nseeds = {written}")
        assert caught.value.field.startswith("eval.seeds")


class TestForwarded:
    def test_sections_of_older_job_files_are_kept_key_for_key(self, load):
        text = """
            [algorithm]
            type = "online"
            [algorithm.inner]
            Key = [1, 2.5, "x", { a = true }]
            [data]
            when = 2026-01-31
            [vllm]
        """
        config = load(text)
        assert config.forwarded == {
            "algorithm": {"type": "online", "inner": {"Key": [1, 2.5, "x", {"a": True}]}},
            "data": {"when": date(2026, 1, 31)},
            "vllm": {},
        }
        assert config.model_copy(update={"forwarded": {}}) == Config()

    def test_their_paths_are_left_as_written(self, load):
        config = load("[data]\ntrace_db = 'x.db'\n[reference]\ncheckpoint = 'y'")
        assert config.forwarded == {"data": {"trace_db": "x.db"}, "reference": {"checkpoint": "y"}}

    def test_overrides_reach_them(self, load):
        assert load("[vllm]\na = 1", {"vllm.b": 2}).forwarded == {"vllm": {"a": 1, "b": 2}}

    def test_a_value_where_a_section_belongs_is_named_as_written(self, load):
        with pytest.raises(ConfigError) as caught:
            load("job = 3")
        assert caught.value.field == "job"
        assert "job: " in str(caught.value)

    @pytest.mark.parametrize("value", ["nan", "[1.0, -inf]", "{ a = nan }"])
    def test_numbers_no_json_can_hold_are_refused(self, load, value):
        with pytest.raises(ConfigError, match="no NaN or infinity") as caught:
            load(f"[vllm]\nx = {value}")
        assert caught.value.field == "vllm"


def test_the_resolved_config_of_a_run_reads_back_as_it_was(load):
    text = "seed = 4\n[rollout]\nseeds = '3:5'\ntrace_db = 'x.db'\n[policy]\ncheckpoint = 'c'\n[vllm]\nx = 1"
    config = load(text)
    assert Config.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[eval]\nseeds = '5:9'", "held-out worlds have seeds of 1000000 and more"),
        ("[training.guards]\ncollapse_warn_after = 9\ncollapse_stop_after = 2", r"collapse_warn_after \(9\) must not"),
        ('[sampler]\nbase_url = "127.0.0.1:8000"', r"an http:// or https:// address is needed"),
        ('[sampler]\nbase_url = "http://127.0.0.1:8000/v1/"', r"the server's root is needed, without /v1"),
    ],
)
def test_settings_that_defeat_their_purpose_are_refused(load, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load(text)


def test_the_variables_of_an_apps_keys_are_those_that_are_named():
    assert Config().server.key_envs == ("ENVIRONMENT_API_KEY", "ENVIRONMENT_API_KEY_NEXT")
    assert ServerSection(next_api_key_env="").key_envs == ("ENVIRONMENT_API_KEY",)
