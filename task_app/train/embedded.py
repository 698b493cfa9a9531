"""The embedded network: a small `transformers` Qwen3 over a task app's own words, run by `decoder.py`.

Built for a task whose answers follow a grammar; rows are padded, since words are few and rows alike in length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError
from task_app.core.task import TaskSpec
from task_app.train.decoder import encode
from task_app.train.masks import GrammarTable
from task_app.train.model import Qwen3ForCausalLM, build_model, prepare_torch
from task_app.train.network import Network
from task_app.train.renderer import Renderer
from task_app.train.rows import Row
from task_app.train.sampler import Sampler
from task_app.train.tokenizer import WordTokenizer

__all__ = ["EmbeddedNetwork", "build_network"]


@dataclass(frozen=True)
class EmbeddedNetwork(Network):
    """See `Network`; `renderer` reads words, `table` is never None."""

    spec: TaskSpec
    settings: ModelSection
    device: torch.device
    renderer: Renderer
    table: GrammarTable
    model: Qwen3ForCausalLM

    def hidden(self, model: nn.Module, rows: Sequence[Row]) -> Tensor:
        input_B_T, position_B_K, kept_B_K = (tensor.to(self.device) for tensor in _padded(rows))
        return encode(model, input_B_T, position_B_K)[kept_B_K]  # pyright: ignore[reportArgumentType]

    def logits(self, model: nn.Module, hidden_N_H: Tensor) -> Tensor:
        head: Any = model.lm_head
        return head(hidden_N_H)

    def sampler(self, temperature: float) -> Sampler:
        return Sampler(self.model, self.table, self.settings, temperature)

    def save(self, folder: Path) -> None:
        save_model(self.model, str(folder / "model.safetensors"))
        self.model.config.to_json_file(folder / "config.json")
        (folder / "tokenizer.json").write_text(self.renderer.tokenizer.json, encoding="utf-8")

    def load(self, folder: Path) -> None:
        load_model(self.model, str(folder / "model.safetensors"))


def _padded(rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows padded on the right (B, T), their positions (B, K), and which of these are real (B, K)."""
    longest, most = max(len(row.input_ids) for row in rows), max(len(row.positions) for row in rows)
    input_B_T = torch.zeros(len(rows), longest, dtype=torch.long)
    position_B_K = torch.zeros(len(rows), most, dtype=torch.long)
    kept_B_K = torch.zeros(len(rows), most, dtype=torch.bool)
    for index, row in enumerate(rows):
        input_B_T[index, : len(row.input_ids)] = torch.tensor(row.input_ids)
        position_B_K[index, : len(row.positions)] = torch.tensor(row.positions)
        kept_B_K[index, : len(row.positions)] = True
    return input_B_T, position_B_K, kept_B_K


def build_network(spec: TaskSpec, settings: ModelSection, seed: int) -> EmbeddedNetwork:
    """A freshly initialised network for a task. Raises ConfigError when the app has no grammar or vocabulary."""
    grammar, vocabulary = spec.app.grammar(spec.options), spec.app.vocabulary(spec.options)
    if grammar is None or not vocabulary:
        raise ConfigError(
            f"task app {spec.app.name!r} has no {'grammar' if grammar is None else 'vocabulary'}: "
            "the embedded policy cannot play it",
            field="policy.name",
        )
    device = prepare_torch(settings)
    tokenizer = WordTokenizer(vocabulary)
    return EmbeddedNetwork(
        spec=spec,
        settings=settings,
        device=device,
        renderer=Renderer(tokenizer, spec),
        table=GrammarTable(grammar, tokenizer, device),
        model=build_model(settings, len(tokenizer), seed, device),
    )
