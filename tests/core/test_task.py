"""The task-app contract: a task's reference, its prompt hash, and what an app gets without asking."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from task_app.core.errors import ConfigError, PolicyError, TaskAppError
from task_app.core.task import TaskApp, TaskOptions, TaskSpec
from task_app.core.types import AssistantMessage


class Options(TaskOptions):
    size: int = 4
    scale: float = 1.0


def toy(**parts: Any) -> TaskApp[Any]:
    """An app whose prompt is made of the given parts; it plays nothing."""

    class Toy(TaskApp[Options]):
        name = parts.get("name", "toy")
        version = parts.get("version", "1")
        renderer_version = parts.get("renderer", "toy-text/1")
        options_model = Options

        def make_env(self, options):
            raise AssertionError("nothing is played here")

        def tools(self, options):
            return ({"type": "function", "function": {"name": parts.get("tool", "go")}},)

        def system_prompt(self, options):
            return parts.get("prompt", "Go left or right.")

        def observe(self, observation, history, context, options):
            return []

        def parse(self, message, options):
            return ()

        def say(self, actions):
            return AssistantMessage(" ".join(actions))

        def outcome(self, observation):
            return 0.0

        def status_fields(self, observation):
            return {}

        def baselines(self, options):
            return {}

    return Toy()


def spec(size: int = 4, **parts: Any) -> TaskSpec:
    return TaskSpec(toy(**parts), Options(size=size))


def test_a_task_of_one_seed():
    ref = spec(size=9).ref(7)
    assert (ref.app, ref.version, ref.options, ref.seed) == ("toy", "1", {"size": 9, "scale": 1.0}, 7)


def test_one_prompt_has_one_hash():
    assert spec().prompt_hash == spec().prompt_hash
    assert len(spec().prompt_hash) == 16


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "Go left or right!"},
        {"tool": "gp"},
        {"renderer": "toy-text/2"},
        {"name": "toz"},
        {"size": 5},
    ],
    ids=["system prompt", "tool", "renderer", "app", "options"],
)
def test_one_byte_of_any_part_changes_the_prompt_hash(other):
    assert spec(**other).prompt_hash != spec().prompt_hash


def test_what_does_not_shape_the_prompt_leaves_its_hash():
    assert spec(version="2").prompt_hash == spec().prompt_hash


@pytest.mark.parametrize("options", [{"sise": 4}, {"size": "4"}, {"size": True}, {"scale": float("nan")}])
def test_options_are_strict(options):
    with pytest.raises(ValidationError):
        Options.model_validate(options)


def test_an_app_without_grammar_or_facts_says_so():
    app, options = toy(), Options()
    assert app.grammar(options) is None
    assert app.vocabulary(options) == ()
    assert app.seed_info(0, options) == {}
    assert app.installation() == {}
    assert app.picture(object()) is None  # pyright: ignore[reportArgumentType]
    assert not app.outcome_is_unique_events
    with pytest.raises(NotImplementedError, match="toy has no grammar"):
        app.words_to_message([])


def test_errors_carry_what_their_boundary_needs():
    error = ConfigError("seed is -3", field="seed", public="seed must be 0 or more")
    assert (str(error), error.field, error.public) == ("seed is -3", "seed", "seed must be 0 or more")
    assert ConfigError("seed is -3").public == "the value is not allowed"
    assert PolicyError("down").retryable
    assert not PolicyError("wrong key", retryable=False).retryable
    assert issubclass(ConfigError, TaskAppError)
