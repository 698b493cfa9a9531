"""Errors that carry more than a sentence."""

from __future__ import annotations

from task_app.core.errors import ContextOverflow, PolicyError, refusal


def test_a_full_context_names_its_episodes_and_is_not_worth_another_try():
    error = ContextOverflow("full", frozenset({"e1"}))
    assert isinstance(error, PolicyError)
    assert (error.episode_ids, error.retryable, str(error)) == (frozenset({"e1"}), False, "full")


def test_a_refusal_is_the_same_sentence_for_everybody():
    error = refusal("env.seed", "at least 0")
    assert (str(error), error.field, error.public) == ("env.seed: at least 0", "env.seed", "at least 0")
