"""What is trained: a network's weights and their optimiser, in one process. `shards.py` spreads them over several.

Learners compute through it and checkpoints are made through it, so that neither knows where the numbers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from task_app.train.network import Network
from task_app.train.optimizer import Optimizer
from task_app.train.ranks import current
from task_app.train.rows import MicroBatch, Row, deal_micro_batches
from task_app.train.score import Scores, score

__all__ = ["Weights", "weights_of"]


class Weights:
    """Those of the network's own model. `optimizer` steps them."""

    def __init__(self, network: Network, **optimiser: float) -> None:
        self.network = network
        self.optimizer = self._optimizer(network.parameters(), **optimiser)

    def micro_batches(self, rows: Sequence[Row], most_tokens: int) -> list[MicroBatch]:
        """This process's share of the rows, in micro-batches of at most so many tokens."""
        here, network = current(), self.network
        return deal_micro_batches(
            rows, most_tokens, network.device, network.forward_tokens, hand=here.rank, hands=here.size
        )

    def score(self, batch: MicroBatch, temperature: float) -> Scores:
        """Log-probabilities, with gradient, and entropies of a micro-batch."""
        return score(self.network, self.network.model, batch, temperature)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss of which every process has a share: theirs are averaged where they must be
        added."""
        (loss * current().size).backward()

    def publish(self) -> None:
        """Make `network.model`, which samples and is saved, what was trained. Here it always is."""

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's whole state in PyTorch's form; `network.model` is published with it."""
        return self.optimizer.torch.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `network.model` as it is now, with a stored optimiser state. Raises what PyTorch does for one
        that does not fit."""
        self.optimizer.torch.load_state_dict(state)

    def _optimizer(
        self, parameters: list[nn.Parameter], *, learning_rate: float, weight_decay: float, max_grad_norm: float
    ) -> Optimizer:
        return Optimizer(
            parameters, learning_rate=learning_rate, weight_decay=weight_decay, max_grad_norm=max_grad_norm
        )


def weights_of(network: Network, *, learning_rate: float, weight_decay: float, max_grad_norm: float) -> Weights:
    """The network's weights, ready to be trained: here alone, or in shards over the processes of this training."""
    optimiser = {"learning_rate": learning_rate, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
    if current().alone:
        return Weights(network, **optimiser)
    from task_app.train.shards import ShardedWeights  # a second of imports that a lone process does without

    return ShardedWeights(network, current(), **optimiser)
