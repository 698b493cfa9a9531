"""Pictures of an episode's world after any of its steps, made again by replay; none is ever stored.

A `Film` keeps a snapshot of the world every `EVERY` steps, so that a picture is never further than that
from a world at hand. Nothing is shown of an episode that does not replay exactly as it was stored.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress

from task_app.core.errors import ConfigError
from task_app.core.task import Environment, Picture, Snapshot, TaskApp, TaskSpec
from task_app.core.types import Episode
from task_app.rollout.episode import run_actions
from task_app.rollout.replay import world_after
from task_app.wiring import make_spec

__all__ = ["EVERY", "Film", "Films", "NotShown", "film_key", "spec_of"]

EVERY = 50
"""Steps between two kept snapshots."""
MOST_SNAPSHOTS = 256
"""Snapshots kept of one episode; they stand further apart in longer ones."""
MOST_FILMS = 16
"""Episodes whose worlds are kept; the one not looked at for the longest time goes first."""


class NotShown(Exception):
    """There is no picture; its text is the sentence to show instead. `nothing` where the app draws none at all."""

    def __init__(self, sentence: str, *, nothing: bool = False) -> None:
        super().__init__(sentence)
        self.nothing = nothing


def spec_of(episode: Episode) -> TaskSpec:
    """The task an episode was played on. Raises NotShown when it cannot be played or drawn here."""
    task = episode.task
    try:
        spec = make_spec(task.app, task.options)
    except ConfigError as error:
        raise NotShown(f"this episode cannot be replayed here: {error}") from error
    if spec.app.version != task.version:
        raise NotShown(
            f"this episode cannot be replayed here: it was played with {task.app} {task.version}, "
            f"and {spec.app.version} is installed"
        )
    if type(spec.app).picture is TaskApp.picture:
        raise NotShown(f"{spec.app.title} draws no pictures", nothing=True)
    return spec


def film_key(episode: Episode) -> str:
    """Sixteen hex digits over all that a picture depends on: app, version, options, seed and actions."""
    task = episode.task
    parts = [task.app, task.version, dict(task.options), task.seed, [step.action for step in episode.steps]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class Film:
    """One episode as pictures; safe to use from many threads. Raises NotShown like `spec_of`."""

    def __init__(self, episode: Episode) -> None:
        self.key = film_key(episode)
        self._spec = spec_of(episode)
        self._steps = episode.steps
        self._every = max(EVERY, -(-len(self._steps) // MOST_SNAPSHOTS))
        self._lock = threading.Lock()
        try:
            self._env: Environment = world_after(self._spec, episode, 0)
            self._kept: dict[int, Snapshot] = {0: self._env.snapshot()}
        except Exception as error:  # whatever an app raises, the page shows a sentence
            raise NotShown(f"this episode cannot be replayed: {error}") from error
        self._at = 0

    def __len__(self) -> int:
        """How many steps there are; pictures are those after 0 to this many."""
        return len(self._steps)

    def picture(self, step: int) -> Picture:
        """The world after the first `step` steps. Raises NotShown where the replay departs from what is stored."""
        with self._lock:
            try:
                self._go_to(step)
                picture = self._spec.app.picture(self._env)
            except NotShown:
                raise
            except Exception as error:  # likewise
                raise NotShown(f"this episode cannot be replayed to step {step}: {error}") from error
        if picture is None:
            raise NotShown(f"{self._spec.app.title} draws no picture here", nothing=True)
        return picture

    def fill(self) -> None:
        """Keep every snapshot, a stretch at a time, so that pictures asked for meanwhile need not wait for all."""
        with suppress(NotShown):
            self.picture(0)  # the first one loads what drawing needs
        for place in range(0, len(self._steps) + 1, self._every):
            with self._lock:
                if place in self._kept:
                    continue
                try:
                    self._go_to(place)
                except Exception:  # told when the picture is asked for
                    return

    def _go_to(self, step: int) -> None:
        nearest = max(place for place in self._kept if place <= step)
        if not nearest <= self._at <= step:
            self._env.restore(self._kept[nearest])
            self._at = nearest
        while self._at < step:
            end = min(step, self._at - self._at % self._every + self._every)
            self._advance(end)
            if end % self._every == 0 and end not in self._kept:
                self._kept[end] = self._env.snapshot()

    def _advance(self, end: int) -> None:
        stored = self._steps[self._at : end]
        position, self._at = self._at, -1  # nowhere, should the world fail on the way
        played = run_actions(self._env, [step.action for step in stored], position)
        for expected, (record, _) in zip(stored, played, strict=False):
            if record != expected:
                raise NotShown(f"the replay departs from what is stored at action {position + 1} ({expected.action})")
            position += 1
        if position < end:
            raise NotShown(f"action {position + 1} cannot be replayed: the world was over before it")
        self._at = end


class Films:
    """The films last looked at, at most `MOST_FILMS`; safe to use from many threads."""

    def __init__(self) -> None:
        self._films: OrderedDict[Hashable, Film] = OrderedDict()
        self._lock = threading.Lock()

    def film(self, name: Hashable, load: Callable[[], Episode]) -> Film:
        """The film called `name`, made of the episode that `load` gives if it is not at hand. Raises NotShown."""
        with self._lock:
            if name in self._films:
                self._films.move_to_end(name)
                return self._films[name]
        film = Film(load())  # outside the lock: others need not wait; made twice, it is made alike
        with self._lock:
            film = self._films.setdefault(name, film)
            while len(self._films) > MOST_FILMS:
                self._films.popitem(last=False)
        return film
