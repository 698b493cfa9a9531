"""A process that trains the toy again and again: killed at a named point, then run again to its end.

    python tests/train/killed_runs.py FOLDER POINT…

Each training happens in a fork of this process, which itself never computes, so every one starts as a new process
does and only the imports are shared. A kill is SIGKILL, sent by the training to itself at the point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from task_app.config import Config
from task_app.core.task import TaskSpec
from task_app.store import TraceStore
from task_app.train import checkpoint, checkpoint_folder, grpo, learner, metrics, optimizer
from tests.train.conftest import LineApp, LineOptions, LineWorld, make_config

UPDATES, EVERY, EPISODES = 5, 2, 16
UNDISTURBED = "undisturbed"


def config_of(folder: Path, point: str) -> Config:
    """Five updates; checkpoints after 2, 3 (evaluated), 4 and 5."""
    return make_config(
        folder / point,
        training__updates=UPDATES,
        training__checkpoint_every=EVERY,
        training__keep_checkpoints=2,
        training__credit__scale="batch_rms",
        eval__every=3,
        eval__env_steps=4,
    )


def die(*arguments: Any, **named: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, due: Callable[..., bool]) -> None:
    """Die when `owner.name` is about to be called and `due(count, *arguments)`."""
    _around(owner, name, due, late=False)


def after(owner: Any, name: str, due: Callable[..., bool]) -> None:
    """Die when it has returned."""
    _around(owner, name, due, late=True)


def _around(owner: Any, name: str, due: Callable[..., bool], *, late: bool) -> None:
    original, calls = getattr(owner, name), [0]

    def wrapped(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        now = due(calls[0], *arguments)
        if now and not late:
            die()
        result = original(*arguments, **named)
        if now and late:
            die()
        return result

    setattr(owner, name, wrapped)


def torn_line() -> None:
    """Die with half of the line of update 4 written."""

    def append(self: Any, kind: str, update: int, **values: Any) -> Any:
        if (kind, update) == ("update", 4):
            with self.path.open("a") as file:
                file.write('{"kind": "update", "upda')
            die()
        return original(self, kind, update, **values)

    original = metrics.MetricsLog.append
    metrics.MetricsLog.append = append  # type: ignore[method-assign]


def trained(update: int, member: int) -> Callable[..., bool]:
    """When this member of an update's group is meant (of evaluations, none is)."""
    return lambda count, store, e: (e.update, e.member) == (update, member) and "eval" not in e.run_id


POINTS: dict[str, Callable[[], None]] = {
    "first-checkpoint": lambda: before(checkpoint_folder, "_point", lambda n, *_: n == 1),
    "inside-playing": lambda: before(LineWorld, "step", lambda n, *_: n == 260),
    "some-episodes-stored": lambda: after(TraceStore, "write_episode", trained(4, 5)),
    "between-store-and-learn": lambda: before(grpo, "stored_episodes", lambda n, *_: n == 4),
    "inside-learning": lambda: after(learner.Learner, "_backward", lambda n, *_: n == 3),
    "before-advantages": lambda: after(optimizer.Optimizer, "step", lambda n, *_: n == 4),
    "after-advantages": lambda: after(TraceStore, "write_advantages", lambda n, store, run, update, a: update == 4),
    "half-a-line": torn_line,
    "inside-saving": lambda: before(checkpoint, "_write_json", lambda n, path, value: value["update"] == 4),
    "before-the-pointer": lambda: before(checkpoint_folder, "_point", lambda n, folder, name, to: to == "u000003"),
    "after-the-pointer": lambda: after(checkpoint_folder, "_point", lambda n, folder, name, to: to == "u000004"),
    "inside-evaluation": lambda: after(TraceStore, "write_episode", lambda n, store, e: (e.update, e.task.seed) == (
        3, 1_000_003)),
    "before-the-evaluation-line": lambda: before(
        metrics.MetricsLog, "append", lambda n, log, kind, update: (kind, update) == ("eval", 3)
    ),
    "before-best": lambda: before(grpo, "mark_best", lambda n, *_: n == 2),
}  # fmt: skip


def train(folder: Path, point: str, *, kill: bool) -> None:
    """One training, in this process."""
    config = config_of(folder, point)
    if kill:
        POINTS[point]()
    with TraceStore.open(config.rollout.trace_db) as store:
        grpo.run_training(config, TaskSpec(LineApp(), LineOptions()), store)


def in_a_fork(folder: Path, point: str, *, kill: bool) -> int:
    """Train in a child; minus the signal that ended it, or its exit code."""
    child = os.fork()
    if not child:
        try:
            train(folder, point, kill=kill)
        except BaseException as error:
            print(f"{point}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    folder, points = Path(sys.argv[1]), sys.argv[2:]
    for point in points:
        if point != UNDISTURBED:
            ended = in_a_fork(folder, point, kill=True)
            assert ended == -signal.SIGKILL, f"{point}: was not killed but ended with {ended}"
        assert in_a_fork(folder, point, kill=False) == 0, point


if __name__ == "__main__":
    main()
