"""Words to ids: splitting, digits, and refusing what is not known."""

import pytest
from tokenizers import Tokenizer

from task_app.apps import get_app
from task_app.core.errors import TrainError
from task_app.train.tokenizer import ANSWER, BEGIN, PAD, WordTokenizer

WORDS = ["tree", "left", "2", "0", "1", "-", "move_left", "…"]


def spelled(tokenizer: WordTokenizer, text: str) -> list[str]:
    return [tokenizer.words[index] for index in tokenizer.encode(text)]


def test_space_comma_colon_and_semicolon_only_separate():
    assert spelled(WordTokenizer(WORDS), " tree: left,2;\n\nmove_left …") == ["tree", "left", "2", "move_left", "…"]
    assert WordTokenizer(WORDS).encode("") == []


def test_integers_outside_the_vocabulary_are_read_digit_by_digit():
    assert spelled(WordTokenizer(WORDS), "tree 2 120 -12") == ["tree", "2", "1", "2", "0", "-", "1", "2"]


@pytest.mark.parametrize("word", ["bush", "13", "+1", "2.0", BEGIN, "<unk>", "²"])
def test_unknown_words_are_errors_that_name_them(word):
    with pytest.raises(TrainError, match="unknown word") as caught:
        WordTokenizer(WORDS).encode(f"tree {word} left")
    assert repr(word) in str(caught.value)


@pytest.mark.parametrize("word", [PAD, "", "two words", "a,b"])
def test_words_that_cannot_be_tokens_are_refused(word):
    with pytest.raises(TrainError, match="cannot be a token"):
        WordTokenizer(["tree", word])


def test_markers_come_first_and_padding_is_zero():
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.id(PAD) == 0
    assert {tokenizer.id(BEGIN), tokenizer.id(ANSWER)} == {1, 2}
    with pytest.raises(TrainError, match="not in the tokenizer's vocabulary"):
        tokenizer.id("bush")


def test_the_saved_file_is_one_the_library_reads():
    tokenizer = WordTokenizer(WORDS)
    read = Tokenizer.from_str(tokenizer.json)
    assert read.encode("tree left").ids == tokenizer.encode("tree left")


def test_every_text_of_a_long_crafter_episode_is_readable(play_scripted):
    app = get_app("crafter")
    episodes = play_scripted(range(1), 2, max_decisions=60, max_actions_per_decision=5, history_calls=2)
    options = app.options_model()
    tokenizer = WordTokenizer(app.vocabulary(options))
    for episode in episodes:
        for decision in episode.decisions:
            assert tokenizer.encode(decision.messages[-1]["content"])
