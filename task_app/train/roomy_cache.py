"""A cache of keys and values with room for a whole answer from the start: appending a token copies that token alone.

The growing cache of `transformers` copies everything it holds for each token. Layers of another kind than its plain
one (sliding windows, states) stay as they are. It reads no model and samples nothing.
"""

from __future__ import annotations

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

__all__ = ["holds_everything", "roomy_cache"]


class _RoomyLayer(DynamicLayer):
    """Keys and values (B, heads, L, D) at the front of buffers with `room` columns, made by the first update."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self._buffers is None:
            self.lazy_initialization(key_states, value_states)
            self._buffers = self._empty(key_states), self._empty(value_states)
            self.keys, self.values = (buffer[:, :, :0] for buffer in self._buffers)
        assert self.keys is not None
        start = self.keys.shape[2]
        stop = start + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:stop] = states
        self.keys, self.values = (buffer[:, :, :stop] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        if self._buffers is None:
            return
        assert self.keys is not None
        assert self.values is not None
        self._buffers = self._chosen(self.keys, indices), self._chosen(self.values, indices)
        self.keys, self.values = (buffer[:, :, : self.keys.shape[2]] for buffer in self._buffers)

    def _chosen(self, states: Tensor, indices: Tensor) -> Tensor:
        buffer = self._empty(states[:1].expand(len(indices), -1, -1, -1))
        buffer[:, :, : states.shape[2]] = states[indices]
        return buffer

    def _empty(self, states: Tensor) -> Tensor:
        rows, heads, _, size = states.shape
        return states.new_empty(rows, heads, self._room, size)


def roomy_cache(config: PreTrainedConfig, room: int) -> DynamicCache:
    """An empty cache for a model whose rows grow to `room` tokens at most."""
    cache = DynamicCache(config=config)
    cache.layers = [_RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def holds_everything(cache: DynamicCache) -> bool:
    """Whether every layer keeps all tokens by position, so that padding may stand between two of a row."""
    return bool(cache.layers) and all(type(layer) is _RoomyLayer for layer in cache.layers)
