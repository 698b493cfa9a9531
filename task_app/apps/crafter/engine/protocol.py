"""What every engine promises: the calls, what a view holds, and the one definition of a full state.

"Ordered Crafter" is the game: the rules of the `crafter` package with chunk members in insertion
order. Engines deal in plain integers; names are positions in the package's lists (`rules.py`).
Two engines are equal when their *canonical bytes* are equal after every step. Plays nothing.

Canonical bytes (all numbers little-endian int32 unless said otherwise), in this order:

    HEAD       FORMAT, step
    PLAYER     x, y, facing x, facing y, sleeping (0 | 1), last_health, hunger*2, thirst*2, fatigue, recover*2
    inventory  16 counts, in the order of the package's `items` (health first)
    achieved   22 counts, in the order of the package's `achievements`
    materials  64*64 uint8, place x*64 + y: 0 nothing, else 1 + index in the package's `materials`
    objects    how many, then of each living one but the player, in the order of the package's object list:
               kind, x, y, health, counter, facing x, facing y
    chunks     how many, then of each in the order it first held an object:
               its number (x//12)*6 + y//12, how many members, then the members in insertion order:
               0 is the player, n is the n-th of the objects above
    RNG        624 uint32 of the Mersenne Twister's key, then its position 0..624

`counter` is a zombie's cooldown, a skeleton's reload, a plant's `grown`, else 0; `facing` is an arrow's,
else 0, 0; an arrow's health is 0. Half units (hunger, thirst, recover) are doubled, hence whole.
Daylight is a function of the step and therefore no part of the state, nor is the `night_draws` option.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from task_app.core.errors import EnvError

__all__ = [
    "AREA", "ARROW", "CHUNK", "CHUNKS", "COW", "FORMAT", "KIND_NAMES", "LAST_STEP", "MAX_SEED", "NIGHT_WORDS", "PLANT",
    "PLAYER", "PLAYER_FIELDS", "RIPE_GROWN", "RIPE_PLANT", "SKELETON", "UPDATE_DISTANCE", "VIEW", "ZOMBIE", "Engine",
    "EngineView", "NightDraws", "StepOutcome", "decode_state", "encode_state", "hash_state", "seal", "unseal",
    "world_seed",
]  # fmt: skip

NightDraws = Literal["stock", "none"]
"""`stock`: every step ending at night (daylight < .5) draws NIGHT_WORDS words; `none`: no such draws."""

FORMAT = 1
AREA = 64
"""Side of the world in tiles."""
CHUNK = 12
CHUNKS = 6
"""Chunks per side; the last ones are 4 tiles wide."""
VIEW = (9, 7)
UPDATE_DISTANCE = 18
"""Objects act while their L1 distance to the player is below this."""
RIPE_GROWN = 300
"""A plant is ripe when `grown` is above this."""
MAX_SEED = 2**31 - 1
LAST_STEP = 10_000
"""No engine steps further: the package's own episode length."""
NIGHT_WORDS = 63 * 49 * 2
"""32-bit words a stock 64×64 picture draws at night: one double for each pixel of its map part."""

PLAYER, COW, ZOMBIE, SKELETON, ARROW, PLANT, RIPE_PLANT = range(7)
"""Kinds of objects. RIPE_PLANT occurs in views only; in a state a ripe plant is a PLANT that has grown."""
KIND_NAMES = ("player", "cow", "zombie", "skeleton", "arrow", "plant", "ripe_plant")

StepOutcome = tuple[float, bool, tuple[int, ...]]
"""(the step's own reward, dead, achievement indexes that rose: ascending, repeated once per unit)."""


class EngineView(NamedTuple):
    """What a player sees, in integers.

    materials    63 bytes, column by column from the top left; 0 beyond the world's edge
    objects      (kind, dx, dy) of each in view but the player, in the order of the object list
    offset       where the player stands relative to the world's centre (32, 32)
    """

    step: int
    materials: bytes
    objects: tuple[tuple[int, int, int], ...]
    facing: tuple[int, int]
    inventory: tuple[int, ...]
    achievements: tuple[int, ...]
    offset: tuple[int, int]
    daylight: float
    sleeping: bool


class Engine(Protocol):
    """One world of ordered Crafter, made by `Class(night_draws)`. Misuse raises EnvError."""

    name: str
    """`reference` or `native`."""
    night_draws: NightDraws

    def reset(self, seed: int) -> None:
        """Make the world of `seed`, 0 ≤ seed < MAX_SEED."""
        ...

    def step(self, action: int) -> StepOutcome:
        """Run one action, 0 ≤ action < 17. Refused before reset, after death and after LAST_STEP."""
        ...

    def step_many(self, actions: Sequence[int]) -> list[StepOutcome]:
        """The same for several actions, stopping after the step in which the player dies."""
        ...

    def snapshot(self) -> bytes:
        """The whole state, sealed (see `seal`): one flat copy in the engine's own layout."""
        ...

    def restore(self, payload: bytes) -> None:
        """Return to a snapshot of an engine of the same name, format and night_draws."""
        ...

    def canonical_bytes(self) -> bytes:
        """The full state as this module's docstring lays it out; equal for equal states of any engine."""
        ...

    def load(self, state: bytes) -> None:
        """Take over a state given as canonical bytes, whichever engine it came from."""
        ...

    def canonical_state(self) -> dict[str, Any]:
        """`decode_state(self.canonical_bytes())`."""
        ...

    def state_hash(self) -> str:
        """`hash_state(self.canonical_bytes())`."""
        ...

    def view(self) -> EngineView: ...


def world_seed(seed: int) -> int:
    """What the package seeds its generator with on the first reset of `Env(seed=seed)`."""
    return hash((seed, 1)) % MAX_SEED


def hash_state(state: bytes) -> str:
    """SHA-256 of the canonical bytes, in hexadecimal."""
    return hashlib.sha256(state).hexdigest()


# Canonical bytes from and to plain values

_HEAD = struct.Struct("<2i")
_PLAYER = struct.Struct("<10i")
PLAYER_FIELDS = (
    "x", "y", "facing_x", "facing_y", "sleeping", "last_health", "hunger2", "thirst2", "fatigue", "recover2",
)  # fmt: skip
_ITEMS, _ACHIEVEMENTS = 16, 22
_COUNTS = struct.Struct(f"<{_ITEMS + _ACHIEVEMENTS}i")
_OBJECT_FIELDS = 7
_KEY = 624


def encode_state(state: dict[str, Any]) -> bytes:
    """The canonical bytes of a state as `decode_state` gives it. The inverse of `decode_state`."""
    objects, chunks = state["objects"], state["chunks"]
    words: list[int] = [len(objects)]
    for thing in objects:
        words.extend(thing)
    words.append(len(chunks))
    for number, members in chunks:
        words += (number, len(members), *members)
    return b"".join(
        (
            _HEAD.pack(FORMAT, state["step"]),
            _PLAYER.pack(*state["player"].values()),
            _COUNTS.pack(*state["inventory"], *state["achievements"]),
            bytes(state["materials"]),
            struct.pack(f"<{len(words)}i", *words),
            np.array(state["rng_key"], "<u4").tobytes(),
            struct.pack("<i", state["rng_pos"]),
        )
    )


def decode_state(data: bytes) -> dict[str, Any]:
    """Plain values of canonical bytes: step, player (by field), inventory, achievements, materials (bytes),
    objects (7-tuples), chunks ((number, members) pairs), rng_key, rng_pos. Raises EnvError if malformed."""
    try:
        return _decode(data)
    except (struct.error, ValueError, IndexError) as error:
        raise EnvError(f"not a canonical Crafter state: {error}") from error


def _decode(data: bytes) -> dict[str, Any]:
    form, step = _HEAD.unpack_from(data)
    if form != FORMAT:
        raise EnvError(f"state of format {form} cannot be read, only format {FORMAT}")
    at = _HEAD.size
    player = dict(zip(PLAYER_FIELDS, _PLAYER.unpack_from(data, at), strict=True))
    at += _PLAYER.size
    counts = _COUNTS.unpack_from(data, at)
    at += _COUNTS.size
    materials = data[at : at + AREA * AREA]
    tail = np.frombuffer(data, "<i4", offset=at + AREA * AREA).tolist()
    objects, rest = _objects_of(tail)
    chunks, rest = _chunks_of(tail, rest)
    if len(tail) - rest != _KEY + 1:
        raise ValueError("wrong length")
    return {
        "step": step,
        "player": player,
        "inventory": counts[:_ITEMS],
        "achievements": counts[_ITEMS:],
        "materials": materials,
        "objects": objects,
        "chunks": chunks,
        "rng_key": tuple(np.frombuffer(data, "<u4", _KEY, len(data) - 4 * (_KEY + 1)).tolist()),
        "rng_pos": tail[-1],
    }


def _objects_of(words: list[int]) -> tuple[list[tuple[int, ...]], int]:
    end = 1 + words[0] * _OBJECT_FIELDS
    if not 1 <= end < len(words):
        raise ValueError("wrong number of objects")
    return [tuple(words[at : at + _OBJECT_FIELDS]) for at in range(1, end, _OBJECT_FIELDS)], end


def _chunks_of(words: list[int], at: int) -> tuple[list[tuple[int, list[int]]], int]:
    count, at = words[at], at + 1
    if not 0 <= count <= CHUNKS * CHUNKS:
        raise ValueError("wrong number of chunks")
    chunks = []
    for _ in range(count):
        number, members = words[at], words[at + 1]
        if not 0 <= members <= len(words) - at:
            raise ValueError("wrong number of chunk members")
        chunks.append((number, words[at + 2 : at + 2 + members]))
        at += 2 + members
    return chunks, at


# Snapshots

_SEAL = struct.Struct("<8sHBBI")
_MAGIC = b"ORDCRAFT"
_ENGINES = {"reference": 1, "native": 2}
_NIGHTS: dict[str, int] = {"stock": 0, "none": 1}


def seal(engine: str, night_draws: NightDraws, body: bytes) -> bytes:
    """A snapshot: 16 bytes (magic, format, engine, night_draws, length of the body), then the engine's own body."""
    return _SEAL.pack(_MAGIC, FORMAT, _ENGINES[engine], _NIGHTS[night_draws], len(body)) + body


def unseal(engine: str, night_draws: NightDraws, payload: bytes) -> bytes:
    """The body of a snapshot. Raises EnvError naming what differs: magic, format, engine, night_draws, length."""
    if len(payload) < _SEAL.size or payload[: len(_MAGIC)] != _MAGIC:
        raise EnvError("not a snapshot of a Crafter engine")
    _, form, made_by, night, length = _SEAL.unpack_from(payload)
    if form != FORMAT:
        raise EnvError(f"snapshot of format {form} cannot be restored, only format {FORMAT}")
    if made_by != _ENGINES[engine]:
        raise EnvError(f"snapshot of the {_name(_ENGINES, made_by)} engine cannot be restored by the {engine} engine")
    if night != _NIGHTS[night_draws]:
        raise EnvError(
            f"snapshot taken with night_draws={_name(_NIGHTS, night)!r} cannot be restored "
            f"with night_draws={night_draws!r}: the games differ"
        )
    if length != len(payload) - _SEAL.size:
        raise EnvError(f"damaged snapshot: {len(payload) - _SEAL.size} bytes where {length} were written")
    return payload[_SEAL.size :]


def _name(table: dict[str, int], code: int) -> str:
    return next((name for name, number in table.items() if number == code), f"unknown ({code})")
