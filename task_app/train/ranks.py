"""Which of several processes of one training this is, and how they act together; alone unless `torchrun` started it.

The first process, the leader, runs the training as it would alone: it alone plays worlds, reads data, writes files and
prints. The others, the followers, hold shards of the weights and do what the leader announces (`follower.py`). An
announced step is the same call in every process. Without `torchrun` nothing here does anything.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from task_app.core.errors import ConfigError, TrainError
from task_app.train.optimizer import NotFiniteError

__all__ = ["Ranks", "current", "following", "leading"]

Command = tuple[str, tuple[Any, ...]]

_BETWEEN_STEPS = timedelta(days=1)
"""How long a follower waits for the next step. Meanwhile the leader plays; its death is noticed at once."""


class Ranks:
    """This process among `size`. `mesh` joins them for tensors, on the device they compute on; None when alone."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.mesh: DeviceMesh | None = None
        self._control: Any = None
        self._work: Any = None
        self._timeout_s = 0.0
        self._in_step = True

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    def device(self, name: str) -> torch.device:
        """The device `model.device` means here: of several processes each has the card of its own number."""
        if self.alone or name != "cuda":
            return torch.device(name)
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        with suppress(AssertionError, RuntimeError):  # whether the card is there is for the caller to find out
            torch.cuda.set_device(device)
        return device

    @contextmanager
    def together(self, name: str, *arguments: Any) -> Iterator[None]:
        """Leader: have every follower do `name` with these arguments while this process does the same inside.

        Raises TrainError when another process ended or did not keep up; the training is then over. Only a
        NotFiniteError, which every process finds alike, leaves them fit for another step.
        """
        if self.alone:
            yield
            return
        self._in_step = False
        with self._naming_the_lost():
            dist.broadcast_object_list([(name, arguments)], src=0, group=self._control)
            try:
                yield
            except NotFiniteError:
                self._in_step = True
                raise
        self._in_step = True

    def next_command(self) -> Command | None:
        """Follower: the step the leader announces next; None when there is no more. Raises TrainError without it."""
        box: list[Any] = [None]
        with self._naming_the_lost():
            dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Inside a step: everyone's value in the order of ranks, in every process alike."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        with self._naming_the_lost():
            dist.all_gather_object(values, value, group=self._work)
        return values

    def from_leader(self, value: Any) -> Any:
        """Inside a step: the leader's value."""
        box = [value]
        with self._naming_the_lost():
            dist.broadcast_object_list(box, src=0, group=self._work)
        return box[0]

    def tensor_from_leader(self, tensor: torch.Tensor) -> None:
        """Inside a step: put the leader's numbers into everyone's tensor, which has the same form and device."""
        assert self.mesh is not None
        with self._naming_the_lost():
            dist.broadcast(tensor, src=0, group=self.mesh.get_group())

    @contextmanager
    def _naming_the_lost(self) -> Iterator[None]:
        """Turn a broken connection or a passed deadline into a sentence."""
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            if not isinstance(error, dist.DistError) and "gloo" not in text and "NCCL" not in text:
                raise
            reason = re.sub(r"^\[.*?\] ", "", text).split(". ")[0].splitlines()[0] if text else type(error).__name__
            raise TrainError(
                f"another of the {self.size} processes ended or did not answer within {self._timeout_s:g} s "
                f"(training.rank_timeout_s); if it could, it said why ({reason})"
            ) from error

    def _join(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        dist.init_process_group("gloo")
        self._control = dist.new_group(backend="gloo", timeout=_BETWEEN_STEPS)

    def _set_up(self, timeout_s: float, device: str) -> None:
        """Make the groups that work together, as the leader's settings ask."""
        self._timeout_s, timeout = timeout_s, timedelta(seconds=timeout_s)
        self._work = dist.new_group(backend="gloo", timeout=timeout)
        if device == "cuda":
            self.device(device)
            cards: Any = dist.new_group(backend="nccl", timeout=timeout)
            self.mesh = DeviceMesh.from_group(cards, "cuda")
        else:
            self.mesh = DeviceMesh.from_group(self._work, "cpu")

    def _leave(self) -> None:
        """End what is in step; where it is not, the processes' own ends close the connections."""
        if self._in_step:
            dist.destroy_process_group()


_current = Ranks()
_ended = False


def current() -> Ranks:
    """This process's place; alone outside `leading` and `following`."""
    return _current


@contextmanager
def leading(timeout_s: float, device: str) -> Iterator[Ranks]:
    """Be the leader while inside; at the end, by an error too, the followers are dismissed.

    No follower may take longer than `timeout_s` within a step; `device` is `model.device`. Alone, this does nothing.
    Raises ConfigError for a device that suits no group, TrainError in a process that has to follow.
    """
    global _ended
    rank, size = _place()
    if size == 1:
        yield _current
        return
    if rank:
        raise TrainError(f"process {rank} of {size} was started by torchrun to follow the first; it cannot lead")
    if _ended:
        raise TrainError("the other processes of this torchrun have ended: one training each")
    _check_device(device, size)
    with _member(rank, size) as here:
        with here.together("", timeout_s, device):
            here._set_up(timeout_s, device)
        try:
            yield here
        finally:
            _ended = True
            if here._in_step:
                with suppress(RuntimeError):  # a follower that is gone needs no dismissal
                    dist.broadcast_object_list([None], src=0, group=here._control)


@contextmanager
def following() -> Iterator[Ranks]:
    """Be a follower while inside. Raises TrainError when the leader is gone."""
    with _member(*_place()) as here:
        command = here.next_command()
        assert command is not None
        here._set_up(*command[1])
        yield here


@contextmanager
def _member(rank: int, size: int) -> Iterator[Ranks]:
    global _current
    here = Ranks()
    here._join(rank, size)
    _current = here
    try:
        with _told_to_end(here):
            yield here
    except BaseException:
        here._in_step = here._in_step and not rank
        raise
    finally:
        _current = Ranks()
        here._leave()


def _place() -> tuple[int, int]:
    """Rank and number of processes as `torchrun` tells them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _check_device(name: str, size: int) -> None:
    """Refuse a device that several processes cannot share out among them. Raises ConfigError."""
    needed, cards = int(os.environ.get("LOCAL_WORLD_SIZE", size)), torch.cuda.device_count()
    if name not in ("cpu", "cuda"):
        problem = 'is not possible: allowed are "cpu" and "cuda", of which each takes the card of its number'
    elif name == "cuda" and cards < needed:
        problem = f"needs a card each, and there are {cards}; start at most as many processes"
    else:
        return
    raise ConfigError(f'model.device = "{name}" for {needed} processes {problem}', field="model.device")


@contextmanager
def _told_to_end(here: Ranks) -> Iterator[None]:
    """End in an orderly way on SIGTERM, by which `torchrun` ends all when one has failed; followers do so silently."""

    def end(number: int, frame: FrameType | None) -> None:
        if here.rank:
            raise SystemExit(128 + number)
        raise TrainError("told to end by SIGTERM, as torchrun does when another process failed")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
