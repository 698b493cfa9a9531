"""The state of one game: tiles, things on them, chunks, the player, and the random numbers. No rules.

The map has a margin wider than any look across the edge, so nothing asks whether a tile exists:
beyond the edge there is material 0, where nothing can stand. A tile's number is `tile(x, y)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from task_app.apps.crafter.engine.check import check_state
from task_app.apps.crafter.engine.protocol import (
    AREA,
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    PLANT,
    PLAYER,
    PLAYER_FIELDS,
    RIPE_PLANT,
    SKELETON,
    ZOMBIE,
    encode_state,
)  # fmt: skip
from task_app.apps.crafter.engine.rng import Random
from task_app.apps.crafter.engine.rules import ACHIEVEMENTS, ITEM_INITIAL, ITEMS, MATERIAL_ID, MATERIALS, WALKABLE

__all__ = ["HEALTH", "STRIDE", "Thing", "World", "tile"]

MARGIN = 4
STRIDE = AREA + 2 * MARGIN
HEALTH = ITEMS.index("health")


def tile(x: int, y: int) -> int:
    """The number of the tile at (x, y); its neighbours are STRIDE (x) and 1 (y) apart."""
    return (x + MARGIN) * STRIDE + y + MARGIN


def _chunk_number(x: Any, y: Any) -> Any:
    """Of a tile, or of arrays of them."""
    return x // CHUNK * CHUNKS + y // CHUNK


_CHUNK_AT = np.fromfunction(_chunk_number, (AREA, AREA), dtype=np.int64)
CHUNK_OF: list[int] = np.pad(_CHUNK_AT, MARGIN).ravel().tolist()
"""The number of the chunk a tile belongs to."""


def _standable(*extra: str) -> bytes:
    """By material: 1 where a thing can stand."""
    allowed = WALKABLE | {MATERIAL_ID[name] for name in extra}
    return bytes(material in allowed for material in range(len(MATERIALS) + 1))


STANDABLE = {
    PLAYER: _standable("lava"),
    COW: _standable(),
    ZOMBIE: _standable(),
    SKELETON: _standable(),
    ARROW: _standable("water", "lava"),
    PLANT: _standable(),
}


class Thing:
    """The player, a creature, an arrow or a plant. The player's health is in its inventory instead.

    counter   a zombie's cooldown, a skeleton's reload, a plant's growth
    dx, dy    where an arrow flies
    serial    rises in the order in which things were made
    """

    __slots__ = ("counter", "dx", "dy", "health", "kind", "removed", "serial", "standable", "tile", "x", "y")

    def __init__(self, kind: int, x: int, y: int, health: int = 0, counter: int = 0, dx: int = 0, dy: int = 0) -> None:
        self.kind, self.x, self.y, self.health, self.counter, self.dx, self.dy = kind, x, y, health, counter, dx, dy
        self.tile = tile(x, y)
        self.standable = STANDABLE[kind]
        self.removed = False
        self.serial = 0


class Chunk:
    """12×12 tiles: who is there, in the order of arrival, how many of each kind, and tiles of each material."""

    __slots__ = ("kinds", "materials", "members", "x", "y")

    def __init__(self, number: int) -> None:
        column, row = divmod(number, CHUNKS)
        self.x, self.y = column * CHUNK, row * CHUNK
        self.members: dict[Thing, None] = {}
        self.kinds = [0] * RIPE_PLANT
        self.materials: list[int] = []

    def columns(self) -> range:
        """The x of its columns; those at the world's edge are narrower."""
        return range(self.x, min(self.x + CHUNK, AREA))

    def rows(self) -> range:
        """The y of its rows."""
        return range(self.y, min(self.y + CHUNK, AREA))


class World:
    """Everything that changes in a game. `things[0]` is the player; removed things are gone from the list."""

    def __init__(self) -> None:
        self.random = Random()
        self.steps = 0
        self.materials = bytearray()
        self.things: list[Thing] = []

    def begin(self, random: Random, materials: bytes, x: int, y: int) -> None:
        """An empty world of these materials (by x * AREA + y) with the player in perfect health at (x, y)."""
        self.random = random
        self.steps = 0
        self.facing = (0, 1)
        self.inventory = list(ITEM_INITIAL)
        self.achievements = [0] * len(ACHIEVEMENTS)
        self.sleeping = False
        self.last_health = self.inventory[HEALTH]
        self.hunger2 = self.thirst2 = self.fatigue = self.recover2 = 0
        self._lay(materials)
        self.player = Thing(PLAYER, x, y)
        self.add(self.player)

    def _lay(self, materials: bytes) -> None:
        """Put the materials on the map, and nothing else; no chunk is known yet."""
        self.chunks = [Chunk(number) for number in range(CHUNKS * CHUNKS)]
        self.known_chunks: list[Chunk] = []
        self.at: list[Thing | None] = [None] * (STRIDE * STRIDE)
        self.things = []
        self._made = 0
        kinds = len(MATERIALS) + 1
        tiles = np.frombuffer(materials, np.uint8).reshape(AREA, AREA)
        counts = np.bincount((_CHUNK_AT * kinds + tiles).ravel(), minlength=CHUNKS * CHUNKS * kinds)
        for chunk, row in zip(self.chunks, counts.reshape(-1, kinds).tolist(), strict=True):
            chunk.materials = row
        framed = np.zeros((STRIDE, STRIDE), np.uint8)
        framed[MARGIN:-MARGIN, MARGIN:-MARGIN] = tiles
        self.materials = bytearray(framed)

    def add(self, thing: Thing) -> None:
        """Put a new thing on its tile, which must be empty, last in the order of all and of its chunk."""
        self._made += 1
        thing.serial = self._made
        self.things.append(thing)
        self.at[thing.tile] = thing
        self._enter(thing)

    def _enter(self, thing: Thing) -> None:
        chunk = self.chunks[CHUNK_OF[thing.tile]]
        if not chunk.members and chunk not in self.known_chunks:
            self.known_chunks.append(chunk)
        chunk.members[thing] = None
        chunk.kinds[thing.kind] += 1

    def _leave(self, thing: Thing) -> None:
        chunk = self.chunks[CHUNK_OF[thing.tile]]
        del chunk.members[thing]
        chunk.kinds[thing.kind] -= 1

    def remove(self, thing: Thing) -> None:
        """Take a thing out of the world. It may go on acting for the rest of its update."""
        self.things.remove(thing)
        self.at[thing.tile] = None
        self._leave(thing)
        thing.removed = True

    def move(self, thing: Thing, dx: int, dy: int) -> bool:
        """Move a thing if the tile there is empty and it can stand on it; whether it could."""
        old = thing.tile
        new = old + dx * STRIDE + dy
        if self.at[new] is not None or not thing.standable[self.materials[new]]:
            return False
        if thing.removed:
            return True
        self.at[old] = None
        self.at[new] = thing
        if CHUNK_OF[old] != CHUNK_OF[new]:
            self._leave(thing)
            thing.tile = new
            self._enter(thing)
        thing.tile = new
        thing.x += dx
        thing.y += dy
        return True

    def set_material(self, at: int, material: int) -> None:
        """Change a tile's material and its chunk's count."""
        counts = self.chunks[CHUNK_OF[at]].materials
        counts[self.materials[at]] -= 1
        counts[material] += 1
        self.materials[at] = material

    # The whole state, to and from plain values

    def canonical_state(self) -> dict[str, Any]:
        """The state as `protocol.decode_state` lays it out."""
        player, key_and_position = self.player, self.random.words()
        number = {thing: index for index, thing in enumerate(self.things)}
        values = (
            player.x, player.y, *self.facing, int(self.sleeping), self.last_health,
            self.hunger2, self.thirst2, self.fatigue, self.recover2,
        )  # fmt: skip
        return {
            "step": self.steps,
            "player": dict(zip(PLAYER_FIELDS, values, strict=True)),
            "inventory": tuple(self.inventory),
            "achievements": tuple(self.achievements),
            "materials": _inner(self.materials),
            "objects": [(t.kind, t.x, t.y, t.health, t.counter, t.dx, t.dy) for t in self.things[1:]],
            "chunks": [(_chunk_number(c.x, c.y), [number[thing] for thing in c.members]) for c in self.known_chunks],
            "rng_key": key_and_position[0],
            "rng_pos": key_and_position[1],
        }

    def canonical_bytes(self) -> bytes:
        """The full state; see `protocol`."""
        return encode_state(self.canonical_state())

    def load(self, state: bytes) -> None:
        """Take over a state given as canonical bytes. Raises EnvError if they are not those of a possible state."""
        self.assume(check_state(state))

    def assume(self, state: dict[str, Any]) -> None:
        """Take over a state in plain values."""
        self.random.set_words(state["rng_key"], state["rng_pos"])
        self.steps = state["step"]
        self.inventory, self.achievements = list(state["inventory"]), list(state["achievements"])
        player = state["player"]
        self.facing = (player["facing_x"], player["facing_y"])
        self.sleeping = bool(player["sleeping"])
        self.last_health, self.fatigue = player["last_health"], player["fatigue"]
        self.hunger2, self.thirst2, self.recover2 = player["hunger2"], player["thirst2"], player["recover2"]
        self._lay(state["materials"])
        self.player = Thing(PLAYER, player["x"], player["y"])
        self.things = [self.player, *(Thing(*values) for values in state["objects"])]
        self._made = len(self.things)
        for serial, thing in enumerate(self.things, 1):
            thing.serial = serial
            self.at[thing.tile] = thing
        for number, members in state["chunks"]:
            chunk = self.chunks[number]
            self.known_chunks.append(chunk)
            for member in members:
                thing = self.things[member]
                chunk.members[thing] = None
                chunk.kinds[thing.kind] += 1


def _inner(materials: bytearray) -> bytes:
    """The map without its margin, by x * AREA + y."""
    return np.frombuffer(materials, np.uint8).reshape(STRIDE, STRIDE)[MARGIN:-MARGIN, MARGIN:-MARGIN].tobytes()
