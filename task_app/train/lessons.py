"""What supervised training learns from, step by step: the rows of a file, or a teacher's answers.

A teacher first plays itself. Then, in rounds, the policy plays and the teacher says what it would have done in each
state that was reached, since a policy that has only seen a master's play is lost after its first mistake (DAgger,
Ross, Gordon and Bagnell 2011). All rounds are kept. Played episodes go to the store, and a resumed run reads them back
from there, so it learns from the same rows. It makes no optimiser step and chooses no weights.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from task_app.config.models import Config
from task_app.core.errors import StoreError, TrainError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.rollout import plan_groups, play
from task_app.rollout.relabel import Relabelling, make_teacher, relabel_episode
from task_app.store import TraceStore
from task_app.train.network import Network
from task_app.train.plan import config_json
from task_app.train.policy import EmbeddedPolicy
from task_app.train.rows import Row
from task_app.train.sampler import noise
from task_app.train.sft_data import read_rows, row_of
from task_app.train.spread_sampler import sampler_of
from task_app.wiring import make_limits

__all__ = ["Lessons", "TaughtLessons", "WrittenLessons", "make_lessons"]

Note = Callable[[str, dict[str, Any]], None]
"""Called with the kind and the values of a line for the log."""


class Lessons(Protocol):
    """Where batches come from. `steps`: how many there are; `boundaries`: steps before which something is made that
    a checkpoint should precede."""

    steps: int
    boundaries: frozenset[int]

    def batch(self, step: int) -> list[Row]:
        """The rows of step 0, 1, …; the same for the same step. Raises TrainError, StoreError."""
        ...

    def place(self, step: int) -> str:
        """Where the rows of a step are from, for a message."""
        ...

    def sample(self, count: int) -> Sequence[Row]:
        """The first rows of the data, to measure on."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the log's first line says of the data."""
        ...


def make_lessons(config: Config, spec: TaskSpec, network: Network, run_id: Callable[[], str], note: Note) -> Lessons:
    """The lessons `[sft]` asks for; `run_id` tells the run's id once it is known. Raises ConfigError or TrainError for
    a dataset that cannot be used."""
    if config.sft.teacher.name:
        return TaughtLessons(config, spec, network, run_id, note)
    assert config.sft.dataset is not None
    return WrittenLessons(config, read_rows(config.sft.dataset, network))


class WrittenLessons:
    """Passes over the rows of a file, each in an order of its own. See `Lessons`."""

    boundaries: frozenset[int] = frozenset()

    def __init__(self, config: Config, rows: list[Row]) -> None:
        self._dataset, self._rows = config.sft.dataset, rows
        self._size, self._key = config.sft.batch_rows, f"sft/{config.seed}"
        self.steps = math.ceil(len(rows) / self._size) * config.sft.epochs

    def batch(self, step: int) -> list[Row]:
        return [self._rows[place] for place in self._places(step)]

    def place(self, step: int) -> str:
        lines = ", ".join(str(place + 1) for place in sorted(self._places(step)))
        return f"lines {lines} of {self._dataset}"

    def _places(self, step: int) -> list[int]:
        return _places(len(self._rows), self._size, step, self._key)

    def sample(self, count: int) -> Sequence[Row]:
        return self._rows[:count]

    def facts(self) -> dict[str, Any]:
        return {"rows": len(self._rows)}


class TaughtLessons:
    """A teacher's own play, then rounds of the policy's play as the teacher would have gone on. See `Lessons`."""

    def __init__(self, config: Config, spec: TaskSpec, network: Network, run_id: Callable[[], str], note: Note) -> None:
        self._config, self._spec, self._network, self._note = config, spec, network, note
        self._settings = config.sft.teacher
        self._told_run_id = run_id
        self._rows: list[Row] = []
        self._rounds_read = 0
        rounds = self._settings.rounds
        self._starts = [0, *(self._settings.steps + index * self._settings.round_steps for index in range(rounds))]
        self.steps = self._settings.steps + rounds * self._settings.round_steps
        self.boundaries = frozenset(self._starts[1:])

    def batch(self, step: int) -> list[Row]:
        current = self._round_of(step)
        self._read(current, step)
        key = f"sft/{self._config.seed}/{current}"
        places = _places(len(self._rows), self._config.sft.batch_rows, step - self._starts[current], key)
        return [self._rows[place] for place in places]

    def place(self, step: int) -> str:
        return f"of rounds 0 to {self._round_of(step)} of run {self._run_id!r} in {self._config.rollout.trace_db}"

    def _round_of(self, step: int) -> int:
        return bisect_right(self._starts, step) - 1

    def sample(self, count: int) -> Sequence[Row]:
        self._read(0, 0)
        return self._rows[:count]

    def facts(self) -> dict[str, Any]:
        return {"teacher": self._settings.model_dump()}

    @property
    def _run_id(self) -> str:
        return f"{self._told_run_id()}-lessons"

    def _read(self, last: int, step: int) -> None:
        """Have the rows of all rounds up to this one."""
        while self._rounds_read <= last:
            self._rows += self._round(self._rounds_read, step)
            self._rounds_read += 1

    def _round(self, index: int, step: int) -> list[Row]:
        """The rows of a round: played now, or read back where an earlier process had played it."""
        with TraceStore.open(self._config.rollout.trace_db) as store:
            episodes = list(store.episodes(run_id=self._run_id, update=index))
            if len(episodes) < len(self._seeds(index)):
                if step > self._starts[index] and index:
                    raise TrainError(
                        f"{self._config.rollout.trace_db} no longer holds round {index} of run {self._run_id!r}, "
                        "which later steps were made from; restore that database or begin in another sft.run_dir"
                    )
                return self._play(index, store)
        rows = [
            row
            for episode in episodes
            for row in relabel_episode(episode, self._spec, make_teacher(self._spec, self._settings.name))
        ]
        return self._lines(index, episodes, rows)

    def _play(self, index: int, store: TraceStore) -> list[Row]:
        store.write_run(self._run_id, "train", config_json(self._config))
        store.supersede(self._run_id, index)
        player = Relabelling(self._player(index), self._spec, make_teacher(self._spec, self._settings.name))
        plans = plan_groups(self._seeds(index), 1, run_id=self._run_id, noise_seed=self._config.seed, update=index)
        limits = make_limits(self._config)
        episodes = play(plans, self._spec, player, limits, self._config.step_rewards, store.write_episode)
        rows = [row for episode in episodes for row in player.take(episode)]
        return self._lines(index, episodes, rows)

    def _player(self, index: int) -> Policy:
        if index == 0:
            return make_teacher(self._spec, self._settings.name)
        temperature = self._config.policy.temperature
        policy = EmbeddedPolicy(self._network, temperature=temperature, sampler=sampler_of(self._network, temperature))
        policy.version = f"s{self._starts[index]}"
        return policy

    def _seeds(self, index: int) -> range:
        teacher, start = self._settings, self._config.rollout.seeds.start
        if index == 0:
            return range(start, start + teacher.episodes)
        first = start + teacher.episodes + (index - 1) * teacher.round_episodes
        return range(first, first + teacher.round_episodes)

    def _lines(self, index: int, episodes: Sequence[Episode], rows: Sequence[dict[str, Any]]) -> list[Row]:
        """The rows as tokens; a line for the log says how the episodes went."""
        scored = [float(episode.outcome or 0.0) for episode in episodes if episode.rewarded]
        agreed = sum(row["metadata"]["agreed"] for row in rows)
        self._note(
            "round",
            {
                "round": index,
                "episodes": len(episodes),
                "failed": len(episodes) - len(scored),
                "outcome": sum(scored) / len(scored) if scored else None,
                "rows": len(rows),
                "agreed": agreed / len(rows) if rows else None,
            },
        )
        if not rows:
            raise StoreError(f"round {index} of run {self._run_id!r} holds no decision to learn from")
        return [row_of(row, self._network) for row in rows]


def _places(rows: int, size: int, step: int, key: str) -> list[int]:
    """Which of so many rows step 0, 1, … has: each once in a pass, whose order depends on key and pass alone."""
    each_pass, index = divmod(step, math.ceil(rows / size))
    order = np.argsort(noise(f"{key}/{each_pass}", rows), kind="stable")
    return [int(place) for place in order[index * size : (index + 1) * size]]
