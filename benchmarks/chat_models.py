"""Random Qwen3-shaped models and a tokenizer with a chat template, as folders `transformers` reads. Trains nothing.

The tokenizer is learnt from given texts, so that a real prompt has about as many tokens as a model's own would give.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

__all__ = ["TEMPLATE", "make_tokenizer", "write_model"]

OPEN, CLOSE, PAD = "<|open|>", "<|close|>", "<|pad|>"
TEMPLATE = (
    "<|open|>system\n"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{%- if tools %}\ntools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}{% endif %}<|close|>\n"
    "{%- for m in messages if m.role != 'system' %}<|open|>{{ m.role }}\n{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|close|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|open|>assistant\n{% endif %}"
)
"""Turns between markers, the tools in the system turn; earlier turns are left as they were said."""


def make_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Byte pairs learnt from the texts, at most `size` of them, the template's markers included."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer: Any = trainers.BpeTrainer
    learn = trainer(
        vocab_size=size,
        special_tokens=[PAD, OPEN, CLOSE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, learn)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=CLOSE,
        pad_token=PAD,
        additional_special_tokens=[OPEN],
        chat_template=TEMPLATE,
    )


def write_model(folder: Path, tokenizer: PreTrainedTokenizerFast, shape: dict[str, Any], *, seed: int = 5) -> int:
    """A random Qwen3 with tied weights and its tokenizer in `folder`; its number of parameters.

    `shape` are keys of `Qwen3Config`; the vocabulary is the tokenizer's unless given.
    """
    transformers_logging.disable_progress_bar()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen3Config(**({"vocab_size": len(tokenizer), "tie_word_embeddings": True} | ends | shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())
