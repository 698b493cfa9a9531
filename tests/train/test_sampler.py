"""Sampling: the trainer recomputes the same numbers, noise is keyed, forced tokens cost and count nothing."""

import hashlib
import math

import numpy as np
import pytest
import torch

from task_app.core.errors import ConfigError, TrainError
from task_app.core.grammar import Grammar
from task_app.train import sampler
from task_app.train.masks import GrammarTable
from task_app.train.policy import EmbeddedPolicy
from task_app.train.sampler import Sampler, _inverse_cdf, check_sampling, noise, noise_rows
from task_app.train.score import masked_log_softmax

TEXTS = ["place 1", "place 2 turn 3 last left right stay", "turn 4", "place 0 turn 1 last stay"] * 4
KEYS = [f"0/1/{index}/0/1" for index in range(len(TEXTS))]


def sample(network, texts=TEXTS, keys=KEYS, temperature=0.7):
    messages = [[{"role": "user", "content": text}] for text in texts]
    prompts = [network.renderer.prompt_ids(message) for message in messages]
    return prompts, Sampler(network.model, network.table, network.settings, temperature).sample(prompts, keys)


@torch.no_grad()
def recomputed(network, prompt, answer, temperature, *, masked=True):
    """Log-probabilities of the chosen tokens by one plain forward of the network over the whole row."""
    ids = torch.tensor([[*prompt, *answer.ids]])
    logits = network.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    allowed = network.table.allowed_S_V[network.table.states(answer.ids)]
    logp = masked_log_softmax(logits, allowed if masked else torch.ones_like(allowed), temperature)
    return [float(logp[index, token]) for index, token in enumerate(answer.ids) if answer.mask[index]]


def chosen(answer):
    return [value for value, kept in zip(answer.logprobs, answer.mask, strict=True) if kept]


def test_trainer_recomputes_the_sampled_log_probabilities(network):
    for prompt, answer in zip(*sample(network), strict=True):
        assert recomputed(network, prompt, answer, 0.7) == pytest.approx(chosen(answer), abs=1e-5)


def test_without_the_grammar_mask_they_differ(network):
    prompts, answers = sample(network)
    differences = [
        abs(a - b)
        for prompt, answer in zip(prompts, answers, strict=True)
        for a, b in zip(recomputed(network, prompt, answer, 0.7, masked=False), chosen(answer), strict=True)
    ]
    assert min(differences) > 0.01


def test_without_the_temperature_they_differ(network):
    prompts, answers = sample(network)
    assert recomputed(network, prompts[0], answers[0], 1.0) != pytest.approx(chosen(answers[0]), abs=1e-3)


def test_answers_are_legal_and_of_different_lengths(network):
    _, answers = sample(network)
    for answer in answers:
        states = network.table.states(answer.ids)
        assert answer.mask == [int(network.table.forced_S[state] < 0) for state in states]
        assert all(logp == 0.0 for logp, kept in zip(answer.logprobs, answer.mask, strict=True) if not kept)
    assert {network.renderer.tokenizer.words[a.ids[2]] for a in answers} == {"and", "end"}
    assert {len(answer.ids) for answer in answers} == {3, 6}


def test_what_a_key_draws_does_not_depend_on_the_batch(network):
    _, together = sample(network)
    order = list(reversed(range(len(TEXTS))))
    _, shuffled = sample(network, [TEXTS[index] for index in order], [KEYS[index] for index in order])
    for index, answer in enumerate(together):
        _, alone = sample(network, [TEXTS[index]], [KEYS[index]])
        for other in (alone[0], shuffled[order.index(index)]):
            assert other.ids == answer.ids
            assert other.logprobs == pytest.approx(answer.logprobs, abs=1e-5)


def test_equal_prompts_are_read_once(network, monkeypatch):
    seen = []
    real = sampler.read
    monkeypatch.setattr(sampler, "read", lambda model, rows, room: (seen.append(len(rows)), real(model, rows, room))[1])
    sample(network, ["place 1"] * 8 + ["place 2"] * 8, [str(index) for index in range(16)])
    assert seen == [2]


def test_other_keys_draw_other_answers(network):
    _, answers = sample(network, ["place 1"] * 40, [f"key {index}" for index in range(40)])
    assert len({tuple(answer.ids) for answer in answers}) > 5
    _, same = sample(network, ["place 1"] * 5, ["one key"] * 5)
    assert len({tuple(answer.ids) for answer in same}) == 1


def test_sampled_frequencies_are_the_policys(network):
    """The first move of 4000 answers to one prompt, against its three probabilities."""
    count = 4000
    _, answers = sample(network, ["place 1"] * count, [f"k{index}" for index in range(count)])
    probability = {answer.ids[1]: math.exp(answer.logprobs[1]) for answer in answers}
    assert sum(probability.values()) == pytest.approx(1, abs=1e-5)
    for token, expected in probability.items():
        seen = sum(answer.ids[1] == token for answer in answers) / count
        assert abs(seen - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


def test_noise_is_fixed_for_all_time():
    """Stored runs are repeatable only while a key keeps meaning the same numbers."""
    assert noise("0/1/2/3/4", 3).tolist() == noise("0/1/2/3/4", 5)[:3].tolist()
    assert noise("0/1/2/3/4", 2).tolist() == [0.35163992258283294, 0.5810030025198095]
    keys = [f"0/1/{index}/3/4" for index in range(9)]
    for row, key in zip(noise_rows(keys, 6), keys, strict=True):
        digest = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
        assert row.tolist() == np.random.Generator(np.random.Philox(key=digest)).random(6).tolist()


def test_inverse_cdf_never_picks_an_illegal_token():
    logp = np.log(np.array([[1e-300, 0.25, 1e-300, 0.75, 1e-300]] * 4))
    logp[:, ::2] = -np.inf
    uniform = np.array([0.0, 0.2499, 0.25, np.nextafter(1.0, 0.0)])
    assert _inverse_cdf(logp, uniform).tolist() == [1, 1, 3, 3]


def test_settings_without_a_distribution_to_train_are_refused(network):
    with pytest.raises(ConfigError, match=r"policy\.temperature = 0 .*temperature 0") as caught:
        EmbeddedPolicy(network, temperature=0.0)
    assert caught.value.field == "policy.temperature"
    with pytest.raises(ConfigError, match="top_p = 0.9"):
        check_sampling(1.0, 0.9)


def test_a_prompt_that_does_not_fit_is_refused(network):
    with pytest.raises(TrainError, match="max_positions is 64"):
        sample(network, ["left " * 62], ["k"])


def test_no_prompts_and_no_choices(network):
    _, nothing = sample(network, [], [])
    assert nothing == []
    tokenizer = network.table.tokenizer
    one = GrammarTable(Grammar("one", "0", "over", {"0": {"stay": "1"}, "1": {"end": "over"}}), tokenizer)
    answer = Sampler(network.model, one, network.settings, 1.0).sample([[1, 2]], ["k"])[0]
    assert [tokenizer.words[token] for token in answer.ids] == ["stay", "end"]
    assert (answer.logprobs, answer.mask) == ([0.0, 0.0], [0, 0])
