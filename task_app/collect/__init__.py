"""Stored episodes → reward vectors → batches for training. Pure and deterministic.

    vectors.py  one episode → r, one number per decision (or step)
"""

from task_app.collect.rows import collect_rows
from task_app.collect.vectors import RewardVector, reward_vector

__all__ = ["RewardVector", "collect_rows", "reward_vector"]
