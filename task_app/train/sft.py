"""Supervised fine-tuning: the likelihood of what was said, over the tokens that were a choice, and nothing else.

What is learned from is lessons.py's matter: the rows of a step depend on the step alone, as does the learning rate, so
running the same command again after a kill goes on exactly; `metrics.jsonl` has no line twice. With validation data
the best weights are the ones kept, and training stops when the loss there no longer falls.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task_app.config.models import Config
from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.train.checkpoint import initialise, restore, save_checkpoint
from task_app.train.checkpoint_folder import CheckpointState, find_checkpoint, latest_checkpoint
from task_app.train.facts import Clock, peak_rss_mb
from task_app.train.journal import Journal
from task_app.train.lessons import make_lessons
from task_app.train.load import build_network
from task_app.train.lock import run_lock
from task_app.train.metrics import MetricsLog
from task_app.train.optimizer import NotFiniteError, rate_factor
from task_app.train.plan import check_lessons, config_json
from task_app.train.ranks import current, leading
from task_app.train.run_folder import checkpoints_of, resumable, warn_of_code, write_settings
from task_app.train.sft_data import read_rows
from task_app.train.sft_learner import SftLearner
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
    """Train on `sft.dataset` or with `sft.teacher`, or go on where the run folder stands.

    Raises ConfigError before any work for settings that cannot work or differ from the run's own, TrainError for
    data that does not fit the task and when training cannot go on.
    """
    check_lessons(config, spec)
    check_tracking(config.tracking)
    _check_resumable(config)
    with leading(config.training.rank_timeout_s, config.model.device):
        return _train(config, spec, progress)


def _train(config: Config, spec: TaskSpec, progress: Progress | None) -> SftResult:
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
        self._validation = read_rows(config.sft.validation, self._network) if config.sft.validation else []
        if latest_checkpoint(checkpoints_of(config.sft.run_dir)) is None:
            initialise(self._network, config.training.init_from)
        with current().together("begin", "sft", config, spec):
            self._learner = SftLearner(self._network, config)
        self._metrics = MetricsLog(config.sft.run_dir / "metrics.jsonl")
        self.journal = Journal(config, "sft", config.sft.run_dir)
        self._run_id = f"sft-{uuid.uuid4().hex[:12]}"
        self._lessons = make_lessons(config, spec, self._network, lambda: self._run_id, self._write_once)
        self._best, self._worse = math.inf, 0
        self.step = 0

    @property
    def over(self) -> bool:
        """Whether every step is made, or the validation loss has stopped falling."""
        return self.step >= self._lessons.steps or self._worse >= self._settings.patience

    def begin(self) -> None:
        """Start afresh or from the last checkpoint."""
        run_dir = self._settings.run_dir
        found = latest_checkpoint(checkpoints_of(run_dir))
        settings = config_json(self._config)
        if found is not None:
            state = restore(found, self._network, self._learner.weights)
            self.step, self._run_id = state.update, state.run_id
            self._best, self._worse = state.baseline.get("best") or math.inf, state.baseline.get("worse", 0)
            self._metrics.cut_after(self.step)
            self.journal.start(self._run_id, self.step, resumed=True)
            warn_of_code(found)
        else:
            self._metrics.clear()
            self.journal.start(self._run_id, 0, resumed=False)
            facts = self._lessons.facts()
            self._write("start", **facts, validation_rows=len(self._validation), steps=self._lessons.steps)
        write_settings(run_dir, settings)

    def advance(self) -> None:
        """One optimiser step, and at the end of a stretch a look at the validation data and a checkpoint."""
        self.journal.phase("learning")
        clock = Clock()
        rows = self._lessons.batch(self.step)
        factor = rate_factor(self.step, self._lessons.steps, self._settings.warmup_steps, "cosine")
        try:
            with current().together("update", rows, factor):
                loss, entropy, norm = self._learner.update(rows, factor)
        except NotFiniteError as error:
            where = self._lessons.place(self.step)
            raise TrainError(f"step {self.step + 1} stopped: {error}; its batch is {where}") from error
        self.step += 1
        self._write(
            "step",
            loss=loss,
            entropy=entropy,
            grad_norm=norm,
            learning_rate=self._settings.learning_rate * factor,
            machine={"seconds": clock.total(), "peak_rss_mb": peak_rss_mb()},
        )
        due = self.step % self._settings.validate_every == 0 or self.step in self._lessons.boundaries
        if due or self.step == self._lessons.steps:
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

    def _look(self) -> None:
        """Measure on validation data (without any, on the first rows of the data) and save a checkpoint."""
        self.journal.phase("evaluating")
        rows = self._validation or self._lessons.sample(4 * self._settings.batch_rows)
        with current().together("measure", rows):
            loss, entropy = self._learner.measure(rows)
        self._write("validation", loss=loss if self._validation else None, entropy=entropy)
        better = bool(self._validation) and loss < self._best
        if self._validation:
            self._best, self._worse = min(loss, self._best), 0 if better else self._worse + 1
        marks = {"best": self._best if self._validation else None, "worse": self._worse}
        state = CheckpointState(self.step, self._run_id, marks, config_json(self._config), "sft")
        folder = checkpoints_of(self._settings.run_dir)
        self.journal.phase("saving")
        save_checkpoint(folder, self._network, self._learner.weights, state, best=better)

    def _write_once(self, kind: str, values: dict[str, Any]) -> None:
        """A line that a resumed run would write again: it stays as it is."""
        if not any(line["kind"] == kind and line.get(kind) == values[kind] for line in self._metrics.lines()):
            self._write(kind, **values)

    def _write(self, kind: str, **values: Any) -> None:
        line = self._metrics.append(kind, self.step, **values)
        self.journal.line(line)
        self._progress(line)
