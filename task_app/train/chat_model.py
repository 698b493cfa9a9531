"""Loading a causal language model of `transformers` and its tokenizer, with adapters where asked for.

Weights are float32 whatever the file holds. Nothing is fetched unless told; no code of a model's own is run. Every
reason why a model does not suit is a ConfigError that names it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError

__all__ = ["ADAPTER_WEIGHTS", "base_hash", "cache_argument", "causal", "decoder", "end_ids", "load_adapters",
           "load_causal_model", "load_tokenizer", "save_adapters", "with_adapters"]  # fmt: skip

ADAPTER_WEIGHTS = "adapter_model.safetensors"

_NOT_IDENTITY = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")


def load_tokenizer(settings: ModelSection) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises ConfigError."""
    try:
        return AutoTokenizer.from_pretrained(settings.path, local_files_only=not settings.allow_download)
    except (OSError, ValueError, KeyError) as error:
        raise _error(settings, f"its tokenizer cannot be read: {_first_line(error)}") from error


def load_causal_model(settings: ModelSection) -> PreTrainedModel:
    """The model in float32 and on the CPU, every dropout off. Raises ConfigError."""
    config = _config(settings)
    for key, value in config.to_dict().items():
        if ("dropout" in key or "pdrop" in key) and isinstance(value, float):
            setattr(config, key, 0.0)  # a policy whose log-probabilities vary by themselves has no ratio
    transformers_logging.disable_progress_bar()
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            settings.path,
            config=config,
            dtype=torch.float32,
            attn_implementation=settings.attention,
            local_files_only=not settings.allow_download,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        if "attention implementation" in str(error) or "attn_implementation" in str(error):
            raise ConfigError(
                f"model {settings.path!r} has no attention {settings.attention!r} here: {_first_line(error)}",
                field="model.attention",
            ) from error
        raise _error(settings, f"its weights cannot be loaded: {_first_line(error)}") from error
    model, loaded = found
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise _error(settings, f"its files lack {len(missing)} weights, the first is {missing[0]}")
    if settings.gradient_checkpointing:
        newer = getattr(model, "activation_checkpointing_enable", None)  # the name of 5.24 on
        (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model.eval()


def with_adapters(model: PreTrainedModel, settings: ModelSection, seed: int) -> PeftModel:
    """The model with float32 LoRA adapters that change nothing yet; they alone are trained. Raises ConfigError."""
    options = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]
        target_modules=settings.lora_targets or "all-linear",
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # `peft` still asks for checkpointing by the name it had before `transformers` 5.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
        torch.default_generator.manual_seed(seed)
        try:
            adapted = get_peft_model(model, options)
        except ValueError as error:
            raise ConfigError(
                f"model.lora_targets {settings.lora_targets} does not fit model {settings.path!r}: "
                f"{_first_line(error)}",
                field="model.lora_targets",
            ) from error
    return adapted.eval()  # type: ignore[return-value]


def save_adapters(model: nn.Module, folder: Path) -> None:
    """Write the adapters in `peft`'s own form. Raises OSError."""
    adapted: Any = model
    weights = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    kept = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    save_file(kept, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    adapted.peft_config["default"].save_pretrained(folder)


def load_adapters(model: nn.Module, folder: Path) -> None:
    """Put stored adapters into a model that has some of the same form. Raises OSError, RuntimeError for others."""
    weights = load_file(folder / ADAPTER_WEIGHTS)
    adapted: Any = model
    own = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    shapes, given = ({name: value.shape for name, value in part.items()} for part in (own, weights))
    if shapes != given:
        differing = sorted(name for name in shapes | given if shapes.get(name) != given.get(name))
        raise RuntimeError(f"its adapters have another form, the first that differs is {differing[0]}")
    set_peft_model_state_dict(adapted, weights)


def causal(model: nn.Module) -> PreTrainedModel:
    """The `transformers` model inside one with adapters, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model  # type: ignore[return-value]


def decoder(model: nn.Module) -> nn.Module:
    """The part of a model that makes hidden states."""
    whole = causal(model)
    return getattr(whole, whole.base_model_prefix)


def cache_argument(model: nn.Module) -> str:
    """What the decoder calls the keys and values kept: `cache` from `transformers` 5.24 on."""
    return "cache" if "cache" in inspect.signature(decoder(model).forward).parameters else "past_key_values"


def end_ids(model: PreTrainedModel) -> list[int]:
    """The tokens at which the model itself says generation ends."""
    generation: Any = model.generation_config
    ends = generation.eos_token_id if generation is not None else None
    return [] if ends is None else [int(ends)] if isinstance(ends, int) else [int(end) for end in ends]


def base_hash(model: PreTrainedModel) -> str:
    """Sixteen hex digits over a model's shape and a few numbers of every weight: enough to tell two models apart."""
    shape = {key: value for key, value in model.config.to_dict().items() if key not in _NOT_IDENTITY}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.detach().flatten()[:16].cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]


def _config(settings: ModelSection) -> PreTrainedConfig:
    if settings.path.startswith(("/", ".", "~")) and not Path(settings.path).is_dir():
        raise _error(settings, "it is not found or no model: there is no such folder")
    try:
        config = AutoConfig.from_pretrained(settings.path, local_files_only=not settings.allow_download)
    except (OSError, ValueError, KeyError) as error:
        hint = "" if settings.allow_download else "; give a folder, or set model.allow_download = true for a name"
        raise _error(settings, f"it is not found or no model: {_first_line(error)}{hint}") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or getattr(config, "is_encoder_decoder", False):
        raise _error(settings, f"its type {config.model_type!r} is no causal language model")
    return config


def _error(settings: ModelSection, problem: str) -> ConfigError:
    return ConfigError(f"model {settings.path!r} cannot be used: {problem}", field="model.path")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
