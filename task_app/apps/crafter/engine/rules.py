"""The game's rules as plain tables of numbers, made of the `crafter` package's own data (`data.py`).

Materials are numbered as in the package's map: 0 is nothing, then 1, 2, … in the order of the file.
Items, achievements and actions are numbered from 0. Creature numbers stand in the package's code, not
in its data; they are in `reference.py`, beside the rule they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from task_app.apps.crafter.data import DATA
from task_app.apps.crafter.engine.protocol import LAST_STEP

__all__ = [
    "ACHIEVEMENTS", "ACTIONS", "COLLECT", "ITEMS", "ITEM_INITIAL", "ITEM_MAX", "MAKE", "MATERIALS", "MATERIAL_ID",
    "PLACE", "WALKABLE", "Collect", "Make", "Place", "daylight",
]  # fmt: skip

Amounts = tuple[tuple[int, int], ...]
"""(item, amount) pairs."""


ACTIONS: tuple[str, ...] = tuple(DATA["actions"])
MATERIALS: tuple[str, ...] = tuple(DATA["materials"])
ITEMS: tuple[str, ...] = tuple(DATA["items"])
ACHIEVEMENTS: tuple[str, ...] = tuple(DATA["achievements"])
ITEM_MAX: tuple[int, ...] = tuple(item["max"] for item in DATA["items"].values())
ITEM_INITIAL: tuple[int, ...] = tuple(item["initial"] for item in DATA["items"].values())
MATERIAL_ID: dict[str, int] = {name: number for number, name in enumerate(MATERIALS, 1)}
WALKABLE: frozenset[int] = frozenset(MATERIAL_ID[name] for name in DATA["walkable"])


@dataclass(frozen=True, slots=True)
class Collect:
    """What `do` takes from a material: needs `require`, leaves `leaves`, gives `receive` with `probability`."""

    require: Amounts
    receive: Amounts
    leaves: int
    probability: float
    achievements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """What `place_…` puts on a material of `where`: a material, or None for the plant."""

    uses: Amounts
    where: frozenset[int]
    material: int | None
    achievement: int


@dataclass(frozen=True, slots=True)
class Make:
    """What `make_…` gives beside all of `nearby`."""

    uses: Amounts
    nearby: tuple[int, ...]
    item: int
    gives: int
    achievement: int


def _amounts(table: dict[str, int]) -> Amounts:
    return tuple((ITEMS.index(name), amount) for name, amount in table.items())


def _ids(names: list[str]) -> tuple[int, ...]:
    return tuple(MATERIAL_ID[name] for name in names)


COLLECT: dict[int, Collect] = {
    MATERIAL_ID[name]: Collect(
        require=_amounts(info["require"]),
        receive=_amounts(info["receive"]),
        leaves=MATERIAL_ID[info["leaves"]],
        probability=info.get("probability", 1),
        achievements=tuple(ACHIEVEMENTS.index(f"collect_{item}") for item in info["receive"]),
    )
    for name, info in DATA["collect"].items()
}

PLACE: dict[int, Place] = {
    ACTIONS.index(f"place_{name}"): Place(
        uses=_amounts(info["uses"]),
        where=frozenset(_ids(info["where"])),
        material=MATERIAL_ID[name] if info["type"] == "material" else None,
        achievement=ACHIEVEMENTS.index(f"place_{name}"),
    )
    for name, info in DATA["place"].items()
}
"""By action number, as MAKE."""

MAKE: dict[int, Make] = {
    ACTIONS.index(f"make_{name}"): Make(
        uses=_amounts(info["uses"]),
        nearby=_ids(info["nearby"]),
        item=ITEMS.index(name),
        gives=info["gives"],
        achievement=ACHIEVEMENTS.index(f"make_{name}"),
    )
    for name, info in DATA["make"].items()
}


@cache
def daylight() -> tuple[float, ...]:
    """Daylight after each step from 0 to LAST_STEP, by the package's own expression.

    One scalar at a time: NumPy's array functions may round the last bit differently.
    """
    return tuple(_daylight_at(step) for step in range(LAST_STEP + 1))


def _daylight_at(step: int) -> float:
    progress = (step / 300) % 1 + 0.3
    return float(1 - np.abs(np.cos(np.pi * progress)) ** 3)
