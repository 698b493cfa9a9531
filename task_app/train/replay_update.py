"""One update of a recorded run, made again from its stored rollouts and compared bit for bit.

Nothing is played, and nothing is written to the run folder or its database. The nearest checkpoint before the update
is restored (or the initial weights made again); updates between it and the one asked for are repeated and compared
too. Equal figures, advantages and weights show that the record is whole and was not changed afterwards; exactness
needs the machine, library versions, thread count and number of processes of the run; a replay is one process.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from task_app.config import Config
from task_app.core.errors import ConfigError, TrainError
from task_app.core.rewards import rewards_from_events
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.store import TraceStore
from task_app.train.checkpoint import initialise, restore
from task_app.train.checkpoint_folder import checkpoints
from task_app.train.facts import advantages_by_episode, batch_facts, behaviour_facts
from task_app.train.load import build_network
from task_app.train.metrics import MetricsLog, strict
from task_app.train.network import Network
from task_app.train.plan import MAY_CHANGE, before_changes
from task_app.train.run_folder import baseline_of
from task_app.train.update import Updater, stored_episodes
from task_app.wiring import check

__all__ = ["Comparison", "Difference", "recorded_config", "replay_recorded", "replay_update"]

_WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as recorded: which update, what it is, and both values (None: missing)."""

    update: int
    what: str
    stored: Any
    recomputed: Any

    def __str__(self) -> str:
        return f"update {self.update}, {self.what}: stored {self.stored}, recomputed {self.recomputed}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a replay found.

    updates        the updates that were repeated, the one asked for last
    start          the checkpoint it began from; "" for initial weights made again
    figures        metrics compared per update
    not_compared   figures of the log that are not made of the stored rollouts alone
    advantages     advantages compared, over all repeated updates
    weights        whether weights were compared: there is a checkpoint of the update
    differences    none where everything is bit for bit the same
    """

    run_id: str
    updates: tuple[int, ...]
    start: str
    figures: int
    not_compared: tuple[str, ...]
    advantages: int
    weights: bool
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def sentences(self) -> list[str]:
        """What was compared and what differs, a line each."""
        first, last = self.updates[0], self.updates[-1]
        which = f"update {last}" if first == last else f"updates {first} to {last}"
        also = " and the weights of its checkpoint" if self.weights else ""
        left = f"; not compared: {', '.join(self.not_compared)}" if self.not_compared else ""
        verdict = "the same bit for bit" if self.equal else f"{len(self.differences)} differences"
        compared = f"{self.figures} figures an update, {self.advantages} advantages{also}{left}"
        start = self.start or "initial weights made again"
        return [f"{self.run_id}, {which} from {start}: {verdict} ({compared})", *map(str, self.differences)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return strict(asdict(self) | {"equal": self.equal})


def recorded_config(run_dir: Path, lines: Sequence[Mapping[str, Any]] = (), update: int | None = None) -> Config:
    """The settings a run folder was last started with, or those in force when `update` was made.

    `lines` are its log's, which name what changed at each resume. Raises ConfigError when there is no such run.
    """
    path = run_dir / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if update is not None:
            later = [line for line in lines if line["kind"] == "resume" and line["update"] >= update]
            settings = before_changes(settings, [line.get("changed") or {} for line in later])
        return Config.model_validate_json(json.dumps(settings))
    except FileNotFoundError as error:
        raise ConfigError(f"{run_dir} holds no run: there is no {path.name} in it", field="replay") from error
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", field="replay") from error


def replay_recorded(run_dir: Path | None, update: int | None, trace_db: Path | None = None) -> Comparison:
    """`replay_update` of a run folder with the database its config names, or `trace_db` where that was moved.

    Raises ConfigError for what is missing, StoreError when the database cannot be read.
    """
    if run_dir is None or update is None:
        missing = "replay" if run_dir is None else "update"
        raise ConfigError("a replay needs both --replay RUN and --update N", field=missing)
    database = trace_db or recorded_config(run_dir).rollout.trace_db
    with TraceStore.open(database, create=False, read_only=True) as store:
        return replay_update(run_dir, update, store)


def replay_update(run_dir: Path, update: int, store: TraceStore, *, spec: TaskSpec | None = None) -> Comparison:
    """Make update `update` (1 for the first) of the run in `run_dir` again from the episodes in `store`.

    Raises ConfigError when there is no such run or update, TrainError when what is stored cannot be trained on.
    """
    lines = MetricsLog(run_dir / "metrics.jsonl").lines()
    recorded = {line["update"]: line for line in lines if line["kind"] == "update"}
    config = recorded_config(run_dir, lines, update)
    if update not in recorded:
        made = f"it made updates 1 to {max(recorded)}" if recorded else "it made none"
        raise ConfigError(f"{run_dir} has no update {update}: {made}", field="update")
    run_id = next(line for line in lines if line["kind"] == "start")["machine"]["run_id"]
    folder = run_dir / "checkpoints"
    start = _nearest(folder, update)
    _check_settings_held(lines, int(start.name[1:]) if start else 0, update)
    return _Replay(config, spec or check(config), store, run_id, recorded).run(folder, start, update)


class _Replay:
    """One replay's state."""

    def __init__(
        self, config: Config, spec: TaskSpec, store: TraceStore, run_id: str, recorded: Mapping[int, Mapping[str, Any]]
    ) -> None:
        self._config, self._spec, self._store, self._run_id = config, spec, store, run_id
        self._recorded = recorded
        self._advantages = self._figures = 0
        self._not_compared: set[str] = set()

    def run(self, folder: Path, start: Path | None, update: int) -> Comparison:
        """Restore `start`, a checkpoint in `folder`, or begin anew; repeat up to `update`; compare."""
        network = build_network(self._spec, self._config.model, self._config.seed)
        if start is None or self._config.training.objective.kl_coefficient > 0:
            initialise(network, self._config.training.init_from)
        updater = Updater(self._config, self._spec, network)
        done = 0
        if start is not None:
            state = restore(start, network, updater.learner.weights)
            if state.run_id != self._run_id:
                raise TrainError(f"checkpoint {start} is of run {state.run_id}, the log of {self._run_id}")
            updater.baseline, done = baseline_of(start, state), state.update
        repeated = range(done + 1, update + 1)
        differences = [found for number in repeated for found in self._repeat(number, updater)]
        kept = folder / f"u{update:06d}"
        if kept.is_dir():
            differences += _weight_differences(kept, network, update)
        return Comparison(
            run_id=self._run_id,
            updates=tuple(repeated),
            start=str(start or ""),
            figures=self._figures,
            not_compared=tuple(sorted(self._not_compared)),
            advantages=self._advantages,
            weights=kept.is_dir(),
            differences=tuple(differences),
        )

    def _repeat(self, update: int, updater: Updater) -> Iterator[Difference]:
        """Make one update again; what differs in it."""
        episodes = stored_episodes(self._store, self._config, self._run_id, update)
        yield from _record_differences(update, episodes)
        batch = updater.collect(update, episodes)
        credit = updater.credit(batch)
        learned = updater.learn(update, batch, credit)
        line = self._recorded[update]
        most_shown = self._config.training.guards.top_actions
        actions = behaviour_facts(batch, len(self._spec.app.action_names), most_shown)
        figures = strict({**batch_facts(batch, episodes), **actions, **learned})
        self._figures = len(figures)
        self._not_compared |= line.keys() - figures.keys() - {"kind", "update", "seeds", "machine"}
        for name, value in figures.items():
            if line.get(name) != value:
                yield Difference(update, name, line.get(name), value)
        for episode_id, values in advantages_by_episode(batch, credit).items():
            yield from self._advantage_differences(update, episode_id, values)

    def _advantage_differences(self, update: int, episode_id: str, values: Sequence[float]) -> Iterator[Difference]:
        stored = self._store.advantages(episode_id)
        recomputed = dict(enumerate(values, start=1))
        self._advantages += len(recomputed)
        for turn in sorted(stored.keys() | recomputed.keys()):
            if stored.get(turn) != recomputed.get(turn):
                what = f"advantage of episode {episode_id} turn {turn}"
                yield Difference(update, what, stored.get(turn), recomputed.get(turn))


def _nearest(folder: Path, update: int) -> Path | None:
    """The newest checkpoint made before `update`; None where all are gone."""
    numbered = [(int(found[1]), path) for path in checkpoints(folder) if (found := re.fullmatch(r"u(\d+)", path.name))]
    earlier = [path for number, path in sorted(numbered) if number < update]
    return earlier[-1] if earlier else None


def _check_settings_held(lines: Sequence[Mapping[str, Any]], start: int, update: int) -> None:
    """Raise TrainError when settings changed between the start and the update: one config cannot repeat both parts."""
    for line in lines:
        changed = sorted((line.get("changed") or {}).keys() - MAY_CHANGE)
        if line["kind"] == "resume" and start < line["update"] < update and changed:
            raise TrainError(
                f"update {update} cannot be repeated: {', '.join(changed)} changed after update {line['update']}, "
                f"whose checkpoint is gone (training.keep_checkpoints); the nearest is of update {start}"
            )


def _record_differences(update: int, episodes: Sequence[Episode]) -> Iterator[Difference]:
    """Decision records that are not what the episode's own events make."""
    for episode in episodes:
        made = rewards_from_events(decision.events for decision in episode.decisions)
        for decision, record in zip(episode.decisions, made, strict=True):
            if decision.rewards not in (None, record):
                what = f"decision rewards of episode {episode.episode_id} turn {decision.turn}"
                yield Difference(update, what, decision.rewards, record)


def _weight_differences(kept: Path, network: Network, update: int) -> Iterator[Difference]:
    """Weight files of the update's checkpoint that the replayed network would write otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        network.save(Path(folder))
        for path in sorted(Path(folder).glob(_WEIGHTS)):
            stored = kept / path.name
            if not stored.exists() or stored.read_bytes() != path.read_bytes():
                yield Difference(update, f"weights {path.name}", str(stored), "other bytes")
