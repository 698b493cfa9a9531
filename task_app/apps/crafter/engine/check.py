"""Whether a full state given from outside is one an engine can go on from. Knows limits, no rules of play."""

from __future__ import annotations

from typing import Any

from task_app.apps.crafter.engine.protocol import (
    AREA,
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    LAST_STEP,
    PLANT,
    decode_state,
)  # fmt: skip
from task_app.apps.crafter.engine.rules import ACHIEVEMENTS, ITEM_MAX, ITEMS, MATERIALS
from task_app.core.errors import EnvError

__all__ = ["check_state"]

_DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
_BOUNDS = {
    "x": (0, AREA - 1),
    "y": (0, AREA - 1),
    "sleeping": (0, 1),
    "last_health": (0, ITEM_MAX[ITEMS.index("health")]),
    "hunger2": (0, 50),
    "thirst2": (0, 40),
    "fatigue": (-10, 30),
    "recover2": (-30, 50),
}
"""Least and most of the player's numbers between two steps."""
_COUNT_MAX = 2**31 - 1
_RNG_WORDS = 624


def check_state(data: bytes) -> dict[str, Any]:
    """The decoded state. Raises EnvError naming the first thing that cannot be."""
    state = decode_state(data)
    _within("step", state["step"], 0, LAST_STEP)
    _within("rng_pos", state["rng_pos"], 0, _RNG_WORDS)
    _check_player(state)
    _within("materials", max(state["materials"], default=0), 0, len(MATERIALS))
    places = [(state["player"]["x"], state["player"]["y"])]
    for thing in state["objects"]:
        _check_thing(thing)
        places.append((thing[1], thing[2]))
    if len(set(places)) < len(places):
        raise EnvError("impossible Crafter state: two things stand on one tile")
    _check_chunks(state["chunks"], places)
    return state


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise EnvError(f"impossible Crafter state: {name} is {value}, not within {least} to {most}")


def _check_player(state: dict[str, Any]) -> None:
    player = state["player"]
    for name, (least, most) in _BOUNDS.items():
        _within(name, player[name], least, most)
    if (player["facing_x"], player["facing_y"]) not in _DIRECTIONS:
        raise EnvError("impossible Crafter state: the player faces no direction")
    for name, count, most in zip(ITEMS, state["inventory"], ITEM_MAX, strict=True):
        _within(name, count, 0, most)
    for name, count in zip(ACHIEVEMENTS, state["achievements"], strict=True):
        _within(name, count, 0, _COUNT_MAX)


def _check_thing(thing: tuple[int, ...]) -> None:
    kind, x, y, health, counter, dx, dy = thing
    _within("an object's kind", kind, COW, PLANT)
    _within("an object's x", x, 0, AREA - 1)
    _within("an object's y", y, 0, AREA - 1)
    _within("an object's health", health, 0, _COUNT_MAX)
    _within("an object's counter", counter, 0, _COUNT_MAX)
    if ((dx, dy) in _DIRECTIONS) != (kind == ARROW) or (kind != ARROW and (dx, dy) != (0, 0)):
        raise EnvError("impossible Crafter state: arrows face a direction, and nothing else does")


def _check_chunks(chunks: list[tuple[int, list[int]]], places: list[tuple[int, int]]) -> None:
    """Every chunk once, every thing in the one it stands in."""
    numbers = [number for number, _ in chunks]
    members = [(number, member) for number, inside in chunks for member in inside]
    stands = [(x // CHUNK * CHUNKS + y // CHUNK, index) for index, (x, y) in enumerate(places)]
    known = all(0 <= number < CHUNKS * CHUNKS for number in numbers)
    if not known or len(set(numbers)) < len(numbers) or sorted(members) != sorted(stands):
        raise EnvError("impossible Crafter state: chunks and the things in them do not agree")
