"""Where a run's checkpoints lie and what they say of themselves: their names, pointers and `state.json`.

A checkpoint is made under another name, synced, and renamed; the pointer files `latest` and, where it is the best so
far, `best` are replaced last, so that a kill at any moment leaves a whole one. Older ones are deleted as `keep` says,
never those a pointer names. It reads and writes no weights (`checkpoint` does) and imports no torch.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task_app.core.errors import TrainError
from task_app.train.disk import writing

__all__ = ["FORMAT", "CheckpointState", "began_from", "checkpoints", "find_checkpoint", "latest_checkpoint",
           "mark_best", "place_of", "publish", "read_state", "sync"]  # fmt: skip

FORMAT = "task_app/checkpoint/1"
POINTER, BEST = "latest", "best"


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


def place_of(folder: Path, update: int) -> Path:
    """Where the checkpoint of an update belongs."""
    return folder / f"u{update:06d}"


def publish(partial: Path, target: Path, *, best: bool = False, keep: int = 0) -> None:
    """Give a whole, synced folder its place and point `latest` to it and, when it is the `best`, that pointer too.

    `keep` checkpoints remain besides the best; 0 keeps all. Raises OSError.
    """
    folder = target.parent
    shutil.rmtree(target, ignore_errors=True)  # left by a run that was killed before its pointer moved
    os.replace(partial, target)
    for name in (BEST, POINTER) if best else (POINTER,):
        _point(folder, name, target.name)
    sync(folder)
    _retain(folder, keep)


def mark_best(folder: Path, update: int, *, keep: int = 0) -> None:
    """Point `folder/best` to the checkpoint of an update, where there is one; older ones are then deleted as `keep`
    says. Raises TrainError when the disk refuses."""
    target = place_of(folder, update)
    if not target.is_dir() or _pointed(folder, BEST) == target:
        return
    with writing(folder / BEST):
        _point(folder, BEST, target.name)
        sync(folder)
        _retain(folder, keep)


def checkpoints(folder: Path) -> list[Path]:
    """Every whole checkpoint in the folder, the oldest first."""
    return sorted(path for path in folder.glob("u*") if path.is_dir())


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


def began_from(init_from: Path | None) -> dict[str, Any] | None:
    """What `training.init_from` names, for the log: the kind of run, its id and step. Raises TrainError."""
    if init_from is None:
        return None
    state = read_state(find_checkpoint(init_from))
    return {"kind": state.get("kind", "rl"), "run_id": state["run_id"], "update": state["update"]}


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _point(folder: Path, name: str, target: str) -> None:
    pointer = folder / f".partial-{name}"
    pointer.write_text(target + "\n", encoding="utf-8")
    sync(pointer)
    os.replace(pointer, folder / name)


def _pointed(folder: Path, name: str) -> Path | None:
    pointer = folder / name
    return folder / pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None


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
