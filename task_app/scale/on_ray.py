"""Workers of a Ray cluster: a local one made for the run, or one that runs already.

Ray is told to try nothing again by itself (`max_retries=0`): the driver counts tries. Its dashboard and its usage
reports are off. Workers of a local cluster have this process's environment; on other machines this package, in the
same version, and the keys of model endpoints must be there already, since neither is sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from task_app.config.scale import ScaleSection
from task_app.core.errors import ConfigError, TaskAppError
from task_app.scale.job import GroupJob, WorkerLost, play_group

__all__ = ["RayExecutor", "ray_executor"]


@contextmanager
def ray_executor(settings: ScaleSection) -> Iterator[RayExecutor]:
    """Join or start the cluster of `settings`; a started one ends with the block.

    Raises ConfigError without the extra `ray`, TaskAppError for a cluster that cannot be reached.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do later, without its warning
    try:
        import ray
    except ImportError as error:
        needed = "--executor ray needs the extra `ray`: pip install 'crafter-task-app[ray]'"
        raise ConfigError(needed, field="scale.executor") from error
    where: dict[str, Any] = {"address": settings.ray_address}
    if not settings.ray_address:
        # "local" rather than no address: RAY_ADDRESS in the environment would silently pick another cluster
        where = {"address": "local", "num_cpus": settings.workers or os.cpu_count(), "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise TaskAppError(f"no Ray cluster at {settings.ray_address or 'this machine'}: {error}") from error
    try:
        yield RayExecutor(int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


class RayExecutor:
    """Plays groups on the cluster this process is connected to, two for each of its CPUs handed out at a time."""

    def __init__(self, cpus: int) -> None:
        import ray

        self._in_flight = 2 * cpus
        self._remote = ray.remote(num_cpus=1, max_retries=0)(play_group)

    def play(self, jobs: Sequence[GroupJob]) -> Iterator[tuple[GroupJob, str | WorkerLost]]:
        """Every job once, as they end."""
        import ray

        left, running = iter(jobs), {}
        while True:
            for job in islice(left, self._in_flight - len(running)):
                running[self._remote.remote(job.text())] = job
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            yield running.pop(done[0]), _answer(done[0])


def _answer(reference: Any) -> str | WorkerLost:
    from ray import get
    from ray.exceptions import RayError, RayTaskError

    try:
        return get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, TaskAppError):
            raise error.cause from None
        raise TaskAppError(f"a worker failed: {type(error.cause).__name__}: {error.cause}") from error
    except RayError as error:  # its process or machine is gone, or was out of memory
        return WorkerLost(f"{type(error).__name__}: {str(error).splitlines()[0]}")
