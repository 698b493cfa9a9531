"""Checkpoints: everything a run needs to go on, saved and loaded. Which there are, `checkpoint_folder` knows.

There is no random state in one: all noise is keyed.

    model.safetensors  weights, float32      optimizer.pt     optimiser state
    state.json         update, running means, hashes, settings
    config.json        the network in `transformers`' own form       tokenizer.json  the tokenizer's

A model with adapters has `adapter_model.safetensors` and `adapter_config.json` (in `peft`'s form) instead of weights.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from task_app.codehash import code_hash
from task_app.config.training import ModelSection
from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.train.checkpoint_folder import (
    FORMAT,
    CheckpointState,
    find_checkpoint,
    place_of,
    publish,
    read_state,
    sync,
)
from task_app.train.disk import writing
from task_app.train.load import build_network
from task_app.train.network import Network
from task_app.train.policy import EmbeddedPolicy

__all__ = ["initialise", "load_policy", "load_weights", "restore", "save_checkpoint"]


class Stateful(Protocol):
    """What keeps an optimiser's state: one of PyTorch's, or `Weights`."""

    def state_dict(self) -> dict[str, Any]:
        """The state, with the network it belongs to made what was trained."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Put a state back, once the network has its weights."""
        ...


def save_checkpoint(
    folder: Path,
    network: Network,
    optimizer: Stateful,
    state: CheckpointState,
    *,
    best: bool = False,
    keep: int = 0,
) -> Path:
    """Write `folder/u<update>`, point `folder/latest` to it and, when it is the `best`, that pointer too.

    `keep` checkpoints remain besides the best; 0 keeps all. Raises TrainError when the disk refuses.
    """
    target = place_of(folder, state.update)
    partial = folder / f".partial-{target.name}"
    momenta = optimizer.state_dict()  # first: it also completes the network's weights
    with writing(target):
        _write_whole(partial, network, momenta, state)
        publish(partial, target, best=best, keep=keep)
    return target


def _write_whole(folder: Path, network: Network, momenta: dict[str, Any], state: CheckpointState) -> None:
    """Write and sync every file; where one is refused nothing is left, since the disk may be full."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        network.save(folder)
        torch.save(momenta, folder / "optimizer.pt")
        _write_json(folder / "state.json", _state_json(network, state))
        for file in folder.iterdir():
            sync(file)
        sync(folder)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def initialise(network: Network, init_from: Path | None) -> None:
    """Put the weights of another run into a fresh network, where one is named. Raises TrainError."""
    if init_from is not None:
        load_weights(find_checkpoint(init_from), network)


def load_weights(checkpoint: Path, network: Network) -> dict[str, Any]:
    """Put a checkpoint's weights into `network`; returns its state.

    Raises TrainError when grammar, renderer, prompt or base model are not the network's own, or files are damaged.
    """
    state = read_state(checkpoint)
    if network.base_hash and "base_hash" not in state:
        raise TrainError(f"{checkpoint} holds whole weights; to train adapters on them, give its folder as model.path")
    for name, own in _hashes(network).items():
        if state.get(name) != own:
            raise TrainError(
                f"checkpoint {checkpoint} was trained with {name} {state.get(name)}, this task has {own}: the same "
                "app, version and options are needed, the same tokenizer and chat template where the model has its "
                "own, and for adapters the same base model"
            )
    try:
        network.load(checkpoint)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]  # one that tells of every tensor takes pages
        raise TrainError(f"weights of {checkpoint} cannot be loaded: {reason}") from error
    return state


def restore(checkpoint: Path, network: Network, optimizer: Stateful) -> CheckpointState:
    """Put weights and optimiser state back, to go on training. Raises TrainError."""
    state = load_weights(checkpoint, network)
    try:
        optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", weights_only=True))
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        # The library's own text would advise to load a damaged or foreign file unsafely.
        raise TrainError(f"optimiser state of {checkpoint} cannot be loaded: the file is damaged or foreign") from error
    return CheckpointState(state["update"], state["run_id"], state["baseline"], state["config"])


def load_policy(checkpoint: Path, spec: TaskSpec, *, temperature: float | None = None) -> EmbeddedPolicy:
    """The policy of a checkpoint, ready to play `spec`; a run folder means its best, else its latest.

    Only weights are read. The temperature is the one it was trained at unless given. Raises TrainError.
    """
    checkpoint = find_checkpoint(checkpoint)
    state = read_state(checkpoint)
    try:
        settings = ModelSection.model_validate(state["config"]["model"])
        trained_at = float(state["config"]["policy"]["temperature"])
    except (KeyError, TypeError, ValidationError) as error:
        raise TrainError(f"{checkpoint} holds no usable settings: {error}") from error
    if settings.path and not settings.lora_rank:  # it holds all that its base model had
        settings = settings.model_copy(update={"path": str(checkpoint)})
    network = build_network(spec, settings, seed=0)
    load_weights(checkpoint, network)
    return EmbeddedPolicy(
        network, temperature=trained_at if temperature is None else temperature, updates=state["update"]
    )


def _hashes(network: Network) -> dict[str, str]:
    own = {
        "grammar_hash": network.grammar_hash,
        "renderer_hash": network.renderer.hash,
        "prompt_hash": network.spec.prompt_hash,
    }
    return own | ({"base_hash": network.base_hash} if network.base_hash else {})


def _state_json(network: Network, state: CheckpointState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": state.kind,
        "update": state.update,
        "run_id": state.run_id,
        **_hashes(network),
        "task": network.spec.app.name,
        "torch": torch.__version__,
        "code_hash": code_hash(),
        "baseline": state.baseline,
        "config": state.config,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False), encoding="utf-8")
