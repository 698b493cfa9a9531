"""Supervised fine-tuning: the likelihood of what was said, over the tokens that were a choice, and nothing else.

The order of the data is keyed by (seed, epoch) and the learning rate by the step, so running the same command again
after a kill goes on exactly; `metrics.jsonl` has no line twice. With validation data the best weights are the ones
kept, and training stops when the loss there no longer falls.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from task_app.config.models import Config
from task_app.core.errors import ConfigError, TrainError
from task_app.core.task import TaskSpec
from task_app.train.checkpoint import (
    CheckpointState,
    find_checkpoint,
    initialise,
    latest_checkpoint,
    restore,
    save_checkpoint,
)
from task_app.train.facts import Clock, peak_rss_mb
from task_app.train.journal import Journal
from task_app.train.load import build_network
from task_app.train.lock import run_lock
from task_app.train.metrics import MetricsLog
from task_app.train.network import MEMORY_ADVICE, memory_guard
from task_app.train.optimizer import NotFiniteError, Optimizer, rate_factor
from task_app.train.plan import config_json
from task_app.train.rows import Row, make_micro_batches
from task_app.train.run_folder import checkpoints_of, resumable, warn_of_code, write_settings
from task_app.train.sampler import noise
from task_app.train.score import score
from task_app.train.sft_data import read_rows
from task_app.train.tracker import check_tracking

__all__ = ["SftResult", "run_sft"]

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a finished run leaves. Losses are nats per chosen token; `entropy` is the policy's on the data at the
    end, likewise (a policy near 0 has nothing left to explore with)."""

    run_id: str
    run_dir: Path
    checkpoint: Path
    steps: int
    loss: float
    validation_loss: float | None
    entropy: float


def run_sft(config: Config, spec: TaskSpec, *, progress: Progress | None = None) -> SftResult:
    """Train on `sft.dataset`, or go on where the run folder stands.

    Raises ConfigError before any work for settings that cannot work or differ from the run's own, TrainError for
    data that does not fit the task and when training cannot go on.
    """
    if config.sft.dataset is None:
        raise ConfigError("sft needs a dataset: JSON lines from `task-app traces export-sft`", field="sft.dataset")
    check_tracking(config.tracking)
    _check_resumable(config)
    run = _Run(config, spec, progress or (lambda line: None))
    with run_lock(config.sft.run_dir):
        _check_resumable(config)  # again, since another process may have trained here until now
        with run.journal.watching():
            run.begin()
            while not run.over:
                run.advance()
            return run.finish()


def _check_resumable(config: Config) -> None:
    resumable(config.sft.run_dir, "sft", config_json(config))


class _Run:
    """One run's state between steps. `step` counts optimiser steps made."""

    def __init__(self, config: Config, spec: TaskSpec, progress: Progress) -> None:
        self._config, self._settings, self._progress = config, config.sft, progress
        self._network = build_network(spec, config.model, config.seed)
        assert config.sft.dataset is not None
        self._rows = read_rows(config.sft.dataset, self._network)
        self._validation = read_rows(config.sft.validation, self._network) if config.sft.validation else []
        self._optimizer = Optimizer(
            self._network.parameters(),
            learning_rate=config.sft.learning_rate,
            weight_decay=config.sft.weight_decay,
            max_grad_norm=config.training.max_grad_norm,
        )
        self._metrics = MetricsLog(config.sft.run_dir / "metrics.jsonl")
        self.journal = Journal(config, "sft", config.sft.run_dir)
        self._run_id = f"sft-{uuid.uuid4().hex[:12]}"
        self._per_epoch = math.ceil(len(self._rows) / config.sft.batch_rows)
        self._steps = self._per_epoch * config.sft.epochs
        self._best, self._worse = math.inf, 0
        self.step = 0

    @property
    def over(self) -> bool:
        """Whether every step is made, or the validation loss has stopped falling."""
        return self.step >= self._steps or self._worse >= self._settings.patience

    def begin(self) -> None:
        """Start afresh or from the last checkpoint."""
        run_dir = self._settings.run_dir
        found = latest_checkpoint(checkpoints_of(run_dir))
        settings = config_json(self._config)
        if found is not None:
            state = restore(found, self._network, self._optimizer.torch)
            self.step, self._run_id = state.update, state.run_id
            self._best, self._worse = state.baseline.get("best") or math.inf, state.baseline.get("worse", 0)
            self._metrics.cut_after(self.step)
            self.journal.start(self._run_id, self.step, resumed=True)
            warn_of_code(found)
        else:
            initialise(self._network, self._config.training.init_from)
            self._metrics.clear()
            self.journal.start(self._run_id, 0, resumed=False)
            self._write("start", rows=len(self._rows), validation_rows=len(self._validation), steps=self._steps)
        write_settings(run_dir, settings)

    def advance(self) -> None:
        """One optimiser step, and at the end of a stretch a look at the validation data and a checkpoint."""
        self.journal.phase("learning")
        clock = Clock()
        places = self._batch()
        self._optimizer.zero_grad()
        loss, entropy = self._measure([self._rows[place] for place in places], learn=True)
        factor = rate_factor(self.step, self._steps, self._settings.warmup_steps, "cosine")
        try:
            norm = self._optimizer.step(factor)
        except NotFiniteError as error:
            lines = ", ".join(str(place + 1) for place in sorted(places))
            where = f"its batch is lines {lines} of {self._settings.dataset}"
            raise TrainError(f"step {self.step + 1} stopped: {error}; {where}") from error
        self.step += 1
        self._write(
            "step",
            loss=loss,
            entropy=entropy,
            grad_norm=norm,
            learning_rate=self._settings.learning_rate * factor,
            machine={"seconds": clock.total(), "peak_rss_mb": peak_rss_mb()},
        )
        if self.step % self._settings.validate_every == 0 or self.step == self._steps:
            self._look()

    def finish(self) -> SftResult:
        """The result, read from the log, so that a run resumed at its end says the same."""
        folder = checkpoints_of(self._settings.run_dir)
        checkpoint = find_checkpoint(folder)
        lines = self._metrics.lines()
        looks = [line for line in lines if line["kind"] == "validation"]
        kept = min(looks, key=lambda line: line["loss"]) if self._validation else looks[-1]
        result = SftResult(
            run_id=self._run_id,
            run_dir=self._settings.run_dir,
            checkpoint=checkpoint,
            steps=self.step,
            loss=next(line["loss"] for line in reversed(lines) if line["kind"] == "step"),
            validation_loss=kept["loss"],
            entropy=kept["entropy"],
        )
        told = {"loss": result.loss, "validation_loss": result.validation_loss, "entropy": result.entropy}
        self.journal.finish("done", result=told)
        return result

    def _batch(self) -> list[int]:
        """Which rows the next step learns from."""
        epoch, index = divmod(self.step, self._per_epoch)
        order = np.argsort(noise(f"sft/{self._config.seed}/{epoch}", len(self._rows)), kind="stable")
        size = self._settings.batch_rows
        return [int(place) for place in order[index * size : (index + 1) * size]]

    def _measure(self, rows: Sequence[Row], *, learn: bool) -> tuple[float, float]:
        """Mean loss and entropy per chosen token; with `learn`, the gradient of the loss is added up."""
        tokens = sum(len(row.targets) for row in rows)
        loss = entropy = 0.0
        for batch in make_micro_batches(rows, self._config.training.micro_batch_tokens, self._network.device):
            with memory_guard(MEMORY_ADVICE), torch.set_grad_enabled(learn):
                scores = score(self._network, self._network.model, batch, 1.0)
                part = -scores.logp_N.sum() / tokens
                if learn:
                    part.backward()
            loss += float(part.detach())
            entropy += float(scores.entropy_N.sum()) / tokens
        return loss, entropy

    def _look(self) -> None:
        """Measure on validation data (without any, on the first rows of the data) and save a checkpoint."""
        self.journal.phase("evaluating")
        rows = self._validation or self._rows[: 4 * self._settings.batch_rows]
        loss, entropy = self._measure(rows, learn=False)
        self._write("validation", loss=loss if self._validation else None, entropy=entropy)
        better = bool(self._validation) and loss < self._best
        if self._validation:
            self._best, self._worse = min(loss, self._best), 0 if better else self._worse + 1
        marks = {"best": self._best if self._validation else None, "worse": self._worse}
        state = CheckpointState(self.step, self._run_id, marks, config_json(self._config), "sft")
        folder = checkpoints_of(self._settings.run_dir)
        self.journal.phase("saving")
        save_checkpoint(folder, self._network, self._optimizer.torch, state, best=better)

    def _write(self, kind: str, **values: Any) -> None:
        line = self._metrics.append(kind, self.step, **values)
        self.journal.line(line)
        self._progress(line)
