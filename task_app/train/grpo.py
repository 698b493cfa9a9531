"""The GRPO loop: play groups into the store, read them back, credit decisions, update, log, checkpoint.

Running the same command again resumes from the last checkpoint: what was done beyond it is cut from
the log, its episodes are marked superseded, and, noise being keyed, it is done again the same way.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task_app.collect import Batch, build_batch
from task_app.config.models import Config
from task_app.core.errors import ConfigError, TrainError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.credit import CreditResult, GroupRewards, RunningBaseline, compute_advantages
from task_app.rollout import plan_groups, play
from task_app.store import TraceStore
from task_app.train.checkpoint import CheckpointState, latest_checkpoint, read_state, restore, save_checkpoint
from task_app.train.evaluate import evaluate
from task_app.train.facts import Clock, advantages_by_episode, batch_facts, peak_rss_mb, run_facts, seconds_by_part
from task_app.train.learner import Learner
from task_app.train.metrics import MetricsLog
from task_app.train.plan import check_config, config_json, credit_settings, differing_keys, update_seeds, warnings
from task_app.train.policy import EmbeddedPolicy, build_network
from task_app.train.rows import Row, RowBuilder
from task_app.train.sampler import check_sampling
from task_app.wiring import make_limits

__all__ = ["Progress", "TrainingResult", "run_training"]

Progress = Callable[[dict[str, Any]], None]
"""Called with every line as it is added to metrics.jsonl."""

MOST_DROPPED = 0.1
"""Share of an update's groups that may be lost to infrastructure (one group always may)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a finished run leaves: where it is, and its first and last evaluation as metrics lines."""

    run_id: str
    run_dir: Path
    checkpoint: Path
    metrics: Path
    updates: int
    before: dict[str, Any]
    after: dict[str, Any]


def run_training(
    config: Config, spec: TaskSpec, store: TraceStore, *, progress: Progress | None = None
) -> TrainingResult:
    """Train the embedded policy on `spec` as `config` says, or go on where the run folder stands.

    Raises ConfigError before any work, for settings that cannot work or differ from the run's own, and
    TrainError when training cannot go on; what was recorded stays and the run can be resumed.
    """
    check_config(config)
    check_sampling(config.policy.temperature, config.policy.top_p)
    _check_resumable(config)
    run = _Run(config, spec, store, progress)
    run.begin()
    while run.update < config.training.updates:
        run.advance()
    return run.finish()


def _checkpoints(config: Config) -> Path:
    return config.training.run_dir / "checkpoints"


def _check_resumable(config: Config) -> None:
    """Refuse to mix two settings in one run folder. Raises ConfigError with the keys."""
    found = latest_checkpoint(_checkpoints(config))
    if found is None:
        return
    state = read_state(found)
    keys = differing_keys(state["config"], config_json(config))
    if keys:
        raise ConfigError(
            f"{config.training.run_dir} holds a run with other settings: {', '.join(keys)}; "
            "use its settings to resume it, or another training.run_dir",
            field=keys[0],
        )
    if state["update"] > config.training.updates:
        raise ConfigError(
            f"{config.training.run_dir} has {state['update']} updates already, training.updates asks for "
            f"{config.training.updates}; ask for as many or more, or use another training.run_dir",
            field="training.updates",
        )


class _Run:
    """One run's state between updates."""

    def __init__(self, config: Config, spec: TaskSpec, store: TraceStore, progress: Progress | None) -> None:
        self._config, self._spec, self._store, self._progress = config, spec, store, progress
        self._flags = config.step_rewards
        self._credit = credit_settings(config)
        self._network = build_network(spec, config.model, config.seed)
        temperature = config.policy.temperature
        # The learner takes its KL reference from the initial weights, so it comes before any restore.
        self._learner = Learner(self._network, config.training, temperature)
        self._policy = EmbeddedPolicy(self._network, temperature=temperature)
        self._rows = RowBuilder(self._network.table, self._network.renderer.hash, temperature)
        self._baseline = RunningBaseline()
        self._metrics = MetricsLog(config.training.run_dir / "metrics.jsonl")
        self._run_id = f"train-{uuid.uuid4().hex[:12]}"
        self.update = 0

    # -- begin and end ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Start afresh, or restore the last checkpoint and forget what came after it."""
        run_dir = self._config.training.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        found = latest_checkpoint(_checkpoints(self._config))
        if found is not None:
            state = restore(found, self._network, self._learner.optimizer)
            self.update, self._run_id = state.update, state.run_id
            self._baseline = RunningBaseline.from_dict(state.baseline)
            self._policy.set_updates(self.update)
            self._store.supersede(self._run_id, self.update + 1)
            self._metrics.cut_after(self.update)
            self._write_line("resume", machine={"checkpoint": str(found)})
        else:
            self._metrics.path.unlink(missing_ok=True)
            self._write_line("start", **self._facts(), machine={"run_id": self._run_id})
            for sentence in warnings(self._config):
                _log.warning("%s", sentence)
        settings = config_json(self._config)
        (run_dir / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True), encoding="utf-8")
        self._store.write_run(self._run_id, "train", settings)
        if found is None:
            self._save()
        self._evaluate_once()

    def finish(self) -> TrainingResult:
        """The last evaluation, unless it was made already, and the result."""
        self._evaluate_once()
        evaluations = [line for line in self._metrics.lines() if line["kind"] == "eval"]
        checkpoint = latest_checkpoint(_checkpoints(self._config))
        assert checkpoint is not None
        return TrainingResult(
            run_id=self._run_id,
            run_dir=self._config.training.run_dir,
            checkpoint=checkpoint,
            metrics=self._metrics.path,
            updates=self.update,
            before=evaluations[0],
            after=evaluations[-1],
        )

    # -- one update ------------------------------------------------------------------------------

    def advance(self) -> None:
        """One update: play, read back, credit, learn, record."""
        update, training = self.update + 1, self._config.training
        clock = Clock()
        sampled_before = self._policy.sampling_s
        self._play(update, clock)
        with clock.measure("store"):
            records = self._flags.mode == "decision_stepwise"
            episodes = list(self._store.episodes(run_id=self._run_id, update=update, records=records))
        batch = self._collect(update, episodes)
        learned = self._learn(update, batch, clock)
        self.update = update
        self._policy.set_updates(update)
        seconds = clock.seconds | seconds_by_part(episodes) | {"sampling": self._policy.sampling_s - sampled_before}
        worlds = update_seeds(self._config, update)
        self._write_line(
            "update",
            seeds=f"{worlds.start}:{worlds.stop}",
            **batch_facts(batch, episodes),
            **learned,
            machine={"seconds": seconds | {"total": clock.total()}, "peak_rss_mb": peak_rss_mb()},
        )
        last = update == training.updates
        if not last and self._config.eval.every and update % self._config.eval.every == 0:
            self._evaluate_once()
        if last or update % training.checkpoint_every == 0:
            self._save()

    def _play(self, update: int, clock: Clock) -> None:
        plans = plan_groups(
            update_seeds(self._config, update),
            self._config.rollout.group_size,
            run_id=self._run_id,
            noise_seed=self._config.seed,
            update=update,
        )

        def sink(episode: Episode) -> None:
            with clock.measure("store"):
                self._store.write_episode(episode)

        play(plans, self._spec, self._policy, make_limits(self._config), self._flags, sink)

    def _collect(self, update: int, episodes: list[Episode]) -> Batch:
        """The update's batch. Raises TrainError when too many groups were lost to count as chance."""
        try:
            unique_outcome = self._spec.app.outcome_is_unique_events
            batch = build_batch(episodes, self._flags, self._config.rollout.group_size, unique_outcome=unique_outcome)
        except ValueError as error:
            raise TrainError(f"update {update} cannot be trained on: {error}") from error
        lost, asked = len(batch.dropped), self._config.training.groups_per_update
        if lost > 1 and lost > MOST_DROPPED * asked:
            first = next(iter(batch.dropped.items()))
            raise TrainError(
                f"update {update} lost {lost} of {asked} groups, the first ({first[0]}) because {first[1]}; going on "
                "would train on what does not fail. The last checkpoint stays; run again to resume"
            )
        if batch.metrics.misaligned:
            sentence = "update %d: in %d episodes the outcome is not the sum of their new events"
            _log.warning(sentence, update, batch.metrics.misaligned)
        return batch

    def _learn(self, update: int, batch: Batch, clock: Clock) -> dict[str, float | None]:
        """Credit the batch's decisions, update the weights, store the advantages; what to log of it."""
        asked = self._config.training.groups_per_update * self._config.rollout.group_size
        with clock.measure("training"):
            credit = self._assign_credit(batch)
            learned = self._learner.update(self._build_rows(batch, credit), asked)
        with clock.measure("store"):
            self._store.write_advantages(self._run_id, update, advantages_by_episode(batch, credit))
        return {**credit.statistics, **learned}

    def _assign_credit(self, batch: Batch) -> CreditResult:
        groups = [
            GroupRewards(group.group_id, self._spec.prompt_hash, tuple(member.rewards for member in group.members))
            for group in batch.groups
        ]
        return compute_advantages(groups, self._credit, self._baseline)

    def _build_rows(self, batch: Batch, credit: CreditResult) -> list[Row]:
        rows = []
        for group, credited in zip(batch.groups, credit.groups, strict=True):
            for member, values in zip(group.members, credited.advantages, strict=True):
                for decision, value in zip(member.episode.decisions, values, strict=True):
                    row = self._rows.row(decision, value)
                    if row is not None:
                        rows.append(row)
        return rows

    # -- recording -------------------------------------------------------------------------------

    def _evaluate_once(self) -> None:
        """Evaluate the current weights unless the log has it already (a resumed run)."""
        wanted = self.update in (0, self._config.training.updates) or self._is_evaluation_due()
        if not wanted or self._is_evaluated():
            return
        run_id, start = f"{self._run_id}-eval", time.perf_counter()
        self._store.write_run(run_id, "eval", config_json(self._config))
        self._store.supersede(run_id, self.update)  # what an interrupted evaluation of these weights left
        sink = self._store.write_episode
        result = evaluate(self._policy, self._spec, self._config, sink, run_id=run_id, update=self.update)
        self._write_line("eval", **result.to_json(), machine={"seconds": {"total": time.perf_counter() - start}})

    def _is_evaluated(self) -> bool:
        return any(line["kind"] == "eval" and line["update"] == self.update for line in self._metrics.lines())

    def _is_evaluation_due(self) -> bool:
        every = self._config.eval.every
        return bool(every) and self.update % every == 0

    def _save(self) -> None:
        state = CheckpointState(self.update, self._run_id, self._baseline.to_dict(), config_json(self._config))
        save_checkpoint(_checkpoints(self._config), self._network, self._learner.optimizer, state)

    def _facts(self) -> dict[str, Any]:
        network = self._network
        return {
            "task": self._spec.app.name,
            "prompt_hash": self._spec.prompt_hash,
            "grammar_hash": network.table.hash,
            "renderer_hash": network.renderer.hash,
            "parameters": sum(parameter.numel() for parameter in network.model.parameters()),
            **run_facts(self._config),
        }

    def _write_line(self, kind: str, **values: Any) -> None:
        line = self._metrics.append(kind, self.update, **values)
        if self._progress is not None:
            self._progress(line)
