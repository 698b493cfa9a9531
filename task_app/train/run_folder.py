"""What holds for the folder of any run, by reinforcement or by imitation: which run may go on in it, and its settings.

    checkpoints/  see `checkpoint`      config.json  the settings of the last start      metrics.jsonl  see `metrics`

It loads no weights and makes no decision about a run that is not in the folder.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from task_app.codehash import changed_code
from task_app.core.errors import ConfigError, TrainError
from task_app.credit import RunningBaseline
from task_app.train.checkpoint_folder import CheckpointState, latest_checkpoint, read_state
from task_app.train.disk import replace_text
from task_app.train.ledger import RunKind
from task_app.train.plan import differing_keys, differing_sft_keys

__all__ = ["baseline_of", "checkpoints_of", "resumable", "warn_of_code", "write_settings"]

_log = logging.getLogger(__name__)

_SECTION: dict[RunKind, str] = {"rl": "training", "sft": "sft"}


def checkpoints_of(run_dir: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_dir / "checkpoints"


def resumable(
    run_dir: Path, kind: RunKind, settings: Mapping[str, Any], allowed: Collection[str] = ()
) -> dict[str, Any] | None:
    """The state of the checkpoint from which a run with these resolved settings goes on; None where it begins.

    Raises ConfigError when the folder holds a run of another kind or with other settings, `allowed` ones aside,
    naming the keys, and TrainError for a checkpoint that cannot be read.
    """
    found = latest_checkpoint(checkpoints_of(run_dir))
    if found is None:
        return None
    state, section = read_state(found), _SECTION[kind]
    if state.get("kind") != kind:
        raise ConfigError(
            f"{run_dir} holds a run of type {state.get('kind')}; use another {section}.run_dir for one of type {kind}",
            field=f"{section}.run_dir",
        )
    stored = state["config"]
    try:
        keys = differing_keys(stored, settings, allowed) if kind == "rl" else differing_sft_keys(stored, settings)
    except (KeyError, TypeError, AttributeError) as error:
        raise TrainError(f"{found} holds no usable settings: {error!r}") from error
    if keys:
        remedy = ", or name what may change in training.allow_changed" if kind == "rl" else ""
        raise ConfigError(
            f"{run_dir} holds a run with other settings: {', '.join(keys)}; use its settings to resume it, "
            f"another {section}.run_dir{remedy}",
            field=keys[0],
        )
    return state


def baseline_of(checkpoint: Path, state: CheckpointState) -> RunningBaseline:
    """The running means of a checkpoint. Raises TrainError for those this version cannot go on with."""
    try:
        return RunningBaseline.from_dict(state.baseline)
    except (KeyError, TypeError, ValueError) as error:
        raise TrainError(f"{checkpoint} cannot be gone on from: {error}") from error


def warn_of_code(checkpoint: Path) -> None:
    """Tell where other code made the checkpoint than runs now."""
    changed = changed_code(read_state(checkpoint).get("code_hash"))
    if changed:
        _log.warning("%s", changed)


def write_settings(run_dir: Path, settings: Mapping[str, Any]) -> None:
    """Write `config.json`, whole or not at all. Raises TrainError when the disk refuses."""
    replace_text(run_dir / "config.json", json.dumps(settings, indent=1, sort_keys=True))
