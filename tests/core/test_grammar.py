"""Grammars: what a broken automaton is refused for, and what walking a good one says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task_app.core.grammar import Grammar

EDGES = {"call": {"go": "body"}, "body": {"left": "body", "right": "body", "end": "closed"}}
GRAMMAR = Grammar("toy", "call", "closed", EDGES)


def test_allowed_words_are_sorted_and_none_follow_the_final_state():
    assert GRAMMAR.allowed("call") == ("go",)
    assert GRAMMAR.allowed("body") == ("end", "left", "right")
    assert GRAMMAR.allowed("closed") == ()
    assert GRAMMAR.words == ("end", "go", "left", "right")


def test_walk_gives_the_state_before_each_word():
    assert list(GRAMMAR.walk(["go", "left", "end"])) == ["call", "body", "body"]
    assert list(GRAMMAR.walk([])) == []


@pytest.mark.parametrize(
    ("words", "index"),
    [(["left"], 0), (["go", "up"], 1), (["go", "end", "left"], 2)],
    ids=["skips the call", "unknown word", "goes on after the end"],
)
def test_walk_refuses_an_illegal_word_and_names_its_place(words, index):
    with pytest.raises(ValueError, match=f"word {index} '{words[index]}' is not allowed"):
        list(GRAMMAR.walk(words))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edges": {**EDGES, "body": {}}}, "state 'body' has no way out"),
        ({"edges": {"call": {"go": "nowhere"}}}, "'call' -go-> unknown state 'nowhere'"),
        ({"start": "begin"}, "unknown start state 'begin'"),
        ({"start": "closed"}, "unknown start state 'closed'"),
        ({"edges": {**EDGES, "closed": {"more": "closed"}}}, "final state 'closed' has a way out"),
    ],
)
def test_a_broken_automaton_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(GRAMMAR, **change)


def test_the_hash_does_not_depend_on_the_order_of_writing():
    shuffled = {"body": dict(reversed(EDGES["body"].items())), "call": EDGES["call"]}
    assert replace(GRAMMAR, edges=shuffled).hash == GRAMMAR.hash
    assert len(GRAMMAR.hash) == 16


@pytest.mark.parametrize(
    "change",
    [
        {"name": "toy2"},
        {"start": "body"},
        {"final": "shut", "edges": {**EDGES, "body": {**EDGES["body"], "end": "shut"}}},
        {"edges": {**EDGES, "body": {**EDGES["body"], "up": "body"}}},
        {"edges": {**EDGES, "body": {**EDGES["body"], "left": "call"}}},
    ],
    ids=["name", "start", "final", "a word more", "a target"],
)
def test_the_hash_changes_with_every_part(change):
    assert replace(GRAMMAR, **change).hash != GRAMMAR.hash
