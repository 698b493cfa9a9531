"""The `crafter` package as oracle: its own classes, with chunk members in insertion order patched in.

`OrderedPackage` speaks in the terms of `protocol.Engine`, so that a test can compare canonical states.
A picture is made only when asked for; its draws at night always are, in the package's own expression.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from crafter import constants, engine, objects, worldgen
from crafter.env import Env

from task_app.apps.crafter.engine.protocol import (
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    MAX_SEED,
    PLANT,
    PLAYER_FIELDS,
    SKELETON,
    ZOMBIE,
    StepOutcome,
    encode_state,
)  # fmt: skip

KINDS = {
    objects.Cow: COW,
    objects.Zombie: ZOMBIE,
    objects.Skeleton: SKELETON,
    objects.Arrow: ARROW,
    objects.Plant: PLANT,
}
COUNTERS = {ZOMBIE: "cooldown", SKELETON: "reload", PLANT: "grown"}
NIGHT_PIXELS = (63, 49)


class OrderedSet(dict[Any, None]):
    """The set methods the package's world uses, in insertion order."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class OrderedWorld(engine.World):
    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._chunks = defaultdict(OrderedSet)


class OrderedPackage(Env):
    """One game of the package. `picture`: render every step, as stock does; else only take the night's draws."""

    def __init__(self, seed: int, *, picture: bool = False, night_draws: str = "stock") -> None:
        self._picture, self._night_draws = picture, night_draws
        if picture:
            super().__init__(seed=seed)
        ordered = OrderedWorld((64, 64), constants.materials, (12, 12))  # pyright: ignore[reportAttributeAccessIssue]
        if picture:
            self._local_view._world = self._sem_view._world = ordered
        self._world: Any = ordered
        self._view, self._area, self._length, self._reward = (9, 9), (64, 64), 10_000, True
        self._seed, self._episode = seed, 0
        self._sem_view = lambda: None
        self.reset()

    def reset(self) -> Any:
        if self._picture:
            return super().reset()
        # As the package does, without the picture at step 0 (daylight: it draws nothing).
        self._episode, self._step = 1, 0
        self._world.reset(seed=hash((self._seed, self._episode)) % MAX_SEED)
        self._update_time()
        self._player = objects.Player(self._world, (32, 32))
        self._last_health, self._unlocked = self._player.health, set()
        self._world.add(self._player)
        worldgen.generate_world(self._world, self._player)
        return None

    def _obs(self) -> Any:
        if self._picture:
            return super()._obs()
        if self._night_draws == "stock" and self._world.daylight < 0.5:
            self._world.random.uniform(32, 127, NIGHT_PIXELS)
        return None

    @property
    def player(self) -> Any:
        return self._player

    @property
    def world(self) -> Any:
        return self._world

    def play(self, action: int) -> StepOutcome:
        """One step in the terms of `protocol.Engine.step`."""
        before = dict(self._player.achievements)
        _, reward, _, info = self.step(action)
        rises = [count - before[name] for name, count in self._player.achievements.items()]
        events = tuple(index for index, rise in enumerate(rises) for _ in range(rise))
        return float(reward), info["discount"] == 0, events

    def canonical_bytes(self) -> bytes:
        return encode_state(self.canonical_state())

    def canonical_state(self) -> dict[str, Any]:
        world, player = self._world, self._player
        things = world.objects
        number = {id(thing): index for index, thing in enumerate(things)}
        _, key, position, *_ = world.random.get_state()
        halves = [int(2 * value) for value in (player._hunger, player._thirst, player._recover)]
        values = (
            *player.pos, *player.facing, player.sleeping, player._last_health,
            halves[0], halves[1], player._fatigue, halves[2],
        )  # fmt: skip
        return {
            "step": self._step,
            "player": dict(zip(PLAYER_FIELDS, map(int, values), strict=True)),
            "inventory": tuple(player.inventory.values()),
            "achievements": tuple(player.achievements.values()),
            "materials": world._mat_map.tobytes(),
            "objects": [_thing(thing) for thing in things[1:]],
            "chunks": [
                (int(x // CHUNK * CHUNKS + y // CHUNK), [number[id(member)] for member in members])
                for (x, _, y, _), members in world._chunks.items()
            ],
            "rng_key": tuple(key.tolist()),
            "rng_pos": int(position),
        }


def _thing(thing: Any) -> tuple[int, ...]:
    kind = KINDS[type(thing)]
    counter = getattr(thing, COUNTERS[kind]) if kind in COUNTERS else 0
    facing = thing.facing if kind == ARROW else (0, 0)
    return tuple(map(int, (kind, *thing.pos, thing.health, counter, *facing)))


def same_random(oracle: OrderedPackage, key: np.ndarray, position: int) -> bool:
    """Whether the package's generator is in this state."""
    _, own, place, *_ = oracle.world.random.get_state()
    return bool((own == key).all()) and place == position
