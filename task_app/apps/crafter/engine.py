"""The Crafter world behind the environment protocol: the `crafter` package's own rules, reproducible.

Stock Crafter picks creatures out of sets ordered by memory address, so one seed plays differently in
every process. Here chunks keep insertion order ("ordered Crafter"), nothing is rendered, and the
random numbers a stock 64×64 render would draw at night are drawn once per step. Worlds are generated
once per seed and shared as snapshots. This module knows no text, no tools and no rewards of ours.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict, defaultdict
from typing import Any, Literal

import numpy as np
from crafter import constants, engine, objects, worldgen
from crafter.env import Env as StockEnv

from task_app.apps.crafter.rules import ACHIEVEMENTS, ACTIONS, MATERIALS, VIEW
from task_app.apps.crafter.view import HALF_HEIGHT, HALF_WIDTH, CrafterView, SeenObject
from task_app.core.errors import EnvError
from task_app.core.task import Snapshot
from task_app.core.types import StepResult

__all__ = ["ENGINE", "MAX_SEED", "CrafterEnv"]

ENGINE = "crafter-1.8.3/ordered/1"
AREA = (64, 64)
CHUNK = (12, 12)
UPDATE_DISTANCE = 2 * 9  # stock: twice the larger side of the 9×9 view, player row included
NIGHT_NOISE = (63, 49)  # pixels of the map part of a stock 64×64 picture
MAX_SEED = 2**31 - 1
WORLDS_KEPT = 256

_KINDS = {objects.Cow: "cow", objects.Zombie: "zombie", objects.Skeleton: "skeleton", objects.Arrow: "arrow"}


class _OrderedSet(dict[Any, None]):
    """The three set methods Crafter's world uses, in insertion order."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class _OrderedWorld(engine.World):
    """Crafter's world with chunk members in insertion order, so that balancing is reproducible."""

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._chunks = defaultdict(_OrderedSet)


class _Game(StockEnv):
    """Stock Crafter's own bookkeeping (time, balancing) around an ordered world, without pictures.

    Only `_update_time` and `_balance_chunk` of the stock class are used; its constructor, which
    decodes sixty pictures, is not.
    """

    def __init__(self, seed: int) -> None:
        self._world = _OrderedWorld(AREA, constants.materials, CHUNK)  # pyright: ignore[reportAttributeAccessIssue]
        # Stock numbers its resets from 1 and mixes the number into the seed; ours name their seed.
        self._world.reset(seed=hash((seed, 1)) % MAX_SEED)
        self._step = 0
        self._update_time()
        center = (AREA[0] // 2, AREA[1] // 2)
        self._player = objects.Player(self._world, center)
        self._world.add(self._player)
        worldgen.generate_world(self._world, self._player)


class CrafterEnv:
    """One Crafter episode. See `core.task.Environment` for the protocol."""

    def __init__(self, *, max_steps: int = 10_000, night_draws: Literal["stock", "none"] = "stock") -> None:
        self._max_steps = max_steps
        self._night_draws = night_draws
        self._game: _Game | None = None
        self._over = False

    def reset(self, seed: int) -> CrafterView:
        """Start the world named by `seed`. Raises EnvError unless 0 ≤ seed < 2**31 − 1."""
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
            raise EnvError(f"seed must be an integer from 0 to {MAX_SEED - 1}, got {seed!r}")
        self._game = pickle.loads(_WORLDS.get(seed))
        self._over = False
        return self._view(self._game)

    def step(self, action: str) -> StepResult:
        """Run one action by name; reward is this step's own: ±health/10, +1 if anything was unlocked."""
        game = self._running()
        if action not in ACTIONS:
            raise EnvError(f"unknown Crafter action {action!r} (allowed: {', '.join(ACTIONS)})")
        player = game._player
        health, counts = player.health, dict(player.achievements)
        game._step += 1
        game._update_time()
        player.action = action
        for thing in game._world.objects:
            if player.distance(thing) < UPDATE_DISTANCE:
                thing.update()
        if game._step % 10 == 0:
            for chunk, members in game._world.chunks.items():
                game._balance_chunk(chunk, members)
        self._draw_night_noise(game)
        return self._result(game, health, counts)

    def snapshot(self) -> Snapshot:
        """The whole state as bytes. Raises EnvError before the first reset."""
        if self._game is None:
            raise EnvError("no world to snapshot: call reset first")
        return Snapshot(ENGINE, pickle.dumps((self._game, self._over), pickle.HIGHEST_PROTOCOL))

    def restore(self, snapshot: Snapshot) -> CrafterView:
        """Return to a snapshot. Raises EnvError when another engine made it."""
        if snapshot.engine != ENGINE:
            raise EnvError(f"snapshot of engine {snapshot.engine!r} cannot be restored by {ENGINE!r}")
        self._game, self._over = pickle.loads(snapshot.payload)
        assert self._game is not None
        return self._view(self._game)

    def survey(self) -> dict[str, Any]:
        """Of each material: how many tiles the world holds, and how far (L1) the nearest is from the player."""
        game = self._running()
        x0, y0 = game._player.pos
        ids: Any = game._world._mat_ids
        facts = {}
        for name in MATERIALS:
            xs, ys = np.nonzero(game._world._mat_map == ids[name])
            nearest = int((abs(xs - x0) + abs(ys - y0)).min()) if len(xs) else None
            facts[name] = {"tiles": len(xs), "nearest": nearest}
        return facts

    def _running(self) -> _Game:
        if self._game is None:
            raise EnvError("step before reset: call reset(seed) first")
        if self._over:
            raise EnvError("step after the end of the episode: call reset(seed) first")
        return self._game

    def _draw_night_noise(self, game: _Game) -> None:
        if self._night_draws == "stock" and game._world.daylight < 0.5:
            game._world.random.uniform(32, 127, NIGHT_NOISE)

    def _result(self, game: _Game, health: int, counts: dict[str, int]) -> StepResult:
        player = game._player
        rises = {name: player.achievements[name] - counts[name] for name in ACHIEVEMENTS}
        unlocked = any(rise > 0 and counts[name] == 0 for name, rise in rises.items())
        dead = player.health <= 0
        timed_out = game._step >= self._max_steps
        self._over = dead or timed_out
        return StepResult(
            observation=self._view(game),
            reward=(player.health - health) / 10 + float(unlocked),
            terminated=dead,
            truncated=timed_out and not dead,
            events=tuple(name for name in ACHIEVEMENTS for _ in range(rises[name])),
        )

    def _view(self, game: _Game) -> CrafterView:
        world, player = game._world, game._player
        x0, y0 = int(player.pos[0]), int(player.pos[1])
        seen = []
        for thing in world.objects:
            dx, dy = int(thing.pos[0]) - x0, int(thing.pos[1]) - y0
            if thing is not player and abs(dx) <= HALF_WIDTH and abs(dy) <= HALF_HEIGHT:
                seen.append(SeenObject(_kind(thing), dx, dy))
        return CrafterView(
            step=game._step,
            materials=_materials_around(world, x0, y0),
            objects=tuple(seen),
            facing=(int(player.facing[0]), int(player.facing[1])),
            inventory=dict(player.inventory),
            achievements=dict(player.achievements),
            offset=(x0 - AREA[0] // 2, y0 - AREA[1] // 2),
            daylight=float(world.daylight),
            sleeping=bool(player.sleeping),
        )


def _kind(thing: Any) -> str:
    if isinstance(thing, objects.Plant):
        return "ripe_plant" if thing.ripe else "plant"
    return _KINDS[type(thing)]


def _materials_around(world: engine.World, x0: int, y0: int) -> tuple[str | None, ...]:
    """The 63 materials around (x0, y0), column by column; None beyond the edge."""
    padded = np.zeros(VIEW, np.uint8)
    left, top = x0 - HALF_WIDTH, y0 - HALF_HEIGHT
    xs = slice(max(0, left), min(AREA[0], left + VIEW[0]))
    ys = slice(max(0, top), min(AREA[1], top + VIEW[1]))
    padded[xs.start - left : xs.stop - left, ys.start - top : ys.stop - top] = world._mat_map[xs, ys]
    names = world._mat_names
    return tuple(names[index] for index in padded.ravel().tolist())


class _Worlds:
    """Freshly generated worlds as bytes, the least recently used forgotten; one generation per seed.

    Generating takes about .1 s, so a group's G episodes share one. Safe to call from many threads.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._bytes: OrderedDict[int, bytes] = OrderedDict()
        self._locks: dict[int, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, seed: int) -> bytes:
        with self._guard:
            lock = self._locks.setdefault(seed, threading.Lock())
        with lock:
            with self._guard:
                payload = self._bytes.get(seed)
            if payload is None:
                payload = pickle.dumps(_Game(seed), pickle.HIGHEST_PROTOCOL)
            with self._guard:
                self._bytes[seed] = payload  # again, should another thread have made room meanwhile
                self._bytes.move_to_end(seed)
                while len(self._bytes) > self._kept:
                    oldest, _ = self._bytes.popitem(last=False)
                    self._locks.pop(oldest, None)
        return payload


_WORLDS = _Worlds(WORLDS_KEPT)
