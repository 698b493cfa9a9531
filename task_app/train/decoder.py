"""Forward passes over a Qwen3 network's own modules: hidden states at chosen positions, and one-token steps.

Both training and reading prompts need the last layer at few positions of a row (the answer's), so its queries and
feed-forward run only there; that is a third of all work. Before the first attention a token is its word, wherever it
stands, and words are far fewer than tokens, so each is projected once: another fifth. Keys and values go into buffers
of the final size. Equal to `transformers`' own forward (a test holds it to 1e-5), and independent of its cache classes,
whose names change between releases.
Training pads rows on the right, so causal attention alone keeps padding out of every real position. Prompts are read
end to end as one sequence without padding, each attending to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention

from task_app.train.model import Qwen3ForCausalLM

__all__ = ["KeyValues", "encode", "read", "step"]


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
    def for_rows(
        cls, model: Qwen3ForCausalLM, lengths: Sequence[int], room: int
    ) -> tuple[KeyValues, tuple[Tensor, ...]]:
        """Buffers for rows of these lengths and `room` columns after the longest; row and column of each token (T,)."""
        config: Any = model.config
        device, longest = model.device, max(lengths)
        shape = (len(lengths), config.num_key_value_heads, longest + room, config.head_dim)
        valid_B_L = torch.zeros(shape[0], shape[2], dtype=torch.bool, device=device)
        valid_B_L[:, :longest] = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
        row_P, column_P = (~valid_B_L[:, :longest]).nonzero(as_tuple=True)
        keys, values = ([torch.empty(shape, device=device) for _ in _layers(model)] for _ in range(2))
        for buffer in [*keys, *values]:
            buffer[row_P, :, column_P] = 0.0  # masked, but what lies in fresh memory may not be a number
        return cls(keys, values, valid_B_L, longest), valid_B_L.nonzero(as_tuple=True)

    def write(self, layer: int, place_T: tuple[Tensor, ...], key: Tensor, value: Tensor) -> None:
        """Put the keys and values (1, kv heads, T, D) of a layer at their rows and columns."""
        row_T, column_T = place_T
        self.keys[layer][row_T, :, column_T] = key[0].transpose(0, 1).float()
        self.values[layer][row_T, :, column_T] = value[0].transpose(0, 1).float()

    def of_rows(self, row_B: Tensor) -> KeyValues:
        """What is kept, for these rows in this order; a row may be named several times."""
        keys, values = ([buffer[row_B] for buffer in buffers] for buffers in (self.keys, self.values))
        return KeyValues(keys, values, self.valid_B_L[row_B], self.column)


def encode(model: Qwen3ForCausalLM, input_B_T: Tensor, keep_B_K: Tensor) -> Tensor:
    """Final hidden states (B, K, H) at the positions `keep_B_K` of right-padded rows."""
    hidden_B_T_H = model.model.embed_tokens(input_B_T)
    position_1_T = torch.arange(input_B_T.shape[1], device=input_B_T.device)[None]
    rope = _rope(model, hidden_B_T_H, position_1_T)
    *layers, last = _layers(model)
    for index, layer in enumerate(layers):
        if index == 0:
            query, key, value = _of_words(model, layer, input_B_T)
        else:
            normed_B_T_H = layer.input_layernorm(hidden_B_T_H)
            query, key, value = _queries(layer, normed_B_T_H), *_keys_values(layer, normed_B_T_H)
        attended = _attend(_rotate(query, rope), _rotate(key, rope), value, causal=True)
        hidden_B_T_H = _finish(layer, hidden_B_T_H, attended)
    normed_B_T_H = last.input_layernorm(hidden_B_T_H)
    key, value = _keys_values(last, normed_B_T_H)
    query = _rotate(_queries(last, _take(normed_B_T_H, keep_B_K)), (rope[0][0][keep_B_K], rope[1][0][keep_B_K]))
    seen_B_1_K_T = (position_1_T[:, None] <= keep_B_K[..., None])[:, None]
    attended = _attend(query, _rotate(key, rope), value, mask=seen_B_1_K_T)
    return model.model.norm(_finish(last, _take(hidden_B_T_H, keep_B_K), attended))


def read(model: Qwen3ForCausalLM, rows: Sequence[Sequence[int]], room: int) -> tuple[KeyValues, Tensor]:
    """Keys and values of whole rows, with `room` more columns, and the final hidden state (B, H) of each one's end."""
    lengths = [len(row) for row in rows]
    cache, place_T = KeyValues.for_rows(model, lengths, room)
    end_B = torch.tensor(lengths, device=model.device).cumsum(0) - 1
    token_1_T = torch.tensor([[token for row in rows for token in row]], device=model.device)
    hidden_1_T_H = model.model.embed_tokens(token_1_T)
    rope = _rope(model, hidden_1_T_H, place_T[1][None])
    layers = _layers(model)
    query, key, value = _of_words(model, layers[0], token_1_T)
    for index, layer in enumerate(layers[:-1]):
        key = _rotate(key, rope)
        cache.write(index, place_T, key, value)
        parts = zip(*(part.split(lengths, dim=2) for part in (_rotate(query, rope), key, value)), strict=True)
        attended = torch.cat([_attend(*row, causal=True) for row in parts], dim=2)
        hidden_1_T_H = _finish(layer, hidden_1_T_H, attended)
        following = layers[index + 1]
        normed_1_T_H = following.input_layernorm(hidden_1_T_H)
        query = _queries(following, normed_1_T_H if following is not layers[-1] else normed_1_T_H[:, end_B])
        key, value = _keys_values(following, normed_1_T_H)
    cache.write(-1, place_T, _rotate(key, rope), value)
    query = query if len(layers) > 1 else query[:, :, end_B]
    query_B_N_1_D = _rotate(query, (rope[0][:, end_B], rope[1][:, end_B])).transpose(0, 2)
    keys, values = (buffers[-1][:, :, : cache.column] for buffers in (cache.keys, cache.values))
    attended = _attend(query_B_N_1_D, keys, values, mask=cache.valid_B_L[:, None, None, : cache.column])
    hidden_B_1_H = _finish(layers[-1], hidden_1_T_H[0, end_B][:, None], attended)
    return cache, model.model.norm(hidden_B_1_H)[:, 0]


def step(model: Qwen3ForCausalLM, token_B: Tensor, position_B: Tensor, cache: KeyValues) -> Tensor:
    """Append one token to every row at `position_B` and return its final hidden state (B, H)."""
    hidden_B_1_H = model.model.embed_tokens(token_B[:, None])
    rope = _rope(model, hidden_B_1_H, position_B[:, None])
    cache.valid_B_L[:, cache.column] = True
    mask_B_1_1_L = cache.valid_B_L[:, None, None, : cache.column + 1]
    for index, layer in enumerate(_layers(model)):
        normed_B_1_H = layer.input_layernorm(hidden_B_1_H)
        key, value = _keys_values(layer, normed_B_1_H)
        cache.keys[index][:, :, cache.column : cache.column + 1] = _rotate(key, rope)
        cache.values[index][:, :, cache.column : cache.column + 1] = value
        query = _rotate(_queries(layer, normed_B_1_H), rope)
        keys, values = (buffer[index][:, :, : cache.column + 1] for buffer in (cache.keys, cache.values))
        hidden_B_1_H = _finish(layer, hidden_B_1_H, _attend(query, keys, values, mask=mask_B_1_1_L))
    cache.column += 1
    return model.model.norm(hidden_B_1_H)[:, 0]


def _of_words(model: Qwen3ForCausalLM, layer: Any, token_B_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, heads, T, D) of the first layer, not rotated: made for every word there is, so that
    a token's numbers do not depend on its company, then looked up."""
    normed_1_V_H = layer.input_layernorm(model.model.embed_tokens.weight[None])
    heads = _queries(layer, normed_1_V_H), *_keys_values(layer, normed_1_V_H)
    flat = [part[0].transpose(0, 1).flatten(1) for part in heads]
    found_B_T_P = embedding(token_B_T, torch.cat(flat, 1))
    parts = found_B_T_P.split([part.shape[1] for part in flat], -1)
    query, key, value = (part.unflatten(-1, (-1, layer.self_attn.head_dim)).transpose(1, 2) for part in parts)
    return query, key, value


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
    return torch.addcmul(heads_B_N_T_D * rope[0][:, None], turned, rope[1][:, None])


def _queries(layer: Any, normed_B_T_H: Tensor) -> Tensor:
    """Queries (B, heads, T, D), not yet turned by their position."""
    attention = layer.self_attn
    shape = (*normed_B_T_H.shape[:-1], -1, attention.head_dim)
    return attention.q_norm(attention.q_proj(normed_B_T_H).view(shape)).transpose(1, 2)


def _keys_values(layer: Any, normed_B_T_H: Tensor) -> tuple[Tensor, Tensor]:
    """Keys, not yet turned by their position, and values, (B, kv heads, T, D) each."""
    attention = layer.self_attn
    shape = (*normed_B_T_H.shape[:-1], -1, attention.head_dim)
    key = attention.k_norm(attention.k_proj(normed_B_T_H).view(shape)).transpose(1, 2)
    return key, attention.v_proj(normed_B_T_H).view(shape).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, mask: Tensor | None = None) -> Tensor:
    """Attention (B, heads, Q, D) of queries over keys and values (B, kv heads, T, D)."""
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    value = value.to(query.dtype)
    return scaled_dot_product_attention(query, key.to(query.dtype), value, attn_mask=mask, is_causal=causal)


def _finish(layer: Any, hidden_B_T_H: Tensor, attended: Tensor) -> Tensor:
    """The attention's projection and the feed-forward, each added to the residual stream."""
    hidden_B_T_H = hidden_B_T_H + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
    return hidden_B_T_H + layer.mlp(layer.post_attention_layernorm(hidden_B_T_H))
