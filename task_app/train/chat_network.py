"""A causal language model of `transformers` as a `Network`: packed rows in, hidden states and logits out.

Rows share a sequence and are kept apart by an attention that takes them one by one or, where a model has layers of
another kind, by positions that begin again, which holds only without a cache and without a mask; so every model is
checked before it is trained (`check_network`), and one that mixes rows, looks ahead or changes its logits after the
output layer is refused by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError, TrainError
from task_app.core.task import TaskSpec
from task_app.train.chat_model import (
    ADAPTER_WEIGHTS,
    base_hash,
    causal,
    decoder,
    end_ids,
    load_adapters,
    load_causal_model,
    load_tokenizer,
    save_adapters,
    with_adapters,
)
from task_app.train.chat_renderer import ChatConversation, ChatRenderer
from task_app.train.chat_sampler import ChatSampler
from task_app.train.chat_template import ChatTemplate
from task_app.train.model import prepare_torch
from task_app.train.network import Network, autocast
from task_app.train.packing import Sheet, pack, packed_tokens, pad
from task_app.train.row_attention import ROW_ATTENTION, can_split, row_arguments
from task_app.train.rows import Row

__all__ = ["ChatNetwork", "build_chat_network", "check_network"]

TOLERANCE = 1e-4
"""Largest difference the start-up checks allow, relative to the largest number compared; float32."""
ROUGH = 0.1
"""The same where the attention computes in bfloat16 alone; rows that mix differ by about 1."""


class _EarlierAdapters(nn.Module):
    """A model with other values in its trained weights. Holds copies of those alone, not of the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = [model]  # in a list, so that it is no submodule of this one
        self.values = [value.detach().clone() for value in model.parameters() if value.requires_grad]

    @contextlib.contextmanager
    def in_force(self) -> Iterator[nn.Module]:
        """The model with the earlier values, for computing without gradients."""
        self._swap()
        try:
            yield self.inner[0]
        finally:
            self._swap()

    def _swap(self) -> None:
        trained = [value for value in self.inner[0].parameters() if value.requires_grad]
        for index, value in enumerate(trained):
            value.data, self.values[index] = self.values[index], value.data


@dataclass(frozen=True)
class ChatNetwork(Network):
    """See `Network`; answers are free text, so `table` is None. `model` is `peft`'s own where there are adapters."""

    spec: TaskSpec
    settings: ModelSection
    device: torch.device
    renderer: ChatRenderer
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: str = ""
    table: None = None

    @property
    def longest(self) -> int:
        """Most tokens a row may have."""
        config: Any = causal(self.model).config
        return int(getattr(config, "max_position_embeddings", 0) or 10**9)

    @property
    def vocabulary(self) -> int:
        """Token ids its weights know: 0 to one less."""
        return int(causal(self.model).get_input_embeddings().weight.shape[0])  # type: ignore[union-attr,arg-type]

    def hidden(self, model: nn.Module, rows: Sequence[Row]) -> Tensor:
        self._check_length(rows)
        sheet = pack(rows, one=self._one_sequence) if self.settings.packing else pad(rows)
        with _open(model) as inner:
            decoder(inner).train(self.settings.gradient_checkpointing and torch.is_grad_enabled())
            return self._states(inner, sheet)

    def forward_tokens(self, lengths: Sequence[int]) -> int:
        if not self.settings.packing:
            return super().forward_tokens(lengths)
        return sum(lengths) if self._one_sequence else packed_tokens(lengths)

    def logits(self, model: nn.Module, hidden_N_H: Tensor) -> Tensor:
        with _open(model) as inner:
            head: Any = causal(inner).get_output_embeddings()
            return head(hidden_N_H)

    def sampler(self, temperature: float) -> ChatSampler:
        return ChatSampler(self, temperature)

    def conversation(self) -> ChatConversation:
        return ChatConversation(self.renderer)

    def reference(self) -> nn.Module:
        return _EarlierAdapters(self.model) if self.settings.lora_rank else super().reference()

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        whole = causal(model)
        names = set(getattr(whole, "_no_split_modules", None) or ())
        return [module for module in whole.modules() if type(module).__name__ in names]

    @property
    def base_hash(self) -> str:
        return self.base

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        if self.settings.lora_rank:
            save_adapters(self.model, folder)
            return
        whole: Any = self.model
        save_model(whole, str(folder / "model.safetensors"))
        whole.config.save_pretrained(folder)
        if whole.generation_config is not None:
            whole.generation_config.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        if not self.settings.lora_rank:
            if (folder / ADAPTER_WEIGHTS).exists():
                raise RuntimeError("it holds adapters, and model.lora_rank is 0")
            load_model(self.model, str(folder / "model.safetensors"))
            return
        if not (folder / ADAPTER_WEIGHTS).exists():
            raise RuntimeError("it holds no adapters; to begin from whole weights, give its folder as model.path")
        load_adapters(self.model, folder)

    @property
    def _by_row(self) -> bool:
        return causal(self.model).config._attn_implementation == ROW_ATTENTION

    @property
    def _one_sequence(self) -> bool:
        # Flash attention, too, keeps rows apart in a single sequence alone.
        return self._by_row or self.settings.attention == "flash_attention_2"

    def _states(self, inner: nn.Module, sheet: Sheet) -> Tensor:
        place = sheet.to(self.device)
        by_row = self._by_row and place.mask_B_T is None and place.lengths
        rows = row_arguments(place.lengths, self.device) if by_row else {"attention_mask": place.mask_B_T}
        states = decoder(inner)(
            input_ids=place.input_B_T, position_ids=place.position_B_T, use_cache=False, **rows
        ).last_hidden_state
        return states[place.sequence_N, place.column_N]

    def _check_length(self, rows: Sequence[Row]) -> None:
        most = max(len(row.input_ids) for row in rows)
        if most > self.longest:
            raise TrainError(
                f"a row of {most} tokens is longer than model {self.settings.path!r} reads ({self.longest}); lower "
                "model.max_prompt_tokens or model.max_new_tokens, or let model.history repeat less"
            )


def build_chat_network(spec: TaskSpec, settings: ModelSection, seed: int) -> ChatNetwork:
    """The network of `model.path`, checked. Raises ConfigError when it does not suit, TrainError by `check_network`."""
    device = prepare_torch(settings)
    model = load_causal_model(settings)
    if can_split(model):
        model.set_attn_implementation(ROW_ATTENTION)
    tokenizer = load_tokenizer(settings)
    tools = spec.app.tools(spec.options)
    template = ChatTemplate(
        tokenizer,
        system=spec.app.system_prompt(spec.options),
        tools=tools,
        options=settings.template_options,
        name=settings.path,
        ends=end_ids(model),
    )
    rows = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[union-attr,arg-type]
    if len(tokenizer) > rows:
        problem = f"its tokenizer has {len(tokenizer)} tokens, its weights know {rows}"
        raise ConfigError(f"model {settings.path!r} cannot be used: {problem}", field="model.path")
    base = base_hash(model) if settings.lora_rank else ""
    adapted = with_adapters(model, settings, seed) if settings.lora_rank else model
    renderer = ChatRenderer(template, settings, tools)
    network = ChatNetwork(spec, settings, device, renderer, adapted.to(device), tokenizer, base)  # type: ignore[arg-type]
    _check_room(network)
    check_network(network)
    return network


@torch.no_grad()
def check_network(network: ChatNetwork) -> None:
    """Refuse a model whose rows, order or logits are not what training computes. Raises TrainError naming it."""
    vocabulary = network.vocabulary
    # The second and third row together are as long as the first, so that they share a sequence.
    sizes = ((3, 11), (5, 6), (8, 5))
    first, second, third = ([(7 * index + start) % vocabulary for index in range(size)] for start, size in sizes)
    rows = [_whole_row(ids) for ids in (first, second, third)]
    rough = network.settings.attention == "flash_attention_2"
    allowed = ROUGH if rough else TOLERANCE
    with autocast(network.settings, network.device) if rough else contextlib.nullcontext():
        together_N_H = network.hidden(network.model, rows)
        apart_N_H = torch.cat([network.hidden(network.model, [row]) for row in rows])
        early_N_H = network.hidden(network.model, [_whole_row(first[:4])])
        logit_N_V = network.logits(network.model, apart_N_H[: len(first)])
        own_N_V = causal(network.model)(torch.tensor([first], device=network.device), use_cache=False).logits[0]
    kind = type(causal(network.model)).__name__
    for what, ours, theirs in (
        ("looks at later tokens, so it is not causal", early_N_H, apart_N_H[:4]),
        ("mixes rows that share a sequence; set model.packing = false", together_N_H, apart_N_H),
        ("changes its logits after the output layer (scaling or capping), which is not supported", logit_N_V, own_N_V),
    ):
        difference = float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())
        if not difference < allowed:
            raise TrainError(f"architecture {kind} of {network.settings.path!r} {what} (differs by {difference:.2g})")


@contextlib.contextmanager
def _open(model: nn.Module) -> Iterator[nn.Module]:
    """The model to compute with: itself, or the one an earlier state stands for."""
    if isinstance(model, _EarlierAdapters):
        with model.in_force() as inner:
            yield inner
    else:
        yield model


def _whole_row(ids: Sequence[int]) -> Row:
    count = len(ids)
    return Row(tuple(ids), tuple(range(count)), tuple(ids), (-1,) * count, (0.0,) * count, (count,), (0.0,))


def _check_room(network: ChatNetwork) -> None:
    settings = network.settings
    needed = settings.max_prompt_tokens + settings.max_new_tokens
    if needed > network.longest:
        raise ConfigError(
            f"model.max_prompt_tokens ({settings.max_prompt_tokens}) and model.max_new_tokens "
            f"({settings.max_new_tokens}) are more than the {network.longest} tokens model {settings.path!r} reads",
            field="model.max_prompt_tokens",
        )
