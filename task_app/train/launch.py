"""What `task-app train` does: check everything, play the random policy on the held-out worlds once for the
line in every plot, train or resume, and write the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task_app.analyze.report import TrainingReport
from task_app.analyze.stats import Summary, mean_interval, summarise
from task_app.config import Config
from task_app.core.errors import TrainError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.store import TraceStore
from task_app.train.checkpoint import load_policy
from task_app.train.evaluate import STEPS, evaluate_both
from task_app.train.facts import peak_rss_mb
from task_app.train.grpo import Progress, TrainingResult, run_training
from task_app.train.load import build_network
from task_app.train.plan import check_config, unused_keys
from task_app.train.policy import EmbeddedPolicy
from task_app.train.report import RANDOM, SFT, report_run
from task_app.train.sft import SftResult, run_sft
from task_app.wiring import check, make_policy

__all__ = ["SftOutcome", "embedded_factory", "seed_totals", "train_config", "train_seeds", "train_sft"]


def train_config(
    config: Config, *, progress: Progress, note: Callable[[str], None], extra: dict[str, Summary] | None = None
) -> tuple[TrainingResult, TrainingReport]:
    """Train as `config` says and report. `extra` adds held-out summaries of other policies to the report.

    `note` is told once, before work, which keys of older job files have no effect here. Raises ConfigError
    before any I/O, TrainError and StoreError after; a run that collapsed raises TrainError when all is reported.
    """
    spec = check(config)
    check_config(config)
    ignored = unused_keys(config)
    if ignored:
        note(f"no effect in local training: {', '.join(ignored)}")
    with TraceStore.open(config.rollout.trace_db) as store:
        result = run_training(config, spec, store, progress=progress)
        summaries = dict(extra or {})
        if RANDOM not in summaries or config.eval.env_steps:
            by_chance = _random_summary(config, spec, store, f"{result.run_id}-{RANDOM}")
            summaries.setdefault(RANDOM, by_chance)
        report = report_run(config.training.run_dir, result.run_id, store, summaries)
    if result.collapse:
        raise TrainError(
            f"run {result.run_id} stopped as COLLAPSED after update {result.updates} ({result.collapse}). "
            f"{config.training.run_dir} has its checkpoint and report; running again resumes it with the count as it is"
        )
    return result, report


@dataclass(frozen=True, slots=True)
class SftOutcome:
    """A finished supervised run and how its policy plays held-out worlds, beside the random policy."""

    result: SftResult
    held_out: dict[str, Summary]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        result = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self.result).items()}
        return result | {"held_out": {label: asdict(summary.outcome) for label, summary in self.held_out.items()}}


def train_sft(config: Config, *, progress: Callable[[dict[str, Any]], None]) -> SftOutcome:
    """Fine-tune as `[sft]` says, then play `eval.seeds` with the weights kept and with the random policy.

    Raises ConfigError before any work, TrainError and StoreError after.
    """
    spec = check(config)
    result = run_sft(config, spec, progress=progress)
    policy = load_policy(result.checkpoint, spec, temperature=config.eval.temperature)
    with TraceStore.open(config.rollout.trace_db) as store:
        run_id = f"{result.run_id}-eval"
        for every in (run_id, f"{run_id}-{STEPS}"):
            store.supersede(every, 0)
        evaluate_both(policy, spec, config, store, run_id=run_id, update=result.steps)
        held_out = {RANDOM: _random_summary(config, spec, store, f"{result.run_id}-{RANDOM}")}
        held_out[SFT] = summarise(store.episodes(run_id=run_id))
        if config.eval.env_steps:
            held_out |= {
                f"{label}, {config.eval.env_steps} steps": summarise(store.episodes(run_id=f"{played}-{STEPS}"))
                for label, played in ((RANDOM, f"{result.run_id}-{RANDOM}"), (SFT, run_id))
            }
    return SftOutcome(result, held_out)


SeedRow = tuple[Any, float | None, float | None, float | None, float | None, float | None]
"""Seed, held-out mean before, after, after − before, seconds, peak MB of the process so far."""


def train_seeds(config: Config, seeds: Iterable[int], *, note: Callable[[str], None]) -> list[SeedRow]:
    """Train once per seed, each in a folder of its own under the run folder.

    A row per seed, whose figures are means over worlds, then their mean over seeds and its 95 % interval.
    """
    rows: list[SeedRow] = []
    for seed in seeds:
        run_dir = config.training.run_dir / f"seed-{seed}"
        training = config.training.model_copy(update={"run_dir": run_dir})
        start = time.perf_counter()
        one = config.model_copy(update={"seed": seed, "training": training})
        result, _ = train_config(one, progress=lambda line: None, note=note)
        seconds = time.perf_counter() - start
        before, after = result.before["mean"], result.after["mean"]
        rows.append((seed, before, after, result.difference.mean, seconds, peak_rss_mb()))
    return [*rows, *seed_totals(rows)]


def seed_totals(rows: Sequence[SeedRow]) -> list[SeedRow]:
    """Mean, low and high end of the 95 % interval over training seeds; seeds without a figure are left out."""
    columns = list(zip(*rows, strict=True))[1:]
    means = [mean_interval([value for value in column if value is not None]) for column in columns]
    return [
        (label, *(getattr(mean, end) for mean in means))  # type: ignore[misc]
        for label, end in (("mean", "mean"), ("95 % low", "low"), ("95 % high", "high"))
    ]


def embedded_factory(config: Config) -> Callable[[TaskSpec, Path | None], Policy]:
    """Makes the embedded policy for `rollout` and `eval`: a checkpoint's, or freshly initialised weights."""

    def make(spec: TaskSpec, checkpoint: Path | None) -> Policy:
        temperature = config.policy.temperature
        if checkpoint is not None:
            return load_policy(checkpoint, spec, temperature=temperature)
        return EmbeddedPolicy(build_network(spec, config.model, config.seed), temperature=temperature)

    return make


def _random_summary(config: Config, spec: TaskSpec, store: TraceStore, run_id: str) -> Summary:
    """The random policy on the held-out worlds, played once per run and read back afterwards."""
    runs = [run_id, f"{run_id}-{STEPS}"] if config.eval.env_steps else [run_id]
    if any(len(list(store.episodes(run_id=played))) != len(config.eval.seeds) for played in runs):
        policy = make_policy(config.policy.model_copy(update={"name": RANDOM}), spec)
        evaluate_both(policy, spec, config, store, run_id=run_id, update=0)
    return summarise(store.episodes(run_id=run_id))
