"""The clipped policy-gradient objective, per chosen token. Pure functions of tensors; no model, no loop.

    ratio  ρ = π_new / π_old, both the trainer's own
    weight w = min(π_old / π_sampler, cap), detached
    loss     = −w · min(ρ·A, clip(ρ, 1 − low, 1 + high)·A)  (+ kl · ½(log π_new − log π_ref)²)

The sum over all tokens is divided by one number for the whole update, `divisor`; dividing by what a
batch happens to contain (its own tokens or decisions) would weigh episodes by their length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from task_app.config.models import ObjectiveSection

__all__ = ["TokenLoss", "divisor", "entropy", "kl_k2", "mismatch_kl", "token_loss"]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per chosen token: the loss, whether the clip is what holds it, and the detached weight."""

    loss_N: Tensor
    clipped_N: Tensor
    weight_N: Tensor


def token_loss(
    new_logp_N: Tensor, old_logp_N: Tensor, sampler_logp_N: Tensor, advantage_N: Tensor, settings: ObjectiveSection
) -> TokenLoss:
    """The policy loss of each token; gradient flows through `new_logp_N` alone."""
    old_logp_N = old_logp_N.detach()
    ratio_N = (new_logp_N - old_logp_N).exp()
    weight_N = (old_logp_N - sampler_logp_N).exp().clamp(max=settings.sampler_weight_cap)
    free_N = ratio_N * advantage_N
    held_N = ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage_N
    return TokenLoss(-weight_N * torch.minimum(free_N, held_N), held_N < free_N, weight_N)


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
