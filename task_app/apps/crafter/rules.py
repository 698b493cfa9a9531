"""Crafter's names and limits, read from the package's own `data.yaml`, so they cannot drift."""

from __future__ import annotations

from task_app.apps.crafter.data import DATA

__all__ = ["ACHIEVEMENTS", "ACTIONS", "INVENTORY", "ITEM_MAX", "MATERIALS", "VIEW", "VITALS", "WALKABLE"]

ACTIONS: tuple[str, ...] = tuple(DATA["actions"])
ACHIEVEMENTS: tuple[str, ...] = tuple(DATA["achievements"])
MATERIALS: tuple[str, ...] = tuple(DATA["materials"])
WALKABLE: frozenset[str] = frozenset(DATA["walkable"])
ITEM_MAX: dict[str, int] = {name: info["max"] for name, info in DATA["items"].items()}

VITALS: tuple[str, ...] = ("health", "food", "drink", "energy")
INVENTORY: tuple[str, ...] = tuple(name for name in ITEM_MAX if name not in VITALS)

VIEW: tuple[int, int] = (9, 7)
"""Width and height in tiles of the map a player sees; the player stands at (4, 3)."""
