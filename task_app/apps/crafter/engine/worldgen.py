"""How a world is made: the materials of 64×64 tiles and the creatures on them, as the package makes them.

The package decides tile by tile, drawing a random number only where a rule asks for one. Here all noise
is computed first, for whole arrays; what remains, a scan over the tiles that draw, takes the same
numbers in the same order. Thresholds and noise sizes are the package's (they stand in its code).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from task_app.apps.crafter.engine.noise import Floats, Ints, Simplex
from task_app.apps.crafter.engine.protocol import AREA, COW, MAX_SEED, SKELETON, ZOMBIE
from task_app.apps.crafter.engine.rng import Random
from task_app.apps.crafter.engine.rules import MATERIAL_ID, WALKABLE

__all__ = ["CENTER", "Land", "generate"]

CENTER = AREA // 2
"""Where the player starts, on both axes."""

_ID = MATERIAL_ID
_X, _Y = (axis.ravel().astype(float) for axis in np.indices((AREA, AREA)))
_DISTANCE = np.sqrt((_X - CENTER) ** 2 + (_Y - CENTER) ** 2)
"""From the player's start. Tiles are numbered x * AREA + y, which is the order in which the package scans them."""

_CHANCES = (("coal", 0.85), ("iron", 0.75), ("diamond", 0.994), ("tree", 0.8))
"""Materials that appear where a random number is above the threshold, asked in this order."""
_OPTIONS = [
    [(_ID[name], threshold) for bit, (name, threshold) in enumerate(_CHANCES) if bits >> bit & 1] for bits in range(16)
]
_COAL, _IRON, _DIAMOND, _TREE = (1 << bit for bit in range(4))


@dataclass(frozen=True, slots=True)
class Land:
    """A new world: materials by tile, and creatures as (kind, tile) in the order in which they were made."""

    materials: bytes
    creatures: list[tuple[int, int]]


def generate(random: Random) -> Land:
    """Make a world, drawing from `random` what the package draws."""
    simplex = Simplex(random.below(MAX_SEED))
    start, water, mountain = _terrain(simplex)
    materials = np.full(AREA * AREA, _ID["grass"], np.uint8)
    tunnels = np.zeros(AREA * AREA, bool)
    chances = np.zeros(AREA * AREA, np.uint8)
    free = ~(start > 0.5)
    rock = free & (mountain > 0.15)
    _carve(simplex, np.flatnonzero(rock), mountain, materials, tunnels, chances)
    _flood(simplex, np.flatnonzero(free & ~rock), water, materials, chances)
    for tile in np.flatnonzero(chances).tolist():
        for material, threshold in _OPTIONS[chances[tile]]:
            if random.random() > threshold:
                materials[tile] = material
                break
    return Land(materials.tobytes(), _creatures(random, materials, tunnels))


Field = tuple[Floats, Floats, float]
"""Where to take noise: x and y of each point, and one level for all."""


def _noise(simplex: Simplex, *fields: Field) -> list[Floats]:
    """The noise of several fields, computed together."""
    x, y = (np.concatenate([field[axis] for field in fields]) for axis in (0, 1))
    sizes = [len(field[0]) for field in fields]
    z = np.repeat([field[2] for field in fields], sizes)
    return np.split(simplex.noise3(x, y, z), np.cumsum(sizes)[:-1])


def _terrain(simplex: Simplex) -> tuple[Floats, Floats, Floats]:
    """Per tile: closeness to the start, water and mountain."""
    near, water_15, water_5, mountain_15, mountain_5 = _noise(
        simplex,
        (_X / 3, _Y / 3, 8.0),
        (_X / 15, _Y / 15, 3.0),
        (_X / 5, _Y / 5, 3.0),
        (_X / 15, _Y / 15, 0.0),
        (_X / 5, _Y / 5, 0.0),
    )
    start = 1 / (1 + np.exp(-((4 - _DISTANCE) + 2 * near)))
    water = (water_15 + 0.15 * water_5) + 0.1
    water -= 2 * start
    mountain = (mountain_15 + 0.3 * mountain_5) / (1 + 0.3)
    mountain -= 4 * start + 0.3 * water
    return start, water, mountain


def _carve(
    simplex: Simplex,
    rock: Ints,
    mountain: Floats,
    materials: NDArray[np.uint8],
    tunnels: NDArray[np.bool_],
    chances: NDArray[np.uint8],
) -> None:
    """Caves, tunnels and lava in the mountains, and where ores may appear."""
    x, y, height = _X[rock], _Y[rock], mountain[rock]
    cave, across, down, coal, iron, lava = _noise(
        simplex,
        (x / 7, y / 7, 6.0),
        (2 * x / 3, y / 5 / 3, 7.0),
        (x / 5 / 3, 2 * y / 3, 7.0),
        (x / 8, y / 8, 1.0),
        (x / 6, y / 6, 2.0),
        (x / 5, y / 5, 6.0),
    )
    is_cave = (cave > 0.15) & (height > 0.3)
    is_tunnel = ~is_cave & ((across > 0.4) | (down > 0.4))
    is_path = is_cave | is_tunnel
    materials[rock] = np.where(
        is_path, _ID["path"], np.where((height > 0.3) & (lava > 0.35), _ID["lava"], _ID["stone"])
    )
    tunnels[rock] = is_tunnel
    chances[rock] = ~is_path * ((coal > 0) * _COAL + (iron > 0.4) * _IRON + (height > 0.18) * _DIAMOND)


def _flood(
    simplex: Simplex, low: Ints, water: Floats, materials: NDArray[np.uint8], chances: NDArray[np.uint8]
) -> None:
    """Water and its beaches below the mountains, and where trees may appear."""
    x, y, depth = _X[low], _Y[low], water[low]
    sand, tree = _noise(simplex, (x / 9, y / 9, 4.0), (x / 7, y / 7, 5.0))
    is_sand = (depth > 0.25) & (depth <= 0.35) & (sand > -0.2)
    is_water = ~is_sand & (depth > 0.3)
    materials[low] = np.select([is_sand, is_water], [_ID["sand"], _ID["water"]], _ID["grass"])
    chances[low] = ~(is_sand | is_water) * (tree > 0) * _TREE


def _creatures(random: Random, materials: NDArray[np.uint8], tunnels: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Cows on grass, zombies anywhere far from the start, skeletons in tunnels."""
    uniform, grass, path = random.random, _ID["grass"], _ID["path"]
    made = []
    walkable = np.flatnonzero(np.isin(materials, list(WALKABLE)))
    for tile, material, distance, tunnel in zip(
        walkable.tolist(),
        materials[walkable].tolist(),
        _DISTANCE[walkable].tolist(),
        tunnels[walkable].tolist(),
        strict=True,
    ):
        if distance > 3 and material == grass and uniform() > 0.985:
            made.append((COW, tile))
        elif distance > 10 and uniform() > 0.993:
            made.append((ZOMBIE, tile))
        elif material == path and tunnel and uniform() > 0.95:
            made.append((SKELETON, tile))
    return made
