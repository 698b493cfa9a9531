"""Checkpoints: everything a run needs to go on, written so that a kill at any moment leaves a whole one.

A checkpoint is a folder, made under another name, synced, and renamed; the pointer files `latest` and, where it is the
best so far, `best` are replaced last. There is no random state in it: all noise is keyed. Older ones are deleted
as `keep` says, never those a pointer names.

    model.safetensors  weights, float32      optimizer.pt     optimiser state
    state.json         update, running means, hashes, settings
    config.json        the network in `transformers`' own form       tokenizer.json  the tokenizer's

A model with adapters has `adapter_model.safetensors` and `adapter_config.json` (in `peft`'s form) instead of weights.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import ValidationError
from safetensors import SafetensorError

from task_app.codehash import code_hash
from task_app.config.training import ModelSection
from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.train.disk import writing
from task_app.train.load import build_network
from task_app.train.network import Network
from task_app.train.policy import EmbeddedPolicy

__all__ = ["BEST", "FORMAT", "CheckpointState", "began_from", "checkpoints", "find_checkpoint", "initialise",
           "latest_checkpoint", "load_policy", "load_weights", "mark_best", "read_state", "restore",
           "save_checkpoint"]  # fmt: skip

FORMAT = "task_app/checkpoint/1"
POINTER, BEST = "latest", "best"


class Stateful(Protocol):
    """What keeps an optimiser's state: one of PyTorch's, or `Weights`."""

    def state_dict(self) -> dict[str, Any]:
        """The state, with the network it belongs to made what was trained."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Put a state back, once the network has its weights."""
        ...


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a checkpoint says besides numbers of the network.

    update    updates that made these weights
    baseline  `RunningBaseline.to_dict()`
    config    the run's resolved config as JSON values
    kind      how the weights were made: rl | sft
    """

    update: int
    run_id: str
    baseline: dict[str, Any]
    config: dict[str, Any]
    kind: str = "rl"


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
    target = folder / _name(state.update)
    partial = folder / f".partial-{target.name}"
    momenta = optimizer.state_dict()  # first: it also completes the network's weights
    with writing(target):
        _write_whole(partial, network, momenta, state)
        shutil.rmtree(target, ignore_errors=True)  # left by a run that was killed before its pointer moved
        os.replace(partial, target)
        for name in (BEST, POINTER) if best else (POINTER,):
            _point(folder, name, target.name)
        _sync(folder)
        _retain(folder, keep)
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
            _sync(file)
        _sync(folder)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _point(folder: Path, name: str, target: str) -> None:
    pointer = folder / f".partial-{name}"
    pointer.write_text(target + "\n", encoding="utf-8")
    _sync(pointer)
    os.replace(pointer, folder / name)


def mark_best(folder: Path, update: int, *, keep: int = 0) -> None:
    """Point `folder/best` to the checkpoint of an update, where there is one; older ones are then deleted as `keep`
    says. Raises TrainError when the disk refuses."""
    target = folder / _name(update)
    if not target.is_dir() or _pointed(folder, BEST) == target:
        return
    with writing(folder / BEST):
        _point(folder, BEST, target.name)
        _sync(folder)
        _retain(folder, keep)


def _retain(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and those a pointer names.

    Each is renamed first, so that a kill in between leaves no half of a checkpoint under a checkpoint's name.
    """
    for path in folder.glob(".removed-*"):
        shutil.rmtree(path)
    if not keep:
        return
    named = {_pointed(folder, name) for name in (BEST, POINTER)}
    for path in checkpoints(folder)[:-keep]:
        if path not in named:
            removed = folder / f".removed-{path.name}"
            os.replace(path, removed)
            shutil.rmtree(removed)


def checkpoints(folder: Path) -> list[Path]:
    """Every whole checkpoint in the folder, the oldest first."""
    return sorted(path for path in folder.glob("u*") if path.is_dir())


def _name(update: int) -> str:
    return f"u{update:06d}"


def _pointed(folder: Path, name: str) -> Path | None:
    pointer = folder / name
    return folder / pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint the pointer names; None where none was finished."""
    return _pointed(folder, POINTER)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint meant by a path: itself one, or a run folder, whose best (else latest) it is."""
    for folder in (path, path / "checkpoints"):
        for name in (BEST, POINTER):
            found = _pointed(folder, name)
            if found is not None:
                return found
    return path


def initialise(network: Network, init_from: Path | None) -> None:
    """Put the weights of another run into a fresh network, where one is named. Raises TrainError."""
    if init_from is not None:
        load_weights(find_checkpoint(init_from), network)


def began_from(init_from: Path | None) -> dict[str, Any] | None:
    """What `training.init_from` names, for the log: the kind of run, its id and step. Raises TrainError."""
    if init_from is None:
        return None
    state = read_state(find_checkpoint(init_from))
    return {"kind": state.get("kind", "rl"), "run_id": state["run_id"], "update": state["update"]}


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The whole `state.json`. Raises TrainError when the folder is no checkpoint of this form."""
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainError(f"{checkpoint} is not a checkpoint: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise TrainError(f"{checkpoint} has another form than {FORMAT!r}")
    missing = sorted({"update", "run_id", "baseline", "config"} - state.keys())
    if missing:
        raise TrainError(f"{checkpoint} is damaged: its state.json lacks {', '.join(missing)}")
    return state


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


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
