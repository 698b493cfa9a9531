"""Steps of supervised training: loss and entropy of rows, their gradient, the optimiser. Knows no file and no log."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from task_app.config.models import Config
from task_app.train.network import MEMORY_ADVICE, Network, memory_guard
from task_app.train.ranks import current
from task_app.train.rows import Row
from task_app.train.weights import weights_of

__all__ = ["SftLearner"]


class SftLearner:
    """Owns the weights of one network and their optimiser."""

    def __init__(self, network: Network, config: Config) -> None:
        self._most_tokens = config.training.micro_batch_tokens
        self.weights = weights_of(
            network,
            learning_rate=config.sft.learning_rate,
            weight_decay=config.sft.weight_decay,
            max_grad_norm=config.training.max_grad_norm,
        )

    def update(self, rows: Sequence[Row], factor: float) -> tuple[float, float, float]:
        """One optimiser step at `factor` times the learning rate; loss, entropy and the gradient's norm before it.

        Raises NotFiniteError when the norm is not finite; the weights are then as before.
        """
        self.weights.optimizer.zero_grad()
        loss, entropy = self._run(rows, learn=True)
        return loss, entropy, self.weights.optimizer.step(factor)

    def measure(self, rows: Sequence[Row]) -> tuple[float, float]:
        """Mean loss and entropy in nats per chosen token; nothing is learned."""
        return self._run(rows, learn=False)

    def _run(self, rows: Sequence[Row], *, learn: bool) -> tuple[float, float]:
        tokens = sum(len(row.targets) for row in rows)
        loss = entropy = 0.0
        for batch in self.weights.micro_batches(rows, self._most_tokens):
            with memory_guard(MEMORY_ADVICE), torch.set_grad_enabled(learn):
                scores = self.weights.score(batch, 1.0)
                part = -scores.logp_N.sum() / tokens * batch.counts
                if learn:
                    self.weights.backward(part)
            loss += float(part.detach())
            entropy += float(scores.entropy_N.sum()) / tokens * batch.counts
        shares = current().gather((loss, entropy))
        return sum(share[0] for share in shares), sum(share[1] for share in shares)
