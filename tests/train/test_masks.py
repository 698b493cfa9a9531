"""Grammar tables: legal tokens, forced ones, replay, and bounded length."""

import pytest

from task_app.core.errors import TrainError
from task_app.core.grammar import Grammar
from task_app.train.masks import GrammarTable
from task_app.train.tokenizer import WordTokenizer

TOKENIZER = WordTokenizer(["call", "a", "b", "end", "stray"])
# call, then a or b, then either end, or once more a, then end
GRAMMAR = Grammar(
    name="toy",
    start="0",
    final="over",
    edges={
        "0": {"call": "1"},
        "1": {"a": "2", "b": "2"},
        "2": {"end": "over", "a": "3"},
        "3": {"end": "over"},
    },
)
TABLE = GrammarTable(GRAMMAR, TOKENIZER)


def ids(*words: str) -> list[int]:
    return [TOKENIZER.id(word) for word in words]


def test_tables_by_hand():
    assert TABLE.allowed_S_V[1].nonzero().flatten().tolist() == ids("a", "b")
    assert TABLE.allowed_S_V[TABLE.final].nonzero().flatten().tolist() == ids("<pad>")
    assert TABLE.forced_S.tolist() == [*ids("call"), -1, -1, *ids("end"), -1]
    assert TABLE.tails == [None, None, None, tuple(ids("end")), ()]
    assert TABLE.longest == 4
    assert TABLE.hash == GRAMMAR.hash


def test_replay_gives_the_state_before_each_token():
    assert TABLE.states(ids("call", "b", "a", "end")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "problem"),
    [(("call", "stray"), "position 1"), (("a",), "position 0"), (("call", "a"), "before its grammar's end")],
)
def test_replay_refuses_illegal_and_unfinished_answers(words, problem):
    with pytest.raises(TrainError, match=problem):
        TABLE.states(ids(*words))
    with pytest.raises(TrainError, match="illegal"):
        TABLE.states([10_000])


def test_loops_and_unknown_words_are_refused():
    with pytest.raises(TrainError, match="loop"):
        GrammarTable(Grammar("loop", "0", "over", {"0": {"a": "0", "end": "over"}}), TOKENIZER)
    with pytest.raises(TrainError, match="'zebra'"):
        GrammarTable(Grammar("zoo", "0", "over", {"0": {"zebra": "over"}}), TOKENIZER)
