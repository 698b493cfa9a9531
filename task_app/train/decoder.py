"""Forward passes over a Qwen3 network's own modules: hidden states at chosen positions, and one-token steps.

Both training and prefill need the last layer at few positions of a row (the answer's), so its queries and feed-forward
run only there; that is a third of all work. What the first layer projects depends on the word alone, and there are far
fewer words than tokens, so each word is projected once: another fifth. Keys and values go into buffers of the final
size. Equal to `transformers`' own forward (a test holds it to 1e-5), and independent of its cache classes, whose names
change between releases.
Rows are padded on the right, so causal attention alone keeps padding out of every real position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from task_app.train.model import Qwen3ForCausalLM

__all__ = ["KeyValues", "encode", "step"]


@dataclass
class KeyValues:
    """Keys and values of all layers, (B, kv heads, L, head size) each, written column by column.

    valid_B_L  the columns a row may look at: its prompt and what was appended since
    """

    keys: list[Tensor]
    values: list[Tensor]
    valid_B_L: Tensor
    column: int

    @classmethod
    def empty(cls, model: Qwen3ForCausalLM, rows: int, columns: int, device: torch.device) -> KeyValues:
        """Buffers for `columns` tokens a row."""
        config: Any = model.config
        shape = (rows, config.num_key_value_heads, columns, config.head_dim)
        keys, values = ([torch.zeros(shape, device=device) for _ in _layers(model)] for _ in range(2))
        return cls(keys, values, torch.zeros(rows, columns, dtype=torch.bool, device=device), 0)


def encode(model: Qwen3ForCausalLM, input_B_T: Tensor, keep_B_K: Tensor, cache: KeyValues | None = None) -> Tensor:
    """Final hidden states (B, K, H) at the positions `keep_B_K` of right-padded rows, filling `cache`."""
    length = input_B_T.shape[1]
    hidden_B_T_H = model.model.embed_tokens(input_B_T)
    position_1_T = torch.arange(length, device=input_B_T.device)[None]
    rope = _rope(model, hidden_B_T_H, position_1_T)
    layers = _layers(model)
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        if index == 0 and not last:
            query, key, value = _projected_words(model, layer, input_B_T, rope)
        else:
            normed_B_T_H = layer.input_layernorm(hidden_B_T_H)
            key, value = _keys_values(layer.self_attn, normed_B_T_H, rope)
            query = None if last else _queries(layer.self_attn, normed_B_T_H, rope)
        if cache is not None:
            cache.keys[index][:, :, :length] = key
            cache.values[index][:, :, :length] = value
        if query is not None:
            hidden_B_T_H = _finish(layer, hidden_B_T_H, query, key, value, causal=True)
            continue
        kept_rope = (rope[0][0][keep_B_K], rope[1][0][keep_B_K])
        query = _queries(layer.self_attn, _take(normed_B_T_H, keep_B_K), kept_rope)
        seen_B_1_K_T = (position_1_T[:, None] <= keep_B_K[..., None])[:, None]
        kept_B_K_H = _take(hidden_B_T_H, keep_B_K)
        hidden_B_T_H = _finish(layer, kept_B_K_H, query, key, value, mask=seen_B_1_K_T)
    return model.model.norm(hidden_B_T_H)


def step(model: Qwen3ForCausalLM, token_B: Tensor, position_B: Tensor, cache: KeyValues) -> Tensor:
    """Append one token to every row at `position_B` and return its final hidden state (B, H)."""
    hidden_B_1_H = model.model.embed_tokens(token_B[:, None])
    rope = _rope(model, hidden_B_1_H, position_B[:, None])
    cache.valid_B_L[:, cache.column] = True
    mask_B_1_1_L = cache.valid_B_L[:, None, None, : cache.column + 1]
    for index, layer in enumerate(_layers(model)):
        normed_B_1_H = layer.input_layernorm(hidden_B_1_H)
        key, value = _keys_values(layer.self_attn, normed_B_1_H, rope)
        cache.keys[index][:, :, cache.column : cache.column + 1] = key
        cache.values[index][:, :, cache.column : cache.column + 1] = value
        query = _queries(layer.self_attn, normed_B_1_H, rope)
        keys, values = (buffer[index][:, :, : cache.column + 1] for buffer in (cache.keys, cache.values))
        hidden_B_1_H = _finish(layer, hidden_B_1_H, query, keys, values, mask=mask_B_1_1_L)
    cache.column += 1
    return model.model.norm(hidden_B_1_H)[:, 0]


def _projected_words(
    model: Qwen3ForCausalLM, layer: Any, input_B_T: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the first layer, projected once for each word that there is, then looked up."""
    attention = layer.self_attn
    normed_V_H = layer.input_layernorm(model.model.embed_tokens.weight)
    shape = (len(normed_V_H), -1, attention.head_dim)
    projected = (
        attention.q_norm(attention.q_proj(normed_V_H).view(shape)).flatten(1),
        attention.k_norm(attention.k_proj(normed_V_H).view(shape)).flatten(1),
        attention.v_proj(normed_V_H),
    )
    word_B_T_P = embedding(input_B_T, torch.cat(projected, 1))
    parts = word_B_T_P.split([part.shape[1] for part in projected], -1)
    query, key, value = (part.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2) for part in parts)
    return _rotate(query, rope), _rotate(key, rope), value


def _layers(model: Qwen3ForCausalLM) -> list[Any]:
    return list(model.model.layers)


def _take(hidden_B_T_H: Tensor, keep_B_K: Tensor) -> Tensor:
    return hidden_B_T_H.gather(1, keep_B_K[..., None].expand(-1, -1, hidden_B_T_H.shape[-1]))


def _rope(model: Qwen3ForCausalLM, hidden: Tensor, position_B_T: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, T, D) of the rotary embedding at the given positions."""
    return model.model.rotary_emb(hidden, position_B_T)


def _rotate(heads_B_N_T_D: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    half = heads_B_N_T_D.shape[-1] // 2
    turned = torch.cat((-heads_B_N_T_D[..., half:], heads_B_N_T_D[..., :half]), dim=-1)
    return heads_B_N_T_D * rope[0][:, None] + turned * rope[1][:, None]


def _queries(attention: Any, normed_B_T_H: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    shape = (*normed_B_T_H.shape[:-1], -1, attention.head_dim)
    return _rotate(attention.q_norm(attention.q_proj(normed_B_T_H).view(shape)).transpose(1, 2), rope)


def _keys_values(attention: Any, normed_B_T_H: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    shape = (*normed_B_T_H.shape[:-1], -1, attention.head_dim)
    key = attention.k_norm(attention.k_proj(normed_B_T_H).view(shape)).transpose(1, 2)
    return _rotate(key, rope), attention.v_proj(normed_B_T_H).view(shape).transpose(1, 2)


def _finish(
    layer: Any,
    hidden_B_T_H: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention, its projection, and the feed-forward, each added to the residual stream."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    value = value.to(query.dtype)
    attended = scaled_dot_product_attention(query, key.to(query.dtype), value, attn_mask=mask, is_causal=causal)
    merged_B_T_H = attended.transpose(1, 2).flatten(2)
    hidden_B_T_H = hidden_B_T_H + layer.self_attn.o_proj(merged_B_T_H)
    return hidden_B_T_H + layer.mlp(layer.post_attention_layernorm(hidden_B_T_H))
