"""Which values of a document are paths, and a document as it is written."""

from __future__ import annotations

import pytest

from task_app.config.load import paths_in, read_document
from task_app.core.errors import ConfigError


def test_paths_are_found_wherever_they_stand_and_names_are_none():
    document = {
        "training": {"run_dir": "a", "init_from": "/b", "updates": 3, "credit": {"gamma": 1.0}},
        "model": {"path": "Qwen/Qwen3-0.6B"},
        "sft": {"dataset": "../c", "validation": None},
        "algorithm": {"path": "d"},
        "seed": 1,
    }
    assert dict(paths_in(document)) == {"training.run_dir": "a", "training.init_from": "/b", "sft.dataset": "../c"}
    assert dict(paths_in({"model": {"path": "./m"}})) == {"model.path": "./m"}


def test_a_document_is_as_written_but_for_what_is_set(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[training]\nrun_dir = "../x"\n[algorithm]\nodd = 1\n')
    written = {"training": {"run_dir": "../x"}, "algorithm": {"odd": 1}}
    assert read_document(path) == written
    assert read_document(path, {"seed": 2}) == written | {"seed": 2}
    with pytest.raises(ConfigError, match="does not exist"):
        read_document(tmp_path / "none.toml")
