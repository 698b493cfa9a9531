"""Weights over processes by FSDP2 (`fully_shard`): each holds a share of them, of gradients and of optimiser states.

Beside its shards every process keeps the whole network, which samples, scores the KL reference and is saved: sampling
in shards would need equally many forward passes everywhere. That is 4 bytes a weight; a model for which it is too much
needs a sampler of its own. After an update the whole network is filled from the shards (`publish`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from task_app.train.network import Network
from task_app.train.ranks import Ranks
from task_app.train.rows import MicroBatch
from task_app.train.score import Scores, score
from task_app.train.weights import Weights

__all__ = ["ShardedWeights"]


class _Scorer(nn.Module):
    """All that has to happen between gathering weights and freeing them: `score` as one forward."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.model = copy.deepcopy(network.model)
        self._network = network

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        scores = score(self._network, self.model, batch, temperature)
        # FSDP finds what gradients flow through in a tuple, and wants no views in it.
        return scores.logp_N.clone(), scores.entropy_N


class ShardedWeights(Weights):
    """See `Weights`. To be made, and called, in all processes alike; the leader's numbers count."""

    def __init__(self, network: Network, here: Ranks, **optimiser: float) -> None:
        self.network, self._here = network, here
        for whole in network.model.parameters():
            here.tensor_from_leader(whole.data)
        self._scorer = _Scorer(network)
        for part in [*network.blocks(self._scorer.model), self._scorer]:
            fully_shard(part, mesh=here.mesh, reshard_after_forward=True)
        pairs = zip(self._scorer.parameters(), network.model.parameters(), strict=True)
        self._pairs = [(_as_shard(shard), whole) for shard, whole in pairs if whole.requires_grad]
        trained = [parameter for parameter in self._scorer.parameters() if parameter.requires_grad]
        self.optimizer = self._optimizer(trained, **optimiser)

    def score(self, batch: MicroBatch, temperature: float) -> Scores:
        return Scores(*self._scorer(batch, temperature))

    @torch.no_grad()
    def publish(self) -> None:
        for shard, whole in self._pairs:
            whole.copy_(shard.full_tensor())

    def state_dict(self) -> dict[str, Any]:
        with self._here.together("collect"):
            return self.collect()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with self._here.together("distribute"):
            self.distribute(state)

    @torch.no_grad()
    def collect(self) -> dict[str, Any]:
        """In all processes: fill the whole network; the whole optimiser state, with its tensors in the leader alone."""
        self.publish()
        state = self.optimizer.torch.state_dict()
        states: dict[int, dict[str, Any]] = {}  # other dicts than the optimiser's own
        for index, values in state["state"].items():
            states[index] = {name: self._whole(value) for name, value in values.items()}
        return state | {"state": states}

    def _whole(self, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        whole = value.full_tensor()
        return None if self._here.rank else whole.cpu()

    @torch.no_grad()
    def distribute(self, state: dict[str, Any] | None) -> None:
        """In all processes: take the leader's whole network and its optimiser `state`, of which others give None."""
        for shard, whole in self._pairs:
            self._here.tensor_from_leader(whole.data)
            shard.to_local().copy_(_share_of(whole, shard).to_local())
        outline = self._here.from_leader(state and state | {"state": _without_tensors(state["state"])})
        shards = [shard for shard, _ in self._pairs]
        for index, values in outline["state"].items():
            for name in [name for name, value in values.items() if value is None]:
                whole = torch.empty(shards[index].shape, device=shards[index].device)
                if state is not None:
                    whole.copy_(state["state"][index][name])
                self._here.tensor_from_leader(whole)
                values[name] = _share_of(whole, shards[index])
        self.optimizer.torch.load_state_dict(outline)


def _as_shard(parameter: nn.Parameter) -> DTensor:
    shard = parameter.data
    assert isinstance(shard, DTensor)
    return shard


def _share_of(whole: Tensor, shard: DTensor) -> DTensor:
    """This process's share, laid out as `shard` is; nothing is sent."""
    return distribute_tensor(whole.detach(), shard.device_mesh, shard.placements, src_data_rank=None)


def _without_tensors(states: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Optimiser states by parameter, with None for each tensor that has the parameter's form."""
    return {
        index: {name: None if isinstance(value, Tensor) and value.dim() else value for name, value in values.items()}
        for index, values in states.items()
    }
