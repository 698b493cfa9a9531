"""Config files with their kind and `.env` files, as they lie in a folder."""

from __future__ import annotations

import pytest

from task_app.config.found import FoundConfig, find_configs, find_env_files, read_env_file
from task_app.core.errors import ConfigError


def test_configs_are_found_with_their_kind(tmp_path):
    texts = {
        "pyproject.toml": "type = 'rl'",
        "mine.toml": "type = 'sft'",
        "configs/train/a.toml": "[rollout]",
        "configs/job.toml": "[job]\ntype = 'eval'",
        "configs/broken.toml": "[",
        "configs/odd.toml": "type = 3",
        "elsewhere/b.toml": "type = 'rl'",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "configs/listed.toml").write_text("job = []")
    kinds = {str(one.path.relative_to(tmp_path)): one.kind for one in find_configs(tmp_path)}
    assert kinds == {
        "configs/broken.toml": "?",
        "configs/job.toml": "eval",
        "configs/listed.toml": "rl",
        "configs/odd.toml": "rl",
        "configs/train/a.toml": "rl",
        "mine.toml": "sft",
    }
    assert find_configs(tmp_path, ["sft"]) == [FoundConfig(tmp_path / "mine.toml", "sft")]


def test_env_files_are_found_and_templates_are_not(tmp_path):
    for name in (".env", ".env.local", "prod.env", ".env.example", "environment", "x.env.sample"):
        (tmp_path / name).write_text("A=1\n")
    (tmp_path / "folder.env").mkdir()
    assert [path.name for path in find_env_files(tmp_path)] == [".env", ".env.local", "prod.env"]


def test_env_file_is_read_as_written(tmp_path):
    path = tmp_path / ".env"
    path.write_text("# keys\nexport A=one two\nB='x$HOME # no comment'\nC=\nD=last # comment\n")
    assert read_env_file(path) == {"A": "one two", "B": "x$HOME # no comment", "C": "", "D": "last"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"A=1\nsecret-word\n", "line 2: a line is written NAME=value"),
        (b"A='never ends\nsecret\n", "line 1: a line is written NAME=value"),
        (b"A=\xff\n", r"cannot be read \(UnicodeDecodeError\)"),
        (None, "does not exist"),
    ],
)
def test_env_file_that_is_none(tmp_path, text, told):
    path = tmp_path / "some.env"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ConfigError, match=told) as caught:
        read_env_file(path)
    assert "secret" not in str(caught.value)
    assert caught.value.field == "env_file"
