"""What a player sees at one moment: the 9×7 map around it, the status bar, and its own counting.

Coordinates are relative to the player, x to the right and y down, in tiles. Holds data; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from task_app.apps.crafter.rules import VIEW

__all__ = ["OFFSETS", "CrafterView", "SeenObject"]

HALF_WIDTH, HALF_HEIGHT = VIEW[0] // 2, VIEW[1] // 2

OFFSETS: tuple[tuple[int, int], ...] = tuple(
    (x, y) for x in range(-HALF_WIDTH, HALF_WIDTH + 1) for y in range(-HALF_HEIGHT, HALF_HEIGHT + 1)
)
"""Where each of `CrafterView.materials` is."""


@dataclass(frozen=True, slots=True)
class SeenObject:
    """A creature, arrow or plant in view. `kind`: cow, zombie, skeleton, arrow, plant, ripe_plant."""

    kind: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class CrafterView:
    """One observation. Everything here is on the screen of a human player.

    materials   63 names, column by column from the top left; None beyond the world's edge
    inventory   all 16 items, vitals included, by name
    achievements  how often each was achieved so far
    offset      where the player stands relative to where it started (a player can count its moves)
    daylight    0 (darkest) to 1
    """

    step: int
    materials: tuple[str | None, ...]
    objects: tuple[SeenObject, ...]
    facing: tuple[int, int]
    inventory: Mapping[str, int]
    achievements: Mapping[str, int]
    offset: tuple[int, int]
    daylight: float
    sleeping: bool

    def material(self, x: int, y: int) -> str | None:
        """The material at (x, y), |x| ≤ 4 and |y| ≤ 3; None beyond the world's edge."""
        return self.materials[(x + HALF_WIDTH) * VIEW[1] + y + HALF_HEIGHT]

    def object_at(self, x: int, y: int) -> str | None:
        """The kind of object at (x, y), or None."""
        for seen in self.objects:
            if seen.x == x and seen.y == y:
                return seen.kind
        return None

    def thing(self, x: int, y: int) -> str:
        """What one would say is at (x, y): the object there, else the material, else `edge`."""
        return self.object_at(x, y) or self.material(x, y) or "edge"

    def tiles(self) -> Iterator[tuple[int, int, str | None]]:
        """Every tile as (x, y, material), column by column."""
        for (x, y), material in zip(OFFSETS, self.materials, strict=True):
            yield x, y, material
