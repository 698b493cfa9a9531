"""Train, here or through a service, and keep the result in one JSON file. The file is written once, when it is over."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from task_app.config import load_config
from task_app.core.errors import ConfigError
from task_app.core.imports import extra_imports
from task_app.jobs.launch import Launch, run_job
from task_app.jobs.process import write_json

__all__ = ["Saved", "run_and_save", "train_here"]


@dataclass(frozen=True, slots=True)
class Saved:
    """What the file holds: the status and its reason, the checkpoint (empty without one), and all that was said."""

    status: str
    reason: str
    checkpoint: str
    exit_code: int
    result: dict[str, Any]


def run_and_save(
    launch: Launch,
    environ: Mapping[str, str],
    output: Path,
    *,
    timeout_s: float,
    progress: Callable[[dict[str, Any]], None] = lambda job: None,
) -> Saved:
    """Through a service. Raises ConfigError, before anything is sent where `output` cannot be written, and
    PolicyError."""
    _check_writable(output)
    found = run_job(launch, environ, timeout_s=timeout_s, progress=progress)
    checkpoint = str((found.job.get("result") or {}).get("checkpoint", ""))
    return _save(Saved(found.status, str(found.job.get("reason", "")), checkpoint, found.exit_code, found.job), output)


def train_here(
    kind: Literal["rl", "sft"],
    config: Path,
    overrides: Mapping[str, Any],
    output: Path,
    *,
    note: Callable[[str], None],
) -> Saved:
    """In this process. Raises ConfigError, TrainError and StoreError; then nothing is saved."""
    _check_writable(output)
    settings = load_config(config, overrides)
    with extra_imports("train"):
        from task_app.train.launch import train_config, train_sft

    if kind == "sft":
        outcome = train_sft(settings, progress=lambda line: None)
        result, checkpoint = outcome.to_json(), outcome.result.checkpoint
    else:
        trained, _ = train_config(settings, progress=lambda line: None, note=note)
        checkpoint = trained.checkpoint
        result = {"run_id": trained.run_id, "run_dir": str(trained.run_dir), "before": trained.before}
        result |= {"after": trained.after, "updates": trained.updates}
    return _save(Saved("succeeded", "", str(checkpoint), 0, result), output)


def _check_writable(output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.is_dir() or not os.access(output.parent, os.W_OK):
            raise PermissionError("no file can be written there")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}", field="output") from error


def _save(saved: Saved, output: Path) -> Saved:
    write_json(output, asdict(saved))
    return saved
