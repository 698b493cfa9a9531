"""What a training would do and cost at most, before it does anything: for `train --dry-run`. Reads; writes nothing.

It plays no episode, opens no database and no connection, and loads no weights.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from task_app.config.models import Config
from task_app.core.errors import ConfigError
from task_app.train.plan import check_config, check_lessons, config_json, unused_keys, update_seeds, warnings
from task_app.train.run_folder import resumable
from task_app.train.tracker import check_tracking
from task_app.wiring import check

__all__ = ["budget", "check_start", "count_lines"]


def check_start(config: Config, kind: str) -> int:
    """The updates or steps that the run folder of a training of type rl or sft has.

    Raises ConfigError, and TrainError for a checkpoint that cannot be read, as the training itself would: asked
    first, it answers before torch is loaded, which takes seconds.
    """
    spec = check(config)
    if kind == "sft":
        check_lessons(config, spec)
        check_tracking(config.tracking)
        state = resumable(config.sft.run_dir, "sft", config_json(config))
    else:
        check_config(config)
        state = resumable(config.training.run_dir, "rl", config_json(config), config.training.allow_changed)
    return int(state["update"]) if state else 0


def budget(config: Config, kind: str) -> dict[str, Any]:
    """The plan of a run of type rl or sft, by name, with plain JSON values.

    Counts of decisions and tokens are the most there can be: every episode played to its turn limit, every prompt and
    answer as long as the model takes. Raises ConfigError as the training itself would.
    """
    done = check_start(config, kind)
    return _sft(config, done) if kind == "sft" else _rl(config, done)


def count_lines(path: Path) -> int:
    """The lines of a file of data. Raises ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError as error:
        raise ConfigError(f"sft data {path} cannot be read: {error}", field="sft.dataset") from error


def _rl(config: Config, done: int) -> dict[str, Any]:
    training, rollout = config.training, config.rollout
    left = training.updates - done
    groups = max(0, left) * training.groups_per_update
    episodes = groups * rollout.group_size
    decisions = episodes * rollout.max_decisions
    first = update_seeds(config, done + 1)
    held_out = _evaluations(config, done) * len(config.eval.seeds)
    return {
        "type": "rl",
        "updates": training.updates,
        "updates to make": left,
        "groups": groups,
        "episodes": episodes,
        "decisions at most": decisions,
        "tokens at most": decisions * _tokens(config),
        "worlds": f"{first.start}:{first.start + groups}" if groups else "none",
        "held-out episodes": held_out,
        "held-out decisions at most": held_out * rollout.max_decisions,
        **_common(config, training.run_dir, done, "update"),
        "warnings": warnings(config),
    }


def _sft(config: Config, done: int) -> dict[str, Any]:
    sft, teacher = config.sft, config.sft.teacher
    told: dict[str, Any] = {"type": "sft"}
    if teacher.name:
        episodes = teacher.episodes + teacher.rounds * teacher.round_episodes
        steps = teacher.steps + teacher.rounds * teacher.round_steps
        told |= {"teacher": teacher.name, "episodes": episodes}
        told["decisions at most"] = episodes * config.rollout.max_decisions
    else:
        assert sft.dataset is not None
        rows = count_lines(sft.dataset)
        steps = math.ceil(rows / sft.batch_rows) * sft.epochs
        told |= {"dataset": str(sft.dataset), "rows": rows, "epochs": sft.epochs}
        if sft.validation is not None:
            told |= {"validation": str(sft.validation), "validation rows": count_lines(sft.validation)}
    told |= {"steps": steps, "steps to make": max(0, steps - done)}
    told["tokens at most"] = max(0, steps - done) * sft.batch_rows * _tokens(config)
    return told | _common(config, sft.run_dir, done, "step")


def _common(config: Config, run_dir: Path, done: int, unit: str) -> dict[str, Any]:
    return {
        "run folder": str(run_dir),
        "trace database": str(config.rollout.trace_db),
        "resumes": f"after {unit} {done}" if done else "nothing, it begins",
        "no effect here": unused_keys(config),
    }


def _tokens(config: Config) -> int:
    """The most tokens of one prompt and its answer."""
    model = config.model
    return model.max_prompt_tokens + model.max_new_tokens if model.path else model.max_positions


def _evaluations(config: Config, done: int) -> int:
    """Evaluations still to make: before, after, and every so many updates between."""
    due = {config.training.updates}
    if config.eval.every:
        due |= set(range(config.eval.every, config.training.updates, config.eval.every))
    return sum(1 for update in due if update > done) + (0 if done else 1)
