"""An update made from stored episodes: batch, credit, rows, optimiser. Shared by the loop and by its replay.

Plays nothing and writes nothing but the network's own weights; the same episodes, weights and running means give
the same update, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from task_app.collect import Batch, build_batch
from task_app.config.models import Config
from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.credit import CreditResult, GroupRewards, RunningBaseline, compute_advantages
from task_app.store import TraceStore
from task_app.train.learner import Learner
from task_app.train.network import Network
from task_app.train.plan import credit_settings
from task_app.train.ranks import current
from task_app.train.rows import Row, RowBuilder, merge_rate

__all__ = ["MOST_DROPPED", "Updater", "stored_episodes"]

MOST_DROPPED = 0.1
"""Share of an update's groups that may be lost to infrastructure (one group always may)."""


def stored_episodes(store: TraceStore, config: Config, run_id: str, update: int) -> list[Episode]:
    """What was played for an update, in order; decision records only where the flags in force have them."""
    records = config.step_rewards.mode == "decision_stepwise"
    return list(store.episodes(run_id=run_id, update=update, records=records))


class Updater:
    """Owns the learner and the running means of one run.

    baseline  means of earlier batches; restored from a checkpoint by whoever resumes
    """

    def __init__(self, config: Config, spec: TaskSpec, network: Network) -> None:
        self._config, self._spec = config, spec
        temperature = config.policy.temperature
        # The learner takes its KL reference from the weights as they are now: make it before any restore.
        self.learner = Learner(network, config.training, temperature)
        self.baseline = RunningBaseline()
        self._rows = RowBuilder(network.table, network.renderer.hash, temperature)
        self._credit = credit_settings(config)

    def collect(self, update: int, episodes: Sequence[Episode]) -> Batch:
        """The update's batch. Raises TrainError when too many groups were lost to count as chance."""
        try:
            batch = build_batch(
                episodes,
                self._config.step_rewards,
                self._config.rollout.group_size,
                unique_outcome=self._spec.app.outcome_is_unique_events,
            )
        except ValueError as error:
            raise TrainError(f"update {update} cannot be trained on: {error}") from error
        lost, asked = len(batch.dropped), self._config.training.groups_per_update
        if lost > 1 and lost > MOST_DROPPED * asked:
            first = next(iter(batch.dropped.items()))
            raise TrainError(
                f"update {update} lost {lost} of {asked} groups, the first ({first[0]}) because {first[1]}; going on "
                "would train on what does not fail. The last checkpoint stays; run again to resume"
            )
        return batch

    def credit(self, batch: Batch) -> CreditResult:
        """Advantages of the batch's decisions; moves the running means on."""
        groups = [
            GroupRewards(group.group_id, self._spec.prompt_hash, tuple(member.rewards for member in group.members))
            for group in batch.groups
        ]
        return compute_advantages(groups, self._credit, self.baseline)

    def learn(self, update: int, batch: Batch, credit: CreditResult) -> dict[str, Any]:
        """Update the weights; what to log of credit and training. Raises NotFiniteError (a TrainError)."""
        asked = self._config.training.groups_per_update * self._config.rollout.group_size
        rows = self._build_rows(batch, credit)
        with current().together("update", rows, asked, update):
            learned = self.learner.update(rows, asked, number=update)
        return {**credit.statistics, **learned, "train/merge_rate": merge_rate(rows)}

    def _build_rows(self, batch: Batch, credit: CreditResult) -> list[Row]:
        rows: list[Row] = []
        for group, credited in zip(batch.groups, credit.groups, strict=True):
            for member, values in zip(group.members, credited.advantages, strict=True):
                rows += self._rows.rows(member.episode.decisions, values)
        return rows
