"""A document written as TOML reads back as itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_app.core.errors import ConfigError
from task_app.jobs.launch import plain
from task_app.jobs.toml import to_toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = texts | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(texts, values, max_size=4))
def test_any_document_reads_back(document):
    assert tomllib.loads(to_toml(document)) == document


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("configs/*/*.toml")), ids=lambda path: path.name)
def test_every_shipped_config_reads_back(path):
    document = plain(tomllib.loads(path.read_text()))
    assert tomllib.loads(to_toml(document)) == document


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), [1, {"x": None}], "\ud800"])
def test_what_toml_cannot_hold_is_named(value):
    with pytest.raises(ConfigError) as caught:
        to_toml({"a": {"b": value}})
    assert caught.value.field.startswith("a.b")
    assert str(value) not in caught.value.public
