"""Training in a container: the run folder lies on the volume, so that another attempt resumes it by itself.

The trace database is on the container's own disk and kept in the run folder as traces.db: a copy is made before each
checkpoint that rests on it, so a checkpoint never knows more than the database it is resumed with.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from task_app.core.errors import ConfigError
from task_app.deploy.deployment import VOLUME, Deployment
from task_app.deploy.keeping import Keeper

__all__ = ["train_on_volume"]

LOCAL = Path("/tmp/task-app/training.db")


def train_on_volume(
    deployment: Deployment,
    kind: str,
    commit: Callable[[], object],
    *,
    say: Callable[[str], None] = print,
    local: Path = LOCAL,
    volume: Path = VOLUME,
) -> dict[str, Any]:
    """Train or resume as the config says; where the run is and how it ended, as JSON values.

    Raises ConfigError for another kind than rl and sft and for files that are not on the volume, and what training
    raises.
    """
    if kind not in ("rl", "sft"):
        raise ConfigError(f"kind must be 'rl' or 'sft', got {kind!r}", field="kind")
    config = deployment.for_training(local, volume)
    run_dir = (config.training if kind == "rl" else config.sft).run_dir
    keeper = Keeper(local, run_dir / "traces.db", commit)
    for left in local.parent.glob(f"{local.name}*"):
        left.unlink()  # by another run, in a container that was used before
    if keeper.restore():
        say(f"going on with the episodes in {run_dir / 'traces.db'}")

    def progress(line: dict[str, Any]) -> None:
        say(json.dumps(line, default=str))
        if line["kind"] != "update" or line["update"] % config.training.checkpoint_every == 0:
            keeper.keep()

    try:
        return _train_rl(config, progress, say) if kind == "rl" else _train_sft(config, progress)
    finally:
        keeper.keep()
        commit()


def _train_rl(config: Any, progress: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> dict[str, Any]:
    from task_app.train.launch import train_config

    result, _ = train_config(config, progress=progress, note=say)
    return {"run_id": result.run_id, "run_dir": str(result.run_dir), "updates": result.updates, "after": result.after}


def _train_sft(config: Any, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    from task_app.train.launch import train_sft

    return train_sft(config, progress=progress).to_json()
