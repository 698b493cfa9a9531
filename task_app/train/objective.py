"""The clipped policy-gradient objective, per chosen token. Pure functions of tensors; no model, no loop.

    ratio  ρ = π_new / π_old, both the trainer's own
    weight w = min(π_old / π_sampler, cap), detached
    loss     = −w · min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)  (+ kl · ½(log π_new − log π_ref)²)

With `ratio = "gspo"` every token of a decision has the decision's one ratio, the geometric mean of its tokens'
(Zheng et al. 2025, with a decision for a sequence), held by a clip of its own; the gradient of an unclipped decision
is then still Σ over its tokens of A·∇log π.

The sum over all tokens is divided by one number for the whole update, `divisor`; dividing by what a
batch happens to contain (its own tokens or decisions) would weigh episodes by their length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from task_app.config.training import ObjectiveSection

__all__ = ["TokenLoss", "divisor", "entropy", "kl_k2", "mismatch_kl", "token_loss"]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per chosen token: the loss, whether the clip is what holds it, and the detached weight."""

    loss_N: Tensor
    clipped_N: Tensor
    weight_N: Tensor


def token_loss(
    new_logp_N: Tensor,
    old_logp_N: Tensor,
    sampler_logp_N: Tensor,
    advantage_N: Tensor,
    settings: ObjectiveSection,
    decision_N: Tensor | None = None,
) -> TokenLoss:
    """The policy loss of each token; gradient flows through `new_logp_N` alone.

    `decision_N` says which decision a token belongs to; only `gspo` reads it.
    """
    old_logp_N = old_logp_N.detach()
    difference_N = new_logp_N - old_logp_N
    low, high = settings.clip_low, settings.clip_high
    if settings.ratio == "gspo":
        assert decision_N is not None
        difference_N = _means(difference_N, decision_N)
        low, high = settings.gspo_clip_low, settings.gspo_clip_high
    ratio_N = difference_N.exp()
    weight_N = (old_logp_N - sampler_logp_N).exp().clamp(max=settings.sampler_weight_cap)
    free_N = ratio_N * advantage_N
    held_N = ratio_N.clamp(1 - low, 1 + high) * advantage_N
    return TokenLoss(-weight_N * torch.minimum(free_N, held_N), held_N < free_N, weight_N)


def _means(value_N: Tensor, decision_N: Tensor) -> Tensor:
    """The mean over each token's decision."""
    count = int(decision_N.max()) + 1 if len(decision_N) else 0
    sum_D = value_N.new_zeros(count).index_add(0, decision_N, value_N)
    size_D = value_N.new_zeros(count).index_add(0, decision_N, torch.ones_like(value_N))
    return (sum_D / size_D)[decision_N]


def kl_k2(new_logp_N: Tensor, reference_logp_N: Tensor) -> Tensor:
    """½(log π_new − log π_ref)² per token; its gradient is the KL divergence's own."""
    return 0.5 * (new_logp_N - reference_logp_N.detach()).square()


def mismatch_kl(old_logp_N: Tensor, sampler_logp_N: Tensor) -> Tensor:
    """KL(sampler ‖ trainer) estimated per token as e^d − 1 − d, d = log π_old − log π_sampler; never negative."""
    difference_N = (old_logp_N - sampler_logp_N).double()
    return torch.expm1(difference_N) - difference_N


def entropy(logp_N_V: Tensor) -> Tensor:
    """Entropy per token of masked log-probabilities; illegal tokens (−inf) count 0, not −inf · 0."""
    finite_N_V = logp_N_V.masked_fill(logp_N_V.isneginf(), 0.0)
    return -(finite_N_V.exp() * finite_N_V).sum(-1)


def divisor(settings: ObjectiveSection, *, episodes: int, tokens: int) -> float:
    """What the summed loss of an update is divided by.

    `episodes` is how many were asked for, dropped and zero-variance groups included; `tokens` how
    many are trained on.
    """
    if settings.normaliser == "tokens":
        return float(max(1, tokens))
    return episodes * settings.normaliser_constant
