"""AdamW with a gradient norm limit and a learning-rate schedule. Knows no loss.

The rate of an update is a function of its number alone, so that a resumed run needs no state for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from task_app.core.errors import TrainError
from task_app.train.network import MEMORY_ADVICE, memory_guard

__all__ = ["NotFiniteError", "Optimizer", "Schedule", "rate_factor"]

Schedule = Literal["constant", "cosine"]


class NotFiniteError(TrainError):
    """A loss or gradient is NaN or infinite; no step was made."""


def rate_factor(step: int, steps: int, warmup: int, schedule: Schedule) -> float:
    """What the learning rate of 0-based `step` of `steps` is multiplied by.

    Linear from 1/(warmup + 1) over the first `warmup` steps, then 1 (`constant`) or half a cosine that ends just
    above 0 (`cosine`).
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Optimizer:
    """Steps the given parameters; `state_dict` and `load_state_dict` are PyTorch's own."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, weight_decay: float, max_grad_norm: float
    ) -> None:
        self._parameters = list(parameters)
        self._learning_rate, self._max_grad_norm = learning_rate, max_grad_norm
        self.torch = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=weight_decay)

    def zero_grad(self) -> None:
        """Forget gradients."""
        self.torch.zero_grad(set_to_none=True)

    def step(self, factor: float = 1.0) -> float:
        """One step at `factor` times the learning rate; returns the gradient's norm before it was limited.

        Raises NotFiniteError when the norm is not finite; the weights are then as before.
        """
        norm = self._limit()
        if not math.isfinite(norm):
            self.zero_grad()
            raise NotFiniteError(f"the gradient's norm is {norm}; the last checkpoint stands, lower the learning rate")
        for group in self.torch.param_groups:
            group["lr"] = self._learning_rate * factor
        with memory_guard(MEMORY_ADVICE):  # its state is made at the first step
            self.torch.step()
        return norm

    def _limit(self) -> float:
        """Scale the gradients, of all processes where there are several, down to the limit; their norm before."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_grad_norm, norm)
        return float(norm)
