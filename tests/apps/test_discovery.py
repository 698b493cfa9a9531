"""Task apps are found by folder and by entry point; a wrong name is answered with the nearest."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import task_app.apps
from task_app.apps import ENTRY_POINT_GROUP, find_apps, get_app
from task_app.core.errors import ConfigError


@pytest.fixture
def installed(monkeypatch, toy_app):
    """Let distributions offer task apps; the app `toy` is there to offer, and its class, to change it."""

    def offer(*values: str) -> None:
        entries = [EntryPoint(value.split(":")[1], value, ENTRY_POINT_GROUP) for value in values]
        monkeypatch.setattr(task_app.apps, "entry_points", lambda group: entries if group == ENTRY_POINT_GROUP else [])
        find_apps.cache_clear()

    monkeypatch.setattr(task_app.apps, "TOY", toy_app, raising=False)
    yield offer
    monkeypatch.undo()
    find_apps.cache_clear()


def test_crafter_is_built_in_and_found_by_its_alias():
    assert find_apps()["crafter"].source == "built-in"
    assert get_app("crafter") is get_app("grpo-crafter") is find_apps()["crafter"].app


@pytest.mark.parametrize(
    ("name", "near"), [("craftr", "crafter"), ("grpo-craft", "grpo-crafter"), ("Crafter", "crafter")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name, near):
    with pytest.raises(ConfigError, match=f"unknown task app '{name}'; did you mean '{near}'") as caught:
        get_app(name)
    assert caught.value.field == "task.app"


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(ConfigError, match=r"unknown task app 'zzz' \(known task apps: crafter, grpo-crafter") as caught:
        get_app("zzz")
    assert "zzz" not in caught.value.public
    assert "crafter" in caught.value.public


def test_an_installed_distribution_may_bring_an_app(installed, toy_app):
    installed("task_app.apps:TOY")
    assert get_app("toy") is toy_app
    assert find_apps()["toy"].source != "built-in"
    assert list(find_apps()) == sorted(find_apps())


def test_two_apps_of_one_name_are_refused(installed):
    installed("task_app.apps:TOY", "task_app.apps:TOY")
    with pytest.raises(ConfigError, match="task app name 'toy' is claimed by both"):
        find_apps()


def test_an_alias_may_not_be_anothers_name(installed, toy_app, monkeypatch):
    monkeypatch.setattr(type(toy_app), "aliases", ("crafter",), raising=False)
    installed("task_app.apps:TOY")
    with pytest.raises(ConfigError, match="'crafter' is claimed by both built-in and"):
        find_apps()
