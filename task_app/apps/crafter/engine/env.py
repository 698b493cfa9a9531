"""`CrafterEnv`: a Crafter engine behind the environment protocol, in names instead of numbers.

Worlds are generated once per seed and shared as snapshots. This module knows no text, no tools and no
rewards of ours, and no rules either.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from task_app.apps.crafter.engine import protocol
from task_app.apps.crafter.engine.choice import make_engine
from task_app.apps.crafter.engine.protocol import AREA, KIND_NAMES, MAX_SEED, Engine, EngineView, NightDraws
from task_app.apps.crafter.engine.rules import ACHIEVEMENTS, ACTIONS, ITEMS, MATERIALS
from task_app.apps.crafter.view import CrafterView, SeenObject
from task_app.core.errors import EnvError
from task_app.core.task import Snapshot
from task_app.core.types import StepResult

__all__ = ["ENGINE", "CrafterEnv"]

ENGINE = f"crafter-1.8.3/ordered/{protocol.FORMAT + 1}"
"""The game and the format of its states. A snapshot's `engine` adds the name of the engine that took it."""
WORLDS_KEPT = 256

_ACTION_NUMBER = {name: number for number, name in enumerate(ACTIONS)}
_MATERIAL_NAMES: tuple[str | None, ...] = (None, *MATERIALS)


class CrafterEnv:
    """One Crafter episode. See `core.task.Environment` for the protocol."""

    def __init__(
        self, *, max_steps: int = 10_000, night_draws: NightDraws = "stock", engine: Engine | None = None
    ) -> None:
        """`engine`: a game of one's own instead of `make_engine`'s; its `night_draws` then counts."""
        self._engine = engine or make_engine(night_draws)
        self._max_steps = max_steps
        self._started = self._over = False

    def reset(self, seed: int) -> CrafterView:
        """Start the world named by `seed`. Raises EnvError unless 0 ≤ seed < 2**31 − 1."""
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
            raise EnvError(f"seed must be an integer from 0 to {MAX_SEED - 1}, got {seed!r}")
        self._engine.restore(_WORLDS.get((self._engine.name, self._engine.night_draws, seed), self._new_world))
        self._started, self._over = True, False
        return _view(self._engine.view())

    def _new_world(self, key: tuple[str, str, int]) -> bytes:
        self._engine.reset(key[-1])
        return self._engine.snapshot()

    def step(self, action: str) -> StepResult:
        """Run one action by name; reward is this step's own: ±health/10, +1 if anything was unlocked."""
        engine = self._running()
        number = _ACTION_NUMBER.get(action)
        if number is None:
            raise EnvError(f"unknown Crafter action {action!r} (allowed: {', '.join(ACTIONS)})")
        reward, dead, events = engine.step(number)
        view = engine.view()
        timed_out = view.step >= self._max_steps
        self._over = dead or timed_out
        return StepResult(
            observation=_view(view),
            reward=reward,
            terminated=dead,
            truncated=timed_out and not dead,
            events=tuple([ACHIEVEMENTS[index] for index in events]),
        )

    def snapshot(self) -> Snapshot:
        """The whole state as bytes. Raises EnvError before the first reset."""
        if not self._started:
            raise EnvError("no world to snapshot: call reset first")
        return Snapshot(self._snapshot_engine, bytes([self._over]) + self._engine.snapshot())

    def restore(self, snapshot: Snapshot) -> CrafterView:
        """Return to a snapshot. Raises EnvError when another engine made it, or the game with other night draws."""
        if snapshot.engine != self._snapshot_engine:
            raise EnvError(f"snapshot of engine {snapshot.engine!r} cannot be restored by {self._snapshot_engine!r}")
        self._engine.restore(snapshot.payload[1:])
        self._started, self._over = True, snapshot.payload[:1] != b"\0"
        return _view(self._engine.view())

    def canonical_bytes(self) -> bytes:
        """The full state as `protocol` lays it out, at the end of an episode too. Raises EnvError before reset."""
        if not self._started:
            raise EnvError("no world yet: call reset first")
        return self._engine.canonical_bytes()

    def survey(self) -> dict[str, Any]:
        """Of each material: how many tiles the world holds, and how far (L1) the nearest is from the player."""
        state = self._running().canonical_state()
        x0, y0 = state["player"]["x"], state["player"]["y"]
        distances: dict[int, list[int]] = {}
        for tile, material in enumerate(state["materials"]):
            distances.setdefault(material, []).append(abs(tile // AREA - x0) + abs(tile % AREA - y0))
        found = [(name, distances.get(number, [])) for number, name in enumerate(MATERIALS, 1)]
        return {name: {"tiles": len(away), "nearest": min(away, default=None)} for name, away in found}

    @property
    def _snapshot_engine(self) -> str:
        return f"{ENGINE}/{self._engine.name}"

    def _running(self) -> Engine:
        if not self._started:
            raise EnvError("step before reset: call reset(seed) first")
        if self._over:
            raise EnvError("step after the end of the episode: call reset(seed) first")
        return self._engine


def _view(seen: EngineView) -> CrafterView:
    return CrafterView(
        step=seen.step,
        materials=tuple([_MATERIAL_NAMES[material] for material in seen.materials]),
        objects=tuple([SeenObject(KIND_NAMES[kind], x, y) for kind, x, y in seen.objects]),
        facing=seen.facing,
        inventory=dict(zip(ITEMS, seen.inventory, strict=True)),
        achievements=dict(zip(ACHIEVEMENTS, seen.achievements, strict=True)),
        offset=seen.offset,
        daylight=seen.daylight,
        sleeping=seen.sleeping,
    )


WorldKey = tuple[str, str, int]
"""Engine, night draws, seed: what a snapshot can be restored by."""


class _Worlds:
    """Freshly generated worlds as bytes, the least recently used forgotten; one generation per seed.

    A group's G episodes share one. Safe to call from many threads.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._bytes: OrderedDict[WorldKey, bytes] = OrderedDict()
        self._locks: dict[WorldKey, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: WorldKey, make: Callable[[WorldKey], bytes]) -> bytes:
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._guard:
                payload = self._bytes.get(key)
            if payload is None:
                payload = make(key)
            with self._guard:
                self._bytes[key] = payload  # again, should another thread have made room meanwhile
                self._bytes.move_to_end(key)
                while len(self._bytes) > self._kept:
                    oldest, _ = self._bytes.popitem(last=False)
                    self._locks.pop(oldest, None)
        return payload


_WORLDS = _Worlds(WORLDS_KEPT)
