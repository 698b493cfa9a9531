"""Where the groups of a rollout are played: on a Ray cluster, or in containers of the app deployed at Modal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from task_app.config import Config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.deploy.deployment import ROLLOUTS, Deployment
from task_app.scale import Executor, GroupJob, WorkerLost, check_scalable

__all__ = ["ModalExecutor", "executor_of"]


@contextmanager
def executor_of(config: Config) -> Iterator[Executor]:
    """The executor that `scale.executor` names, usable inside the block.

    Raises ConfigError for what it cannot play and for a missing extra, TaskAppError where it cannot be reached.
    """
    check_scalable(config)
    if config.scale.executor == "ray":
        from task_app.scale.on_ray import ray_executor

        with ray_executor(config.scale) as executor:
            yield executor
        return
    yield ModalExecutor(_deployed(Deployment.of(config)))


class ModalExecutor:
    """Plays groups with `map` of a function at Modal, which answers one text with another."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def play(self, jobs: Sequence[GroupJob]) -> Iterator[tuple[GroupJob, str | WorkerLost]]:
        """Every job once, in order. A failure that no one raised on purpose counts as a lost container."""
        texts = (job.text() for job in jobs)
        answers = self._function.map(texts, order_outputs=True, return_exceptions=True)
        for job, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, TaskAppError):
                raise answer
            lost = isinstance(answer, BaseException)
            yield job, WorkerLost(f"{type(answer).__name__}: {answer}") if lost else answer


def _deployed(deployment: Deployment) -> Any:
    """The function of the deployed app. Raises ConfigError without Modal's package, TaskAppError without the app."""
    try:
        import modal
    except ImportError as error:
        needed = "--executor modal needs the extra `modal`: pip install 'crafter-task-app[modal]'"
        raise ConfigError(needed, field="scale.executor") from error
    try:
        function = modal.Function.from_name(deployment.name, ROLLOUTS)
        function.hydrate()
    except modal.exception.NotFoundError as error:
        raise TaskAppError(f"no app {deployment.name!r} is deployed at Modal; `task-app deploy` does it") from error
    except modal.exception.Error as error:
        raise TaskAppError(f"Modal cannot be asked: {error}") from error
    return function
