"""A network's view of chosen tokens: log-probability and entropy of each, under the sampler's own mask.

Log-softmax runs over pieces of the chosen positions, recomputed in the backward pass: a whole vocabulary at every
position of a long batch would take gigabytes. No loss, no optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from task_app.train.network import Network, autocast
from task_app.train.objective import entropy
from task_app.train.rows import MicroBatch

__all__ = ["PIECE_ELEMENTS", "Scores", "masked_log_softmax", "score"]

PIECE_ELEMENTS = 2**25
"""Most numbers of a piece of logits (positions × vocabulary): 128 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probability (with gradient) and entropy (without) per chosen token."""

    logp_N: Tensor
    entropy_N: Tensor


def masked_log_softmax(logit_N_V: Tensor, allowed_N_V: Tensor | None, temperature: float) -> Tensor:
    """Log-probabilities of the legal tokens among themselves, −inf elsewhere; float32 throughout."""
    scaled_N_V = logit_N_V.float() / temperature
    if allowed_N_V is not None:
        scaled_N_V = scaled_N_V.masked_fill(~allowed_N_V, float("-inf"))
    return scaled_N_V.log_softmax(-1)


def score(
    network: Network, model: nn.Module, batch: MicroBatch, temperature: float, *, piece_elements: int = PIECE_ELEMENTS
) -> Scores:
    """Log-probabilities under the same grammar mask and temperature the sampler used."""
    with autocast(network.settings, network.device):
        hidden_N_H = network.hidden(model, batch.rows)

    def piece(hidden_M_H: Tensor, state_M: Tensor, target_M: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(network.settings, network.device):
            logit_M_V = network.logits(model, hidden_M_H)
        allowed_M_V = network.table.allowed_S_V[state_M] if network.table is not None else None
        logp_M_V = masked_log_softmax(logit_M_V, allowed_M_V, temperature)
        return logp_M_V.gather(1, target_M[:, None])[:, 0], entropy(logp_M_V.detach())

    count = max(1, piece_elements // _vocabulary(network))
    if len(hidden_N_H) <= count:
        return Scores(*piece(hidden_N_H, batch.state_N, batch.target_N))
    parts = [
        checkpoint(piece, *tensors, use_reentrant=False)
        for tensors in zip(
            hidden_N_H.split(count), batch.state_N.split(count), batch.target_N.split(count), strict=True
        )
    ]
    return Scores(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def _vocabulary(network: Network) -> int:
    return int(network.model.config.vocab_size)  # type: ignore[union-attr]
