"""Random models of three shapes, small enough for tests, each with a tokenizer of bytes and a chat template of its own.

qwen3  turns between markers, tools in the system turn, thinking of earlier answers left out
llama  a header before each turn, tools in the first user's turn
gpt2   absolute positions, tied weights; the plainest template that knows tools
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging as transformers_logging

SHAPES = ("qwen3", "llama", "gpt2")

_CALLS = (
    "{%- for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
)

TEMPLATES = {
    "qwen3": (
        "{%- set last = namespace(user=-1) %}"
        "{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}"
        "{%- if messages[0].role == 'system' or tools %}<|open|>system\n"
        "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
        "{%- if tools %}\ntools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}{% endif %}<|close|>\n"
        "{%- endif %}"
        "{%- for m in messages if m.role != 'system' %}<|open|>{{ m.role }}\n"
        "{%- if m.role == 'assistant' %}{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
        "{%- if loop.last and '</think>' in m.content %}{{ m.content }}{% else %}{{ said }}{% endif %}"
        + _CALLS
        + "{% else %}{{ m.content }}{% endif %}<|close|>\n{% endfor %}"
        "{%- if add_generation_prompt %}<|open|>assistant\n"
        "{%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "llama": (
        "<|begin|>"
        "{%- set shown = namespace(tools=false) %}"
        "{%- for m in messages %}<|head|>{{ m.role }}<|body|>"
        "{%- if m.role == 'user' and tools and not shown.tools %}{% set shown.tools = true %}"
        "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
        "{{ m.content }}"
        "{%- if m.role == 'assistant' %}" + _CALLS + "{% endif %}<|close|>{% endfor %}"
        "{%- if add_generation_prompt %}<|head|>assistant<|body|>{% endif %}"
    ),
    "gpt2": (
        "{%- for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
        "{%- for m in messages %}{{ m.role }}: {{ m.content }}"
        "{%- if m.role == 'assistant' %}" + _CALLS + "{% endif %}<|close|>{% endfor %}"
        "{%- if add_generation_prompt %}assistant: {% endif %}"
    ),
}


def byte_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """A token for each byte, and the markers of the templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={sign: index for index, sign in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    markers = ["<|begin|>", "<|open|>", "<|head|>", "<|body|>"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|close|>",
        pad_token="<|pad|>",
        additional_special_tokens=markers,
        chat_template=template,
    )


def make_model(shape: str, vocabulary: int, **changes: Any) -> torch.nn.Module:
    """A model whose weights are large enough for its choices to be far from even; always the same ones."""
    common: dict[str, Any] = {"vocab_size": vocabulary, "initializer_range": 0.2, "eos_token_id": None}
    common |= {"bos_token_id": None, "pad_token_id": None}
    if shape == "gpt2":
        sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 1024}
        config: Any = GPT2Config(**(sizes | common | changes))
        kind: Any = GPT2LMHeadModel
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 1024, "head_dim": 16}
        config = (Qwen3Config if shape == "qwen3" else LlamaConfig)(**(sizes | common | changes))
        kind = Qwen3ForCausalLM if shape == "qwen3" else LlamaForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return kind(config)


def write_model(folder: Path, shape: str, *, template: str | None = "", **changes: Any) -> Path:
    """Model and tokenizer as a folder `transformers` reads; `template` other than "" replaces the shape's own."""
    tokenizer = byte_tokenizer(TEMPLATES[shape] if template == "" else template)
    model: Any = make_model(shape, len(tokenizer), **changes)
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
