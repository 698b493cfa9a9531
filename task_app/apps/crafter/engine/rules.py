"""The game's rules as plain tables, read from the `crafter` package's own `data.yaml`, so they cannot drift.

The package itself is not imported (it would pull in image libraries): only its file is found and read.
Materials are numbered as in the package's map: 0 is nothing, then 1, 2, … in the order of the file.
Items, achievements and actions are numbered from 0. Creature numbers stand in the package's code, not
in its data; they are in `reference.py`, beside the rule they belong to.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from task_app.apps.crafter.engine.protocol import LAST_STEP
from task_app.core.errors import EnvError

__all__ = [
    "ACHIEVEMENTS", "ACTIONS", "COLLECT", "ITEMS", "ITEM_INITIAL", "ITEM_MAX", "MAKE", "MATERIALS", "MATERIAL_ID",
    "PLACE", "WALKABLE", "Collect", "Make", "Place", "daylight", "package_folder",
]  # fmt: skip

Amounts = tuple[tuple[int, int], ...]
"""(item, amount) pairs."""


def package_folder() -> Path:
    """Where the installed `crafter` package lies: its data file and textures. Nothing of it is run."""
    spec = find_spec("crafter")
    if spec is None or not spec.submodule_search_locations:
        raise EnvError("the package crafter is not installed: its data.yaml holds the rules")
    return Path(spec.submodule_search_locations[0])


_SECTION = re.compile(r"(\w+):")
_ENTRY = re.compile(r"  - (\w+)")
_FIELD = re.compile(r"  (\w+): (\{.*\})")
_WORD = re.compile(r"[A-Za-z_]\w*")


def read_data(text: str) -> dict[str, Any]:
    """The sections of `data.yaml`: lists of words, and words with one-line `{…}` values. Any other line is an error."""
    data: dict[str, Any] = {}
    section = ""
    for line in filter(str.strip, text.splitlines()):
        if match := _SECTION.fullmatch(line):
            section = match[1]
        elif match := _ENTRY.fullmatch(line):
            data.setdefault(section, []).append(match[1])
        elif match := _FIELD.fullmatch(line):
            # With its words quoted, a one-line YAML value of this file is JSON.
            data.setdefault(section, {})[match[1]] = json.loads(_WORD.sub(r'"\g<0>"', match[2]))
        else:
            raise EnvError(f"crafter's data.yaml has a line that is not understood: {line!r}")
    return data


_DATA = read_data((package_folder() / "data.yaml").read_text())

ACTIONS: tuple[str, ...] = tuple(_DATA["actions"])
MATERIALS: tuple[str, ...] = tuple(_DATA["materials"])
ITEMS: tuple[str, ...] = tuple(_DATA["items"])
ACHIEVEMENTS: tuple[str, ...] = tuple(_DATA["achievements"])
ITEM_MAX: tuple[int, ...] = tuple(item["max"] for item in _DATA["items"].values())
ITEM_INITIAL: tuple[int, ...] = tuple(item["initial"] for item in _DATA["items"].values())
MATERIAL_ID: dict[str, int] = {name: number for number, name in enumerate(MATERIALS, 1)}
WALKABLE: frozenset[int] = frozenset(MATERIAL_ID[name] for name in _DATA["walkable"])


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
    for name, info in _DATA["collect"].items()
}

PLACE: dict[int, Place] = {
    ACTIONS.index(f"place_{name}"): Place(
        uses=_amounts(info["uses"]),
        where=frozenset(_ids(info["where"])),
        material=MATERIAL_ID[name] if info["type"] == "material" else None,
        achievement=ACHIEVEMENTS.index(f"place_{name}"),
    )
    for name, info in _DATA["place"].items()
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
    for name, info in _DATA["make"].items()
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
