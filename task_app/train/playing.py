"""Playing an update's groups into the store, at once or ahead: while the update before is learned.

Played ahead, episodes are of weights one update older, as their policy version says; the trainer's ratio to the
sampler corrects for it. Weights are handed over only while nothing is played. What was played ahead for an update that
is then not made is superseded by whoever ends the run. Learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from task_app.config.models import Config
from task_app.core.errors import TrainError
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.rollout import plan_groups
from task_app.store import TraceStore
from task_app.train.facts import Clock
from task_app.train.heartbeat import beating
from task_app.train.hosted import Rollouts
from task_app.train.plan import update_seeds
from task_app.train.policy import EmbeddedPolicy
from task_app.wiring import make_limits

__all__ = ["Player"]


class Player:
    """Plays updates of one run. As a context manager it makes ready where they are played; at the end it ends the
    thread that plays ahead, at its next decisions, and closes the policy."""

    def __init__(
        self,
        config: Config,
        spec: TaskSpec,
        store: TraceStore,
        policy: EmbeddedPolicy,
        beat: Callable[[], object],
        rollouts: Rollouts,
    ) -> None:
        self._config, self._spec, self._store, self._policy, self._beat = config, spec, store, policy, beat
        self._rollouts = rollouts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="play-ahead")
        self._ahead: tuple[int, Future[Clock]] | None = None
        self._stopped = False

    def __enter__(self) -> Self:
        self._rollouts.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._rollouts.__exit__(kind, error, traceback)
        self._policy.close()

    def play(self, run_id: str, update: int, clock: Clock) -> None:
        """Have the update's episodes in the store: waits for what is played ahead, else plays now.

        Adds to `clock` what storing and sampling took, whenever that was. Raises what playing raises.
        """
        self.wait()
        if self._ahead is not None and self._ahead[0] == update:
            clock.seconds.update(self._ahead[1].result().seconds)
        else:
            clock.seconds.update(self._play(run_id, update).seconds)
        self._ahead = None

    def begin(self, run_id: str, update: int) -> None:
        """Play the update ahead, if there is to be one and `sampler.max_staleness` allows it."""
        if self._config.sampler.max_staleness and update <= self._config.training.updates:
            self._ahead = update, self._thread.submit(self._play, run_id, update)

    def wait(self) -> None:
        """Until nothing is played any more. Raises what playing raised."""
        if self._ahead is not None:
            self._ahead[1].result()

    def _play(self, run_id: str, update: int) -> Clock:
        clock, sampled_before = Clock(), self._policy.sampling_s
        plans = plan_groups(
            update_seeds(self._config, update),
            self._config.rollout.group_size,
            run_id=run_id,
            noise_seed=self._config.seed,
            update=update,
        )

        def sink(episode: Episode) -> None:
            with clock.measure("store"):
                self._store.write_episode(episode)

        def beat() -> None:
            if self._stopped:
                raise TrainError("the run ends")
            self._beat()

        policy, limits = beating(self._policy, beat), make_limits(self._config)
        flags, concurrency = self._config.step_rewards, self._config.rollout.concurrency
        self._rollouts.play(plans, self._spec, policy, limits, flags, sink, concurrency=concurrency)
        clock.seconds["sampling"] = self._policy.sampling_s - sampled_before
        return clock
