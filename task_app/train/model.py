"""The embedded policy's network: `transformers`' Qwen3 architecture, small, randomly initialised.

Builds the network and says where it computes. How it is run is `decoder.py`'s business.
"""

from __future__ import annotations

import torch
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError
from task_app.train.ranks import current

__all__ = ["Qwen3ForCausalLM", "build_model", "prepare_torch"]


def prepare_torch(settings: ModelSection) -> torch.device:
    """Set the process's thread count and return the device, of several processes each its own card.

    Raises ConfigError when it is not there. One thread is the default: two on a busy
    machine wait for each other far longer than they save.
    """
    torch.set_num_threads(settings.threads)
    try:
        device = current().device(settings.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model.device {settings.device!r} cannot be used: {reason}", field="model.device") from error
    return device


def build_model(settings: ModelSection, vocabulary: int, seed: int, device: torch.device) -> Qwen3ForCausalLM:
    """A fresh network in float32 whose weights depend on `seed` alone; global random state is left as it was."""
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.hidden_size // settings.heads,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model.to(device).eval()  # pyright: ignore[reportArgumentType]
