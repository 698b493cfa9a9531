"""Attention of several rows in one sequence, each row by itself: no mask, no padding, no token of another row.

An attention of `transformers` under a name of its own, built on its `sdpa`. A mask over a packed sequence costs its
length squared in memory and computes what it then throws away; taken row by row, the causal kernels do neither. Calls
that name no rows (sampling, padded rows) are `sdpa`'s as they were. Which models may use it is `can_split`'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["ROW_ATTENTION", "can_split", "row_arguments", "split_attention"]

ROW_ATTENTION = "sdpa_by_row"


def can_split(model: PreTrainedModel) -> bool:
    """Whether every layer of a model with `sdpa` looks at the whole row before a token, and at nothing else."""
    config: Any = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    return (
        config._attn_implementation in ("sdpa", ROW_ATTENTION)
        and bool(getattr(model, "_supports_attention_backend", False))
        and kinds == {"full_attention"}
        and not windowed
    )


def row_arguments(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What to call a decoder with for a sequence (1, T) that holds rows of these lengths end to end.

    The mask is a stand-in: `transformers` makes none where it is given one of four dimensions, and nobody reads it.
    """
    return {"row_lengths": list(lengths), "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)}


def split_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_lengths: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention (B, T, heads, D) of queries, keys and values (B, heads, T, D), as `transformers` calls it."""
    if row_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # One split and one concatenation: slices would each give a gradient as long as the whole sequence.
    queries, keys, values = (whole.split(list(row_lengths), dim=2) for whole in (query, key, value))
    attended = [
        sdpa_attention_forward(module, *row, None, **options)[0] for row in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(attended, dim=1), None


AttentionInterface.register(ROW_ATTENTION, split_attention)
AttentionMaskInterface.register(ROW_ATTENTION, sdpa_mask)
