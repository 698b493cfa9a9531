"""A checkpoint → a plain Hugging Face folder that `AutoModelForCausalLM` and `AutoTokenizer` read. Trains nothing.

What only training needs (optimiser, run state) stays behind. Adapters go out as a `peft` folder, or merged into the
weights of the model they were trained on.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError, TrainError
from task_app.train.chat_model import base_hash, load_adapters, load_causal_model, with_adapters
from task_app.train.checkpoint_folder import find_checkpoint, read_state
from task_app.train.disk import make_folder
from task_app.train.tokenizer import PAD

__all__ = ["export_checkpoint"]

_KEPT_BACK = ("optimizer.pt", "state.json")


def export_checkpoint(run: Path, output: Path, *, merge: bool = False) -> Path:
    """Write the checkpoint of `run` (a run folder's best, else latest) to the folder `output`; returns the checkpoint.

    `merge` adds adapters into whole weights. Raises ConfigError when `output` is taken or there is nothing to merge,
    TrainError when `run` holds no checkpoint or the disk refuses; `output` is then not there.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists and is not an empty folder; give another --output", field="output")
    checkpoint = find_checkpoint(run)
    state = read_state(checkpoint)
    try:
        settings = ModelSection.model_validate(state["config"]["model"])
    except (KeyError, TypeError, ValidationError) as error:
        raise TrainError(f"{checkpoint} holds no usable settings: {error}") from error
    if merge and not settings.lora_rank:
        raise ConfigError(f"{checkpoint} holds whole weights; --merge is for adapters", field="merge")
    transformers_logging.disable_progress_bar()

    def write(folder: Path) -> None:
        if merge:
            _merge(checkpoint, settings, str(state.get("base_hash")), folder)
        else:
            _copy(checkpoint, folder, embedded=not settings.path)

    make_folder(output, write)
    return checkpoint


def _copy(checkpoint: Path, folder: Path, *, embedded: bool) -> None:
    for file in checkpoint.iterdir():
        if file.name not in _KEPT_BACK:
            shutil.copyfile(file, folder / file.name)
    if embedded:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"), pad_token=PAD)
        tokenizer.save_pretrained(folder)


def _merge(checkpoint: Path, settings: ModelSection, trained_on: str, folder: Path) -> None:
    base = load_causal_model(settings)
    if base_hash(base) != trained_on:
        raise TrainError(f"the adapters of {checkpoint} were trained on other weights than {settings.path!r} now has")
    adapted: Any = with_adapters(base, settings, seed=0)
    load_adapters(adapted, checkpoint)
    merged = adapted.merge_and_unload()
    merged.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
