"""Reading a file: what cannot be read is refused by name, paths belong to the file, overrides win."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from task_app.config import Config, describe_validation_error, load_config, parse_overrides
from task_app.core.errors import ConfigError


class TestFiles:
    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(ConfigError, match=r"nope\.toml does not exist"):
            load_config(tmp_path / "nope.toml")

    def test_a_directory_is_named(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read: .*directory"):
            load_config(tmp_path)

    def test_what_is_not_toml_is_named_with_its_place(self, load):
        with pytest.raises(ConfigError, match=r"c\.toml is not TOML: .*line 2"):
            load("seed = 1\nseed = = 2")

    def test_what_is_not_utf8_is_named(self, tmp_path):
        path = tmp_path / "latin.toml"
        path.write_bytes(b"# caf\xe9")
        with pytest.raises(ConfigError, match=r"latin\.toml cannot be read"):
            load_config(path)

    @pytest.mark.parametrize("text", ["seed = 'x'", "[training]\nstep_rewards_mode = 'off'\nstep_rewards_beta = 1.0"])
    def test_a_refusal_names_the_file(self, load, tmp_path, text):
        with pytest.raises(ConfigError, match=r"c\.toml: "):
            load(text)


class TestPaths:
    TEXT = (
        "[rollout]\ntrace_db = 'x/t.db'\n[policy]\ncheckpoint = '../c'\nreplay_db = 'r.db'\n[training]\nrun_dir = 'out'"
    )

    def test_relative_paths_of_a_file_belong_to_its_folder(self, load, tmp_path, monkeypatch):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        config = load(self.TEXT)
        assert config.rollout.trace_db == tmp_path / "x/t.db"
        assert config.policy.checkpoint == tmp_path / "../c"
        assert config.policy.replay_db == tmp_path / "r.db"
        assert config.training.run_dir == tmp_path / "out"

    def test_absolute_ones_stay(self, load):
        assert load("[rollout]\ntrace_db = '/data/t.db'").rollout.trace_db == Path("/data/t.db")

    def test_those_of_overrides_and_defaults_belong_to_the_working_directory(self, load):
        config = load(self.TEXT, {"rollout.trace_db": "y.db", "policy.checkpoint": "d"})
        assert config.rollout.trace_db == Path("y.db")
        assert config.policy.checkpoint == Path("d")
        assert load("").rollout.trace_db == Path("traces/task_app.db")

    def test_a_url_and_a_name_are_no_paths(self, load):
        config = load("[policy]\ninference_url = 'http://h/v1'\nmodel = 'm'\n[task.options]\nrun_dir = 'as/is'")
        assert (config.policy.inference_url, config.policy.model) == ("http://h/v1", "m")
        assert config.task.options == {"run_dir": "as/is"}


class TestOverrides:
    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("--a.b=3", 3),
            ("--a.b=-0.5", -0.5),
            ("--a.b=true", True),
            ("--a.b='3'", "3"),
            ("--a.b=[1, 2]", [1, 2]),
            ("--a.b={x = 1}", {"x": 1}),
            ("--a.b=off", "off"),
            ("--a.b=3:5", "3:5"),
            ("--a.b=", ""),
            ("--a.b=http://h/v1?a=b#c", "http://h/v1?a=b#c"),
            ("--a.b=1\nc = 2", "1\nc = 2"),
        ],
    )
    def test_values_are_toml_and_bare_words_are_strings(self, argument, value):
        overrides = parse_overrides([argument])
        assert overrides == {"a.b": value}
        assert type(overrides["a.b"]) is type(value)

    @pytest.mark.parametrize("argument", ["seed=1", "--seed", "--=1", "-seed=1", "seed"])
    def test_another_form_is_refused(self, argument):
        with pytest.raises(ConfigError, match=r"unknown argument .*--section\.key=value"):
            parse_overrides([argument])

    def test_they_win_over_the_file_and_make_missing_sections(self, load):
        overrides = parse_overrides(["--seed=9", "--training.credit.gamma=0.5", "--rollout.seeds=3:5"])
        config = load("seed = 1\n[training.credit]\ngamma = 0.1\nscale = 'batch_rms'", overrides)
        assert config.seed == 9
        assert (config.training.credit.gamma, config.training.credit.scale) == (0.5, "batch_rms")
        assert list(config.rollout.seeds.seeds()) == [3, 4]

    def test_they_work_without_a_file(self):
        config = load_config(None, {"task.options.max_steps": 5, "rollout.trace_db": "x.db"})
        assert config.task.options == {"max_steps": 5}
        assert config.rollout.trace_db == Path("x.db")

    def test_they_are_checked_like_the_file(self, load):
        with pytest.raises(ConfigError, match="did you mean 'group_size'") as caught:
            load("", {"rollout.group_siz": 3})
        assert caught.value.field == "rollout.group_siz"
        with pytest.raises(ConfigError, match="seed: .* got True"):
            load_config(None, {"seed": True})

    def test_one_below_a_value_is_refused(self, load):
        with pytest.raises(ConfigError, match="'seed' is not a section") as caught:
            load("seed = 1", {"seed.x": 3})
        assert caught.value.field == "seed.x"


def test_a_validation_error_is_one_sentence_with_the_field_under_its_prefix():
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"rollout": {"group_size": 0}})
    field, sentence = describe_validation_error(caught.value, Config, prefix="body")
    assert field == "body.rollout.group_size"
    assert sentence == "body.rollout.group_size: Input should be greater than or equal to 1, got 0"


def test_a_value_that_is_wrong_as_a_whole_is_called_the_value():
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(3)
    field, sentence = describe_validation_error(caught.value, Config)
    assert field == ""
    assert sentence.startswith("the value: ")


def test_a_model_is_a_path_when_it_begins_with_a_dot_and_a_name_otherwise(tmp_path):
    file = tmp_path / "c.toml"
    for given, meant in (
        ("../models/m", str(tmp_path / "../models/m")),
        ("./m", str(tmp_path / "m")),
        ("/models/m", "/models/m"),
        ("someone/m", "someone/m"),
        ("", ""),
    ):
        file.write_text(f'[model]\npath = "{given}"\n')
        assert load_config(file).model.path == meant
    assert load_config(file, {"model.path": "./m"}).model.path == "m"


@pytest.mark.parametrize("history", ["last:0", "last:", "last", "all", "last:x", ""])
def test_history_is_none_last_or_full(history):
    with pytest.raises(ConfigError, match=r"model\.history") as caught:
        load_config(None, {"model.history": history})
    assert caught.value.field == "model.history"
    assert [load_config(None, {"model.history": good}).model.history for good in ("none", "last:3", "full")]
