"""One update: the gradient does not depend on how rows are split or padded, and only choices count."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from task_app.config.training import ObjectiveSection, TrainingSection
from task_app.core.errors import TrainError
from task_app.train import embedded
from task_app.train.learner import Learner
from task_app.train.objective import token_loss
from task_app.train.rows import Row, RowBuilder, make_micro_batches
from task_app.train.score import score

CPU = torch.device("cpu")


@pytest.fixture
def rows(network, episodes):
    """Eight rows of different lengths with different advantages."""
    builder = RowBuilder(network.table, network.renderer.hash, 0.8)
    decisions = [decision for episode in episodes for decision in episode.decisions]
    return [builder.row(decision, (-1) ** index * (1 + index)) for index, decision in enumerate(decisions[:8])]


def update(learner: Learner, rows: Sequence[Row], episodes: int = 8) -> dict[str, Any]:
    return learner.update(rows, episodes)


def longest(rows):
    return max(len(row.input_ids) for row in rows)


def gradient(network, rows, size=128):
    """The gradient of one update's loss, flat."""
    network.model.zero_grad()
    for batch in make_micro_batches(rows, size * longest(rows), CPU):
        logp_N = score(network, network.model, batch, 0.8).logp_N
        loss_N = token_loss(logp_N, logp_N, batch.sampler_logp_N, batch.advantage_N, ObjectiveSection()).loss_N
        (loss_N.sum() / 100).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.model.parameters()])


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.model.parameters()]).clone()


def test_the_split_into_micro_batches_does_not_change_the_gradient(network, rows):
    whole = gradient(network, rows, 8)
    assert whole.abs().max() > 0.01
    for size in (4, 2, 1):
        assert (gradient(network, rows, size) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("normaliser", ["episodes", "tokens"])
def test_the_split_into_micro_batches_does_not_change_the_update(network, rows, normaliser):
    """As the learner itself splits and divides: 1 × 8, 2 × 4 and 8 × 1 rows."""
    gradients = []
    for size in (8, 4, 1):
        objective = ObjectiveSection(normaliser=normaliser, normaliser_constant=1)
        settings = TrainingSection(objective=objective, learning_rate=1e-12, max_grad_norm=1e9)
        settings = settings.model_copy(update={"micro_batch_tokens": size * longest(rows)})  # fewer than is allowed
        assert len(make_micro_batches(rows, settings.micro_batch_tokens, CPU)) == 8 // size
        update(Learner(network, settings, 0.8), rows)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in network.model.parameters()]))
    assert gradients[0].abs().max() > 0.01
    for gradient in gradients[1:]:
        assert (gradient - gradients[0]).abs().max() < 1e-6 * gradients[0].abs().max()


def test_padding_contributes_exactly_nothing(network, rows, monkeypatch):
    """Whatever stands in padded places: same log-probabilities, same gradient, to the bit."""
    short, long = sorted(rows, key=lambda row: len(row.input_ids))[:: len(rows) - 1]
    (batch,) = make_micro_batches([short, long], 1000, CPU)
    length = len(short.input_ids)
    assert length < len(long.input_ids)
    original = embedded._padded
    results = []
    for filler in (0, 9):

        def padded(rows, filler=filler):
            input_B_T, *rest = original(rows)
            input_B_T[0, length:] = filler
            return input_B_T, *rest

        monkeypatch.setattr(embedded, "_padded", padded)
        network.model.zero_grad()
        scores = score(network, network.model, batch, 0.8)
        scores.logp_N.sum().backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in network.model.parameters()])
        results.append((scores.logp_N.detach(), scores.entropy_N, flat))
    for first, second in zip(*results, strict=True):
        assert torch.isfinite(first).all()
        assert torch.equal(first, second)


def test_pieces_of_the_vocabulary_change_neither_scores_nor_gradient(network, rows):
    (batch,) = make_micro_batches(rows, 1000, CPU)
    results = []
    for piece_elements in (2**25, 3 * network.model.config.vocab_size, 1):
        network.model.zero_grad()
        scores = score(network, network.model, batch, 0.8, piece_elements=piece_elements)
        (scores.logp_N * batch.advantage_N).sum().backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in network.model.parameters()])
        results.append((scores.logp_N.detach(), scores.entropy_N, flat))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert (first - second).abs().max() < 1e-6 * max(1, first.abs().max())


def test_only_choices_are_counted(network, rows, episodes):
    learner = Learner(network, TrainingSection(objective=ObjectiveSection(normaliser="tokens")), 0.8)
    metrics = update(learner, rows)
    decisions = [decision for episode in episodes for decision in episode.decisions][:8]
    chosen = sum(sum(decision.completion.tokens.mask) for decision in decisions)
    assert metrics["train/tokens"] == chosen
    assert metrics["train/tokens"] < sum(len(decision.completion.tokens.mask) for decision in decisions)


def test_sampler_and_trainer_agree_and_the_first_step_is_on_policy(network, rows):
    metrics = update(Learner(network, TrainingSection(), 0.8), rows)
    assert metrics["mismatch/logp_max"] <= 1e-5
    assert metrics["mismatch/kl_max"] < 1e-9
    assert metrics["mismatch/ess_frac"] == pytest.approx(1, abs=1e-6)
    assert metrics["train/clip_frac"] == 0
    assert metrics["policy/entropy"] > 0
    # On policy every ratio is 1, so the loss is −Σ A over tokens, over episodes × constant.
    expected = -sum(row.advantages[0] * len(row.targets) for row in rows) / 800
    assert metrics["train/loss"] == pytest.approx(expected, abs=1e-6)


def test_a_sampler_that_differs_weighs_tokens_and_moves_no_ratio(network, rows):
    """With one step the ratio is the trainer's to itself, 1, whatever the sampler said; its numbers are a weight."""
    shifted = [
        replace(row, sampler_logprobs=tuple(value + (-1.0 if index % 2 else 0.5) for value in row.sampler_logprobs))
        for index, row in enumerate(rows)
    ]
    metrics = update(Learner(network, TrainingSection(), 0.8), shifted)
    assert metrics["mismatch/logp_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["train/clip_frac"] == 0
    weights = [2.0 if index % 2 else math.exp(-0.5) for index in range(len(rows))]  # e is capped at 2
    total = sum(w * row.advantages[0] * len(row.targets) for w, row in zip(weights, rows, strict=True))
    assert metrics["train/loss"] == pytest.approx(-total / 800, rel=1e-4)


def test_an_update_makes_what_was_good_more_likely(network, rows):
    batch = make_micro_batches(rows, 1000, CPU)[0]
    before = score(network, network.model, batch, 0.8).logp_N.detach()
    Learner(network, TrainingSection(learning_rate=1e-3), 0.8).update(rows, episodes=8)
    after = score(network, network.model, batch, 0.8).logp_N.detach()
    assert ((after - before) * batch.advantage_N).sum() > 0


def test_several_steps_keep_the_first_ones_policy_as_old(network, rows):
    settings = TrainingSection(optimizer_steps_per_update=3, learning_rate=3e-2)
    metrics = update(Learner(network, settings, 0.8), rows)
    assert metrics["train/clip_frac"] > 0
    assert metrics["mismatch/logp_max"] <= 1e-5


def test_the_rate_follows_the_schedule(network, rows):
    settings = TrainingSection(updates=10, warmup_updates=2, schedule="cosine", learning_rate=0.3)
    learner = Learner(network, settings, 0.8)
    rates = [learner.update(rows, 8, number=number)["train/learning_rate"] for number in (1, 2, 3, 7, 10)]
    falling = [0.15 * (1 + math.cos(math.pi * step / 8)) for step in (0, 4, 7)]
    assert rates == pytest.approx([0.1, 0.2, *falling])


def test_a_batch_without_signal_changes_nothing(network, rows):
    learner = Learner(network, TrainingSection(), 0.8)
    update(learner, rows)  # leaves momentum behind
    before = weights(network)
    metrics = update(learner, [replace(row, advantages=(0.0,)) for row in rows])
    assert metrics["train/skipped"] == 1
    assert torch.equal(weights(network), before)
    assert update(learner, [])["policy/entropy"] is None


def test_dropped_groups_count_in_the_normaliser(network, rows):
    """Twice as many episodes asked for, the same rows: half the loss."""
    learner = Learner(network, TrainingSection(learning_rate=1e-12), 0.8)
    full, half = (update(learner, rows, count)["train/loss"] for count in (8, 16))
    assert half == pytest.approx(full / 2, rel=1e-4)


def test_kl_penalty_pulls_back_to_the_initial_policy(network, rows):
    settings = TrainingSection(learning_rate=1e-2, objective=ObjectiveSection(kl_coefficient=5.0))
    learner = Learner(network, settings, 0.8)
    assert update(learner, rows)["train/kl_reference"] == 0
    assert update(learner, rows)["train/kl_reference"] > 0
    still = [replace(row, advantages=(0.0,)) for row in rows]
    drift = [update(learner, still)["train/kl_reference"] for _ in range(30)]
    assert drift[-1] < drift[0] / 2


@pytest.mark.parametrize(("advantage", "problem"), [(float("inf"), "the loss is -inf"), (1e30, "gradient's norm is")])
def test_what_is_not_finite_stops_before_the_step(network, rows, advantage, problem):
    learner = Learner(network, TrainingSection(), 0.8)
    before = weights(network)
    with pytest.raises(TrainError, match=problem):
        learner.update([replace(rows[0], advantages=(advantage,))], episodes=1)
    assert torch.equal(weights(network), before)


def test_bfloat16_computes_but_keeps_weights_in_float32(network, rows):
    settings = network.settings.model_copy(update={"dtype": "bfloat16"})
    metrics = update(Learner(replace(network, settings=settings), TrainingSection(), 0.8), rows)
    assert {parameter.dtype for parameter in network.model.parameters()} == {torch.float32}
    assert 1e-5 < metrics["mismatch/logp_max"] < 0.2
