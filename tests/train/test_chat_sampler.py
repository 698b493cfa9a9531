"""Free text sampled from real models: the trainer's own log-probabilities, keyed noise, and exact ends."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from task_app.config.training import ModelSection, TrainingSection
from task_app.core.errors import ConfigError, TrainError
from task_app.train import chat_sampler
from task_app.train.chat_model import causal
from task_app.train.chat_network import build_chat_network
from task_app.train.learner import Learner
from task_app.train.policy import EmbeddedPolicy
from task_app.train.rows import RowBuilder
from tests.train.chat_fixtures import SYSTEM, asks, chat, chat_line, folders, model_settings, tokens_of
from tests.train.tiny_models import SHAPES, TEMPLATES, byte_tokenizer

TEXTS = ["place 1", "place 2 and some more words", "x", "place 1", "place 0 turn 3", "place 1"] * 3
KEYS = [f"0/1/{index}/0/1" for index in range(len(TEXTS))]


def sample(network, texts=TEXTS, keys=KEYS, temperature=0.9):
    prompts = [network.renderer.prompt_ids([SYSTEM, {"role": "user", "content": text}]) for text in texts]
    return prompts, network.sampler(temperature).sample(prompts, keys)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
def test_the_trainer_recomputes_what_was_sampled(chat, chat_line, asks, shape, rank):
    """Through the whole way: policy, stored trace, row, learner."""
    network = chat(shape, lora_rank=rank, max_new_tokens=20)
    policy = EmbeddedPolicy(network, temperature=0.8)
    requests = [asks(text, episode=str(index)) for index, text in enumerate(TEXTS)]
    learner = Learner(network, TrainingSection(learning_rate=0.01), 0.8)
    seen, rows = [], []
    for _ in range(2):  # before and after an update of the weights
        completions = policy.decide(requests)
        builder = RowBuilder(None, network.renderer.hash, 0.8)
        rows = [row for one in completions for row in builder.rows([decision(one)], [1.0 - 2 * (len(seen) % 2)])]
        seen.append([tokens_of(one).completion_ids for one in completions])
        assert (learner.update(rows, len(rows))["mismatch/logp_max"] or 0) < 1e-5
    assert seen[0] != seen[1]
    wrong = Learner(network, TrainingSection(), 1.0).update(rows, len(rows))
    assert (wrong["mismatch/logp_max"] or 0) > 1e-2, "a wrong temperature must show"


def decision(completion):
    from task_app.core.types import Decision

    return Decision(turn=1, messages=(), completion=completion, failure=None, steps=(), rewards=None, started_at=0.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_key_draws_does_not_depend_on_the_batch(chat, shape):
    network = chat(shape, max_new_tokens=20)
    _, together = sample(network)
    _, in_threes = sample(chat(shape, max_new_tokens=20, sampler_rows=3))
    order = list(reversed(range(len(TEXTS))))
    _, turned = sample(network, [TEXTS[index] for index in order], [KEYS[index] for index in order])
    for index, answer in enumerate(together):
        _, alone = sample(network, [TEXTS[index]], [KEYS[index]])
        for other in (alone[0], turned[order.index(index)], in_threes[index]):
            assert other.ids == answer.ids
            assert other.logprobs == pytest.approx(answer.logprobs, abs=1e-5)


@pytest.fixture
def forwards(monkeypatch):
    """Shapes of the sampler's forward passes, as they are made."""
    shapes = []
    real = chat_sampler.ChatSampler._forward

    def noted(self, input_B_T, *rest):
        shapes.append(tuple(input_B_T.shape))
        return real(self, input_B_T, *rest)

    monkeypatch.setattr(chat_sampler.ChatSampler, "_forward", noted)
    return shapes


def test_equal_prompts_are_read_once_and_what_all_share_once_for_all(chat, forwards):
    prompts, _ = sample(chat(), ["place 1"] * 8 + ["place 20"] * 8, [str(index) for index in range(16)])
    shared = next(index for index, pair in enumerate(zip(prompts[0], prompts[-1], strict=False)) if len({*pair}) == 2)
    longest = max(map(len, prompts))
    assert shared > longest - 30
    assert forwards[:3] == [(1, shared), (2, longest - shared), (16, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_that_share_little_or_all_are_sampled_alike(chat, forwards, shape):
    """One alone, one that another begins with, and some that begin with nothing in common."""
    network = chat(shape)
    whole = tuple(network.renderer.prompt_ids([SYSTEM, {"role": "user", "content": "place 1"}]))
    sampler = network.sampler(1.0)
    for prompts, shared in (
        ([whole], 0),
        ([whole, whole], 0),
        ([whole, whole[:-9]], len(whole) - 10),
        ([whole, (5, 6, 7)], 0),
    ):
        forwards.clear()
        together = sampler.sample(prompts, ["a", "b"][: len(prompts)])
        assert (forwards[0] == (1, shared)) == (shared > 0)
        for prompt, key, answer in zip(prompts, "ab", together, strict=False):
            (alone,) = sampler.sample([prompt], [key])
            assert answer.ids == alone.ids
            assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_a_model_that_looks_at_a_window_reads_prompts_whole(chat_line, tmp_path, forwards):
    """It counts tokens back from each, so that no padding may stand between those of one row."""
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
    sizes |= {"num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 1024, "vocab_size": 262}
    ends: dict[str, Any] = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    model = MistralForCausalLM(MistralConfig(**sizes, **ends, sliding_window=12, initializer_range=0.2))
    model.save_pretrained(tmp_path)
    byte_tokenizer(TEMPLATES["qwen3"]).save_pretrained(tmp_path)
    network = build_chat_network(chat_line, ModelSection(**model_settings(tmp_path)), 0)
    prompts, answers = sample(network, temperature=1.0)
    assert forwards[0][0] == len(set(prompts))
    inner: Any = causal(network.model)
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = inner(torch.tensor([[*prompt, *answer.ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_answer_ends_with_its_end_token_or_is_cut(chat):
    network = chat(max_new_tokens=60)
    stops = network.renderer.template.stops
    _, answers = sample(network)
    assert {answer.ids[-1] in stops for answer in answers} == {True, False}
    for answer in answers:
        assert not set(answer.ids[:-1]) & stops
        assert answer.mask == [1] * len(answer.ids)
        assert (len(answer.ids) == 60) or answer.ids[-1] in stops
        reason = network.renderer.message(answer.ids).finish_reason
        assert (reason == "length") == (answer.ids[-1] not in stops)
    _, short = sample(chat(max_new_tokens=3))
    for whole, cut in zip(answers, short, strict=True):
        assert whole.ids[:3] == cut.ids, "the budget changes where an answer ends, never what is drawn"


def test_sampled_frequencies_are_the_policys(chat):
    count = 3000
    network = chat(max_new_tokens=1, sampler_rows=1000)
    prompts, answers = sample(network, ["place 1"] * count, [f"k{index}" for index in range(count)])
    with torch.no_grad():
        logits = causal(network.model)(torch.tensor([prompts[0]]), use_cache=False).logits[0, -1]
    probability = (logits / 0.9).softmax(-1)
    for token in probability.topk(8).indices.tolist():
        expected = float(probability[token])
        seen = sum(answer.ids[0] == token for answer in answers) / count
        assert abs(seen - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_the_inverse_cdf_takes_the_first_token_past_the_number():
    logp = torch.tensor([[0.25, 0.0, 0.75, 0.0]] * 4).log()
    uniform = torch.tensor([0.0, 0.2499, 0.25, 1 - 1e-16], dtype=torch.float64)
    assert chat_sampler._inverse_cdf(logp, uniform).tolist() == [0, 0, 2, 2]


def test_what_cannot_be_sampled_is_refused(chat):
    network = chat()
    with pytest.raises(ConfigError, match=r"policy\.temperature = 0"):
        network.sampler(0.0)
    with pytest.raises(TrainError, match="takes 1026 tokens, model .* reads 1024"):
        network.sampler(1.0).sample([[1] * 1020], ["k"])
    assert network.sampler(1.0).sample([], []) == []
