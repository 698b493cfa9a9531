"""The GRPO loop: play groups into the store, read them back, credit decisions, update, log, checkpoint.

Running the same command again resumes from the last checkpoint: what was done beyond it is cut from
the log, its episodes are marked superseded, and, noise being keyed, it is done again the same way.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task_app.analyze.stats import Mean
from task_app.collect import Batch
from task_app.config.models import Config
from task_app.core.errors import ConfigError, TrainError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.store import TraceStore
from task_app.train.bad_batch import dump_batch
from task_app.train.checkpoint import initialise, restore, save_checkpoint
from task_app.train.checkpoint_folder import CheckpointState, began_from, latest_checkpoint, mark_best
from task_app.train.evaluate import evaluate_both
from task_app.train.facts import (
    Clock,
    advantages_by_episode,
    batch_facts,
    behaviour_facts,
    peak_rss_mb,
    run_facts,
    seconds_by_part,
)
from task_app.train.guards import Finding, Guards, Verdict
from task_app.train.heartbeat import beating
from task_app.train.hosted import make_rollouts
from task_app.train.journal import Journal
from task_app.train.load import build_network, make_samplers
from task_app.train.lock import run_lock
from task_app.train.metrics import MetricsLog
from task_app.train.optimizer import NotFiniteError
from task_app.train.paired import by_world, paired_interval
from task_app.train.plan import changed_values, check_config, config_json, update_seeds, warnings
from task_app.train.playing import Player
from task_app.train.policy import EmbeddedPolicy
from task_app.train.ranks import current, leading
from task_app.train.run_folder import baseline_of, checkpoints_of, resumable, warn_of_code, write_settings
from task_app.train.sampler import check_sampling
from task_app.train.update import Updater, stored_episodes

__all__ = ["Progress", "TrainingResult", "run_training"]

Progress = Callable[[dict[str, Any]], None]
"""Called with every line as it is added to metrics.jsonl."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a run leaves: where it is, and its first and last evaluation as metrics lines.

    collapse  what stopped it before its last update; empty for a run that is done
    """

    run_id: str
    run_dir: Path
    checkpoint: Path
    metrics: Path
    updates: int
    before: dict[str, Any]
    after: dict[str, Any]
    collapse: str = ""

    @property
    def difference(self) -> Mean:
        """Outcome after − before, paired over the held-out worlds, with its 95 % interval."""
        return paired_interval(by_world(self.before), by_world(self.after))


def run_training(
    config: Config, spec: TaskSpec, store: TraceStore, *, progress: Progress | None = None
) -> TrainingResult:
    """Train the embedded policy on `spec` as `config` says, or go on where the run folder stands.

    Raises ConfigError before any work, for settings that cannot work or differ from the run's own, and
    TrainError when training cannot go on; what was recorded stays and the run can be resumed.
    """
    check_config(config)
    check_sampling(config.policy.temperature, config.policy.top_p)
    check_sampling(config.eval.temperature, field="eval.temperature")
    _check_resumable(config)
    with leading(config.training.rank_timeout_s, config.model.device):
        return _train(config, spec, store, progress)


def _train(config: Config, spec: TaskSpec, store: TraceStore, progress: Progress | None) -> TrainingResult:
    run = _Run(config, spec, store, progress)
    with run_lock(config.training.run_dir):
        _check_resumable(config)  # again, since another process may have trained here until now
        with run.journal.watching(), run.player:
            run.begin()
            while run.update < config.training.updates and run.collapse is None:
                run.advance()
            return run.finish()


def _checkpoints(config: Config) -> Path:
    return checkpoints_of(config.training.run_dir)


def _check_resumable(config: Config) -> None:
    """Refuse to mix two runs in one folder. Raises ConfigError with the keys."""
    state = resumable(config.training.run_dir, "rl", config_json(config), config.training.allow_changed)
    if state is not None and state["update"] > config.training.updates:
        raise ConfigError(
            f"{config.training.run_dir} has {state['update']} updates already, training.updates asks for "
            f"{config.training.updates}; ask for as many or more, or use another training.run_dir",
            field="training.updates",
        )


class _Run:
    """One run's state between updates."""

    def __init__(self, config: Config, spec: TaskSpec, store: TraceStore, progress: Progress | None) -> None:
        self._config, self._spec, self._store, self._progress = config, spec, store, progress
        self._network = build_network(spec, config.model, config.seed)
        temperature = config.policy.temperature
        initialise(self._network, config.training.init_from)
        with current().together("begin", "rl", config, spec):
            self._updater = Updater(config, spec, self._network)
        sampler = make_samplers(config, self._network)
        self._policy = EmbeddedPolicy(self._network, temperature=temperature, sampler=sampler(temperature))
        held_out = config.eval.temperature
        self._held_out_policy = EmbeddedPolicy(self._network, temperature=held_out, sampler=sampler(held_out))
        self._metrics = MetricsLog(config.training.run_dir / "metrics.jsonl")
        self.journal = Journal(config, "rl", config.training.run_dir)
        self._rollouts = make_rollouts(config, spec)
        self.player = Player(config, spec, store, self._policy, self.journal.beat, self._rollouts)
        self._guards = Guards(config.training.guards)
        self.collapse: Finding | None = None
        self._run_id = f"train-{uuid.uuid4().hex[:12]}"
        self.update = 0

    # -- begin and end ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Start afresh, or restore the last checkpoint and forget what came after it."""
        found = latest_checkpoint(_checkpoints(self._config))
        if found is not None:
            state = restore(found, self._network, self._updater.learner.weights)
            self.update, self._run_id = state.update, state.run_id
            self._updater.baseline = baseline_of(found, state)
            self._store.supersede(self._run_id, self.update + 1)
            self._metrics.cut_after(self.update)
            updates = [line for line in self._metrics.lines() if line["kind"] == "update"]
            self._guards = Guards(self._config.training.guards, updates)
            self.journal.start(self._run_id, self.update, resumed=True)
            warn_of_code(found)
            changed = changed_values(state.config, config_json(self._config))
            self._write_line("resume", changed=changed, machine={"checkpoint": str(found)})
            self._mark_best()
        else:
            self._metrics.clear()
            self.journal.start(self._run_id, 0, resumed=False)
            self._write_line("start", **self._facts(), machine={"run_id": self._run_id, "processes": current().size})
            for sentence in warnings(self._config):
                _log.warning("%s", sentence)
        settings = config_json(self._config)
        write_settings(self._config.training.run_dir, settings)
        self._store.write_run(self._run_id, "train", settings)
        if found is None:
            self._save()
        self._policy.set_updates(self.update)
        self._evaluate_once()

    def finish(self) -> TrainingResult:
        """The last evaluation, unless it was made already, and the result."""
        self._evaluate_once()
        self._store.supersede(self._run_id, self.update + 1)  # what was played ahead of a run that collapsed
        why = self.collapse.text if self.collapse else ""
        self.journal.finish("collapsed" if self.collapse else "done", why=why)
        evaluations = self._evaluations()
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
            collapse=why,
        )

    # -- one update ------------------------------------------------------------------------------

    def advance(self) -> None:
        """One update: play, read back, credit, learn, record."""
        update, training = self.update + 1, self._config.training
        clock = Clock()
        self.journal.phase("playing")
        self.player.play(self._run_id, update, clock)
        self.player.begin(self._run_id, update + 1)
        with clock.measure("store"):
            episodes = stored_episodes(self._store, self._config, self._run_id, update)
        batch = self._collect(update, episodes)
        learned = self._learn(update, batch, clock)
        self.player.wait()
        self.update = update
        self._policy.set_updates(update)
        seconds = clock.seconds | seconds_by_part(episodes)
        worlds = update_seeds(self._config, update)
        actions = behaviour_facts(batch, len(self._spec.app.action_names), training.guards.top_actions)
        facts = {**batch_facts(batch, episodes), **actions, **learned}
        verdict = self._guards.examine(update, facts)
        self._write_line(
            "update",
            seeds=f"{worlds.start}:{worlds.stop}",
            **facts,
            **verdict.facts,
            machine={
                "seconds": seconds | {"total": clock.total()},
                "peak_rss_mb": peak_rss_mb(),
                "orphans": self._rollouts.orphans,
            },
        )
        self._heed(verdict)
        last = update == training.updates or self.collapse is not None
        if last or self._is_evaluation_due() or update % training.checkpoint_every == 0:
            self._save()
        if not last:
            self._evaluate_once()

    def _heed(self, verdict: Verdict) -> None:
        """Tell what the guards found, and note whether the run is to stop."""
        for finding in verdict.new:
            _log.warning("update %d: %s", self.update, finding.text)
        self.collapse = verdict.stop

    def _collect(self, update: int, episodes: list[Episode]) -> Batch:
        batch = self._updater.collect(update, episodes)
        if batch.metrics.misaligned:
            sentence = "update %d: in %d episodes the outcome is not the sum of their new events"
            _log.warning(sentence, update, batch.metrics.misaligned)
        return batch

    def _learn(self, update: int, batch: Batch, clock: Clock) -> dict[str, Any]:
        """Credit the batch's decisions, update the weights, store the advantages; what to log of it."""
        self.journal.phase("learning")
        with clock.measure("training"):
            credit = self._updater.credit(batch)
            try:
                learned = self._updater.learn(update, batch, credit)
            except NotFiniteError as error:
                dumped = dump_batch(self._config.training.run_dir, update, str(error), batch, credit)
                raise TrainError(f"update {update} stopped: {error}; {dumped}") from error
        with clock.measure("store"):
            self._store.write_advantages(self._run_id, update, advantages_by_episode(batch, credit))
        return learned

    # -- recording -------------------------------------------------------------------------------

    def _evaluate_once(self) -> None:
        """Evaluate the current weights unless the log has it already (a resumed run)."""
        at_an_end = self.update in (0, self._config.training.updates) or self.collapse is not None
        wanted = at_an_end or self._is_evaluation_due()
        if not wanted or self._is_evaluated():
            return
        start, policy, run_id = time.perf_counter(), self._held_out_policy, f"{self._run_id}-eval"
        policy.set_updates(self.update)
        first = next(iter(self._evaluations()), None)
        self.journal.phase("evaluating")
        line = evaluate_both(
            beating(policy, self.journal.beat),
            self._spec,
            self._config,
            self._store,
            run_id=run_id,
            update=self.update,
            first=first,
            rollouts=self._rollouts,
        )
        self._write_line("eval", **line, machine={"seconds": {"total": time.perf_counter() - start}})
        self._mark_best()

    def _evaluations(self) -> list[dict[str, Any]]:
        return [line for line in self._metrics.lines() if line["kind"] == "eval"]

    def _is_evaluated(self) -> bool:
        return any(line["update"] == self.update for line in self._evaluations())

    def _mark_best(self) -> None:
        """Point to the checkpoint of the best held-out score; of equal ones, the earliest."""
        scores = {line["update"]: line["mean"] for line in self._evaluations() if line["mean"] is not None}
        if scores:
            best = max(scores, key=lambda update: (scores[update], -update))
            mark_best(_checkpoints(self._config), best, keep=self._config.training.keep_checkpoints)

    def _is_evaluation_due(self) -> bool:
        every = self._config.eval.every
        return bool(every) and self.update % every == 0

    def _save(self) -> None:
        self.journal.phase("saving")
        state = CheckpointState(self.update, self._run_id, self._updater.baseline.to_dict(), config_json(self._config))
        weights, keep = self._updater.learner.weights, self._config.training.keep_checkpoints
        save_checkpoint(_checkpoints(self._config), self._network, weights, state, keep=keep)

    def _facts(self) -> dict[str, Any]:
        network = self._network
        return {
            "task": self._spec.app.name,
            "init_from": began_from(self._config.training.init_from),
            "prompt_hash": self._spec.prompt_hash,
            "grammar_hash": network.grammar_hash,
            "renderer_hash": network.renderer.hash,
            "parameters": sum(parameter.numel() for parameter in network.model.parameters()),
            "trained_parameters": sum(parameter.numel() for parameter in network.parameters()),
            **run_facts(self._config),
        }

    def _write_line(self, kind: str, **values: Any) -> None:
        line = self._metrics.append(kind, self.update, **values)
        self.journal.line(line)
        if self._progress is not None:
            self._progress(line)
