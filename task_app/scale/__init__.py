"""Rollouts over several worker processes or machines: groups go out, episodes come back, one writer stores them.

job.py     one group as text, and playing it in a worker
driver.py  hands out groups, stores each whole group once, hands out again what a lost worker had
on_ray.py  workers of a Ray cluster

Other kinds of workers are an `Executor` handed in (Modal's is in deploy/). Nothing here trains or imports torch.
"""

from task_app.scale.driver import Executor, check_scalable, play_scaled
from task_app.scale.job import GroupJob, WorkerLost, play_group

__all__ = ["Executor", "GroupJob", "WorkerLost", "check_scalable", "play_group", "play_scaled"]
