"""Loads SFT exports as their users do and trains one step on one of them; prints what came of it as JSON.

    python tests/export/train_with_trl.py TRL.jsonl OPENAI.jsonl FOLDER

A process of its own: the libraries are heavy, and their warnings are not this project's. A tiny model and a
tokenizer of single bytes are made on the spot, the chat templates come with trl; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}

import datasets
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.data_utils import apply_chat_template, is_conversational
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the markers of Qwen's templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({sign: index for index, sign in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False, use_regex=False
    )
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )


def load(path: str, folder: Path) -> datasets.Dataset:
    loaded = datasets.load_dataset("json", data_files=path, split="train", cache_dir=str(folder / "cache"))
    assert isinstance(loaded, datasets.Dataset)
    return loaded


def train(data: datasets.Dataset, folder: Path) -> dict[str, Any]:
    """One step of SFT on the assistant's words: its loss, and the words each row is learned from."""
    words = tokenizer()
    words.chat_template = (TEMPLATES / "qwen3_training.jinja").read_text()
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(words), max_position_embeddings=8192, **sizes, **heads))
    settings = SFTConfig(
        output_dir=str(folder / "out"),
        max_steps=1,
        per_device_train_batch_size=2,
        assistant_only_loss=True,
        max_length=None,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(model=model, args=settings, train_dataset=data, processing_class=words)
    loss = trainer.train().training_loss
    rows: Any = trainer.train_dataset
    learned = [
        words.decode([token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100])
        for row in rows
    ]
    return {"loss": loss, "learned": learned}


def main(trl_file: str, openai_file: str, folder: Path) -> dict[str, Any]:
    data = {"trl": load(trl_file, folder), "openai": load(openai_file, folder)}
    files: dict[str, list[Any]] = {form: list(loaded) for form, loaded in data.items()}
    words = tokenizer()
    words.chat_template = (TEMPLATES / "qwen2_5.jinja").read_text()
    return {
        "rows": files,
        "conversational": all(is_conversational(row) for rows in files.values() for row in rows),
        "qwen2_5": {
            form: [apply_chat_template(row, words, tools=row["tools"])["text"] for row in rows]
            for form, rows in files.items()
        },
        "sft": train(data["trl"], folder),
    }


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    print(json.dumps(result))
