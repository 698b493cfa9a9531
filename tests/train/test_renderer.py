"""Prompts: what is read, what is dropped, and what the hash covers."""

import pytest

from task_app.core.errors import TrainError
from task_app.train.renderer import Renderer
from task_app.train.tokenizer import WordTokenizer

TOKENIZER = WordTokenizer(["see", "tree", "rules"])


def words(renderer: Renderer, *messages) -> list[str]:
    return [renderer.tokenizer.words[index] for index in renderer.prompt_ids(messages)]


def test_only_the_last_user_message_is_read(line):
    history = [{"role": "user", "content": "see"}, {"role": "assistant", "content": None}]
    system, user = {"role": "system", "content": "rules"}, {"role": "user", "content": "tree"}
    prompt = words(Renderer(TOKENIZER, line), system, *history, user)
    assert prompt == ["<begin>", "tree", "<answer>"]


def test_text_parts_are_joined_and_pictures_refused(line):
    renderer = Renderer(TOKENIZER, line)
    parts = [{"type": "text", "text": "see"}, {"type": "text", "text": "tree"}]
    assert words(renderer, {"role": "user", "content": parts}) == ["<begin>", "see", "tree", "<answer>"]
    with pytest.raises(TrainError, match="image_url"):
        renderer.prompt_ids([{"role": "user", "content": [*parts, {"type": "image_url"}]}])


def test_a_prompt_without_a_user_message_is_refused(line):
    with pytest.raises(TrainError, match="no user message"):
        Renderer(TOKENIZER, line).prompt_ids([{"role": "system", "content": "rules"}])


def test_the_hash_covers_the_vocabulary_in_its_order(line):
    same = Renderer(WordTokenizer(["see", "tree", "rules"]), line)
    other = Renderer(WordTokenizer(["tree", "see", "rules"]), line)
    assert Renderer(TOKENIZER, line).hash == same.hash != other.hash
