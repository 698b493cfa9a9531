"""What every process of a `torchrun` but the first does: take part in each step the first one announces.

It builds its own network when told to, and afterwards computes. It plays nothing, reads no data, writes no file, and
prints only why it failed. Kept free of heavy imports at the top, since every `train` command asks `must_follow`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from task_app.config.models import Config
    from task_app.core.task import TaskSpec
    from task_app.train.learner import Learner
    from task_app.train.network import AnswerSampler, Network
    from task_app.train.rows import Row
    from task_app.train.sft_learner import SftLearner

__all__ = ["follow", "must_follow"]


def must_follow() -> bool:
    """Whether `torchrun` started this process as another than the first."""
    return os.environ.get("RANK", "0") != "0"


def follow() -> None:
    """Take part until the leader is done. Raises TrainError when it is gone or this process cannot go on."""
    from transformers.utils import logging as transformers_logging

    from task_app.core.errors import TaskAppError, TrainError
    from task_app.train.optimizer import NotFiniteError
    from task_app.train.ranks import following

    transformers_logging.set_verbosity_error()  # what there is to say, the leader says
    try:
        with following() as here:
            follower = _Follower()
            while (command := here.next_command()) is not None:
                name, arguments = command
                with suppress(NotFiniteError):  # every process finds the same, and the leader tells it
                    getattr(follower, name)(*arguments)
    except TaskAppError as error:
        raise TrainError(f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {error}") from error


class _Follower:
    """The steps by name; each is what the leader does at the same time."""

    def __init__(self) -> None:
        self._samplers: dict[float, AnswerSampler] = {}
        self._network: Network
        self._learner: Learner | SftLearner

    def begin(self, kind: str, config: Config, spec: TaskSpec) -> None:
        """Build the network and its learner, for kind rl or sft; the leader's weights are put into them."""
        from task_app.train.learner import Learner
        from task_app.train.load import build_network
        from task_app.train.sft_learner import SftLearner

        self._network = build_network(spec, config.model, config.seed)
        if kind == "sft":
            self._learner = SftLearner(self._network, config)
        else:
            self._learner = Learner(self._network, config.training, config.policy.temperature)

    def sample(self, temperature: float, prompts: Sequence[Sequence[int]], keys: Sequence[str]) -> None:
        """Sample this process's share of the answers."""
        from task_app.train.spread_sampler import sample_share

        if temperature not in self._samplers:
            self._samplers[temperature] = self._network.sampler(temperature)
        sample_share(self._samplers[temperature], prompts, keys)

    def update(self, rows: Sequence[Row], *arguments: Any) -> None:
        """One update, or one step of supervised training."""
        learner: Any = self._learner
        learner.update(rows, *arguments)

    def measure(self, rows: Sequence[Row]) -> None:
        """Loss and entropy of rows."""
        learner: Any = self._learner
        learner.measure(rows)

    def collect(self) -> None:
        """Hand weights and optimiser state to the leader."""
        weights: Any = self._learner.weights
        weights.collect()

    def distribute(self) -> None:
        """Take over weights and optimiser state the leader has read."""
        weights: Any = self._learner.weights
        weights.distribute(None)
