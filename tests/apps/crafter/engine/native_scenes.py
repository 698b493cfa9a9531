"""Busy moments for comparisons: a canonical state of any game, rearranged so that rare rules fire.

`shake` grants and takes items, lays materials and stands creatures around the player, moves it to a border, makes
it tired or hungry, ripens plants. What it gives can be loaded into any engine and into the package.
"""

from __future__ import annotations

import random
from typing import Any

from task_app.apps.crafter.engine.protocol import (
    AREA,
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    PLANT,
    SKELETON,
    ZOMBIE,
    decode_state,
    encode_state,
)  # fmt: skip

WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))
HEALTHS = {COW: 3, ZOMBIE: 5, SKELETON: 3, ARROW: 0, PLANT: 1}


def shake(state: bytes, draw: random.Random) -> bytes:
    """The state with a few things rearranged."""
    values = decode_state(state)
    values["inventory"] = tuple(
        draw.randint(1, 9) if item < 4 else draw.choice((0, 1, 5, 9)) for item in range(len(values["inventory"]))
    )
    player = values["player"]
    player["last_health"] = values["inventory"][0]
    if draw.random() < 0.3:
        player["fatigue"] = draw.randint(-10, 30)
        player["hunger2"], player["thirst2"] = draw.randint(0, 50), draw.randint(0, 40)
        player["recover2"] = draw.randint(-30, 50)
    if draw.random() < 0.2:
        player["sleeping"] = 1
    if draw.random() < 0.2:
        _move_player(values, draw)
    if draw.random() < 0.3 or values["step"] > 9_950:
        values["step"] = draw.choice((5, 145, 175, 265, 560, 9_800))
    _lay(values, draw)
    _stand(values, draw)
    return encode_state(values)


def _taken(values: dict[str, Any]) -> set[tuple[int, int]]:
    return {(thing[1], thing[2]) for thing in values["objects"]} | {(values["player"]["x"], values["player"]["y"])}


def _around(values: dict[str, Any], reach: int) -> list[tuple[int, int]]:
    x0, y0 = values["player"]["x"], values["player"]["y"]
    near = range(-reach, reach + 1)
    return [(x0 + dx, y0 + dy) for dx in near for dy in near if 0 <= x0 + dx < AREA and 0 <= y0 + dy < AREA]


def _chunk(x: int, y: int) -> int:
    return x // CHUNK * CHUNKS + y // CHUNK


def _rejoin(values: dict[str, Any], number: int, x: int, y: int) -> None:
    """Make object `number` the newest member of the chunk it now stands in."""
    chunks = [(chunk, [member for member in members if member != number]) for chunk, members in values["chunks"]]
    if _chunk(x, y) not in dict(chunks):
        chunks.append((_chunk(x, y), []))
    dict(chunks)[_chunk(x, y)].append(number)
    values["chunks"] = chunks


def _move_player(values: dict[str, Any], draw: random.Random) -> None:
    edge = (0, 1, AREA - 2, AREA - 1, draw.randrange(AREA))
    x, y = draw.choice(edge), draw.choice(edge)
    if (x, y) in _taken(values):
        return
    values["player"].update(x=x, y=y)
    _rejoin(values, 0, x, y)


def _lay(values: dict[str, Any], draw: random.Random) -> None:
    materials = bytearray(values["materials"])
    for x, y in _around(values, 2):
        if draw.random() < 0.25:
            materials[x * AREA + y] = draw.choice((*range(1, 13), 11, 12, 11, 12))  # more tables and furnaces
    values["materials"] = bytes(materials)


def _stand(values: dict[str, Any], draw: random.Random) -> None:
    free = [place for place in _around(values, 4) if place not in _taken(values)]
    for x, y in draw.sample(free, min(len(free), draw.randint(0, 4))):
        kind = draw.choice((COW, ZOMBIE, SKELETON, ARROW, PLANT))
        counter = {PLANT: draw.choice((0, 299, 300, 301)), ZOMBIE: draw.randint(0, 5)}.get(kind, 0)
        facing = draw.choice(WAYS) if kind == ARROW else (0, 0)
        values["objects"].append((kind, x, y, draw.randint(min(1, HEALTHS[kind]), HEALTHS[kind]), counter, *facing))
        _rejoin(values, len(values["objects"]), x, y)
