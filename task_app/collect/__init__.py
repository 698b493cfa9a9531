"""Stored episodes → reward vectors → batches for training. Pure and deterministic: no I/O, no clock.

vectors.py  one episode → r, one number per decision (or per step), under the flags in force
batch.py    groups that are complete, what was dropped and why, and the batch's metrics
rows.py     the same as JSON lines
"""

from task_app.collect.batch import (
    Batch,
    BatchMetrics,
    Group,
    RewardedEpisode,
    build_batch,
    measure,
    outcome_is_unique_events,
)
from task_app.collect.rows import collect_rows
from task_app.collect.vectors import RewardVector, reward_vector

__all__ = [
    "Batch",
    "BatchMetrics",
    "Group",
    "RewardVector",
    "RewardedEpisode",
    "build_batch",
    "collect_rows",
    "measure",
    "outcome_is_unique_events",
    "reward_vector",
]
