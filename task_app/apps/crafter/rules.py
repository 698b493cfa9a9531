"""Crafter's names and limits, read from the package's own `data.yaml`, so they cannot drift."""

from __future__ import annotations

from crafter import constants

__all__ = ["ACHIEVEMENTS", "ACTIONS", "INVENTORY", "ITEM_MAX", "MATERIALS", "VIEW", "VITALS", "WALKABLE"]

ACTIONS: tuple[str, ...] = tuple(constants.actions)  # pyright: ignore[reportAttributeAccessIssue]
ACHIEVEMENTS: tuple[str, ...] = tuple(constants.achievements)  # pyright: ignore[reportAttributeAccessIssue]
MATERIALS: tuple[str, ...] = tuple(constants.materials)  # pyright: ignore[reportAttributeAccessIssue]
WALKABLE: frozenset[str] = frozenset(constants.walkable)  # pyright: ignore[reportAttributeAccessIssue]
ITEM_MAX: dict[str, int] = {
    name: info["max"]
    for name, info in constants.items.items()  # pyright: ignore[reportAttributeAccessIssue]
}

VITALS: tuple[str, ...] = ("health", "food", "drink", "energy")
INVENTORY: tuple[str, ...] = tuple(name for name in ITEM_MAX if name not in VITALS)

VIEW: tuple[int, int] = (9, 7)
"""Width and height in tiles of the map a player sees; the player stands at (4, 3)."""
