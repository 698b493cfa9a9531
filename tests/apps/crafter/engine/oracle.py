"""The `crafter` package as oracle: its own classes, with chunk members in insertion order patched in.

`OrderedPackage` speaks in the terms of `protocol.Engine`, so that a test can compare canonical states.
A picture is made only when asked for; its draws at night always are, in the package's own expression.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
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
    decode_state,
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
MATERIALS: list[str] = constants.materials  # pyright: ignore[reportAttributeAccessIssue]
AREA, CHUNK_SIZE = (64, 64), (CHUNK, CHUNK)


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

    def __init__(self, *, picture: bool = False, night_draws: str = "stock") -> None:
        self._picture, self._night_draws = picture, night_draws
        world: Any = OrderedWorld(AREA, MATERIALS, CHUNK_SIZE)
        if picture:
            super().__init__(seed=0)
            self._local_view._world = world
        else:
            self._view, self._length, self._reward = (9, 9), 10_000, True
        self._world, self._sem_view = world, lambda: None

    def reset_to(self, seed: int) -> None:
        """The world of a seed; generated once in a test session."""
        self.load(first_state(seed))

    def generate(self, seed: int) -> None:
        """What `Env.reset` does first in an environment of this seed, without the picture of step 0 (daylight)."""
        self._step = 0
        self._world.reset(seed=hash((seed, 1)) % MAX_SEED)
        self._update_time()
        self._player = objects.Player(self._world, (32, 32))
        self._world.add(self._player)
        self._follow()
        worldgen.generate_world(self._world, self._player)

    def _follow(self) -> None:
        """The environment's own records of the player, as they are between two steps."""
        self._last_health = self._player.health
        self._unlocked = {name for name, count in self._player.achievements.items() if count}

    def _obs(self) -> Any:
        if self._picture:
            return super()._obs()
        if self._night_draws == "stock" and self._world.daylight < 0.5:
            self._world.random.uniform(32, 127, NIGHT_PIXELS)
        return None

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
        hunger, thirst, recover = (2 * value for value in (player._hunger, player._thirst, player._recover))
        values = (
            *player.pos, *player.facing, player.sleeping, player._last_health, hunger, thirst, player._fatigue, recover,
        )  # fmt: skip
        assert all(int(value) == value for value in values)
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

    def load(self, state: bytes) -> None:
        """Put the package into a state given as canonical bytes."""
        plain, world = decode_state(state), self._world
        world.reset()
        world.random.set_state(("MT19937", np.array(plain["rng_key"], np.uint32), plain["rng_pos"]))
        world._mat_map[:] = np.frombuffer(plain["materials"], np.uint8).reshape(AREA)
        self._step = plain["step"]
        self._update_time()
        self._player = self._load_player(plain)
        things = [self._player, *(self._load_thing(values) for values in plain["objects"])]
        for thing in things:
            world.add(thing)
        world._chunks.clear()
        for number, members in plain["chunks"]:
            corner = np.array(divmod(number, CHUNKS)) * CHUNK
            inside = world._chunks[world.chunk_key(corner)]
            for member in members:
                inside.add(things[member])
        self._follow()

    def _load_player(self, plain: dict[str, Any]) -> Any:
        fields = plain["player"]
        player = objects.Player(self._world, (fields["x"], fields["y"]))
        player.facing = (fields["facing_x"], fields["facing_y"])
        player.sleeping, player._last_health = bool(fields["sleeping"]), fields["last_health"]
        player._hunger, player._thirst = fields["hunger2"] / 2, fields["thirst2"] / 2
        player._fatigue, player._recover = fields["fatigue"], fields["recover2"] / 2
        player.inventory = dict(zip(player.inventory, plain["inventory"], strict=True))
        player.achievements = dict(zip(player.achievements, plain["achievements"], strict=True))
        return player

    def _load_thing(self, values: tuple[int, ...]) -> Any:
        kind, x, y, health, counter, dx, dy = values
        extra = {ZOMBIE: (self._player,), SKELETON: (self._player,), ARROW: (np.array((dx, dy)),)}.get(kind, ())
        thing = next(cls for cls, number in KINDS.items() if number == kind)(self._world, (x, y), *extra)
        thing.health = health
        if kind in COUNTERS:
            setattr(thing, COUNTERS[kind], counter)
        return thing


def _thing(thing: Any) -> tuple[int, ...]:
    kind = KINDS[type(thing)]
    counter = getattr(thing, COUNTERS[kind]) if kind in COUNTERS else 0
    facing = thing.facing if kind == ARROW else (0, 0)
    return tuple(map(int, (kind, *thing.pos, thing.health, counter, *facing)))


@cache
def first_state(seed: int) -> bytes:
    """The canonical bytes of a new world, made by the package (.9 s)."""
    package = OrderedPackage()
    package.generate(seed)
    return package.canonical_bytes()
