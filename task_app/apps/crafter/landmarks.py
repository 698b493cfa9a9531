"""What a player remembers of the views before this one: where things are that are out of sight now.

Made of the views the policy was shown at earlier decisions, nothing else: no look at the world, and nothing that was
only passed between two decisions. A place is remembered as it was last seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from task_app.apps.crafter.view import HALF_HEIGHT, HALF_WIDTH, OFFSETS, CrafterView
from task_app.core.types import PastDecision

__all__ = ["LANDMARKS", "remembered"]

LANDMARKS = frozenset(("water", "tree", "stone", "coal", "iron", "diamond", "table", "furnace"))
"""What is worth going back to, and stays where it is."""
VIEWS_KEPT = 4096

Place = tuple[int, int]
"""Counted from where the episode began."""
Landmark = tuple[int, str, int, int]
"""How many tiles away, what it is, x and y from where the player stands."""


def remembered(view: CrafterView, history: Sequence[PastDecision]) -> list[Landmark]:
    """The nearest known place of each landmark that the view does not show, nearest first."""
    x0, y0 = view.offset
    shown = _landmarks(view)
    later = [view.offset]
    nearest: dict[str, Landmark] = {}
    for past in reversed(history):
        seen: CrafterView = past.before
        if seen.offset in later:
            continue
        for kind, places in _landmarks(seen).items():
            if kind in shown:
                continue
            for x, y in places:
                landmark = (abs(x - x0) + abs(y - y0), kind, x - x0, y - y0)
                if (kind not in nearest or landmark < nearest[kind]) and not _in_sight(x, y, later):
                    nearest[kind] = landmark
        later.append(seen.offset)
    return sorted(nearest.values())


def _in_sight(x: int, y: int, offsets: Iterable[Place]) -> bool:
    """Whether a view from one of the offsets shows the place: what it showed there counts instead."""
    return any(abs(x - x0) <= HALF_WIDTH and abs(y - y0) <= HALF_HEIGHT for x0, y0 in offsets)


def _landmarks(view: CrafterView) -> Mapping[str, list[Place]]:
    """Where a view shows what. Listed once for each view: every later decision asks again."""
    known = _listed.get(id(view))
    if known is not None and known[0] is view:
        return known[1]
    places: dict[str, list[Place]] = {}
    x0, y0 = view.offset
    if not LANDMARKS.isdisjoint(view.materials):
        for (x, y), material in zip(OFFSETS, view.materials, strict=True):
            if material in LANDMARKS:
                places.setdefault(material, []).append((x0 + x, y0 + y))
    _listed[id(view)] = view, places
    if len(_listed) > VIEWS_KEPT:
        _listed.popitem(last=False)  # one step of the interpreter, whichever thread takes it
    return places


_listed: OrderedDict[int, tuple[CrafterView, Mapping[str, list[Place]]]] = OrderedDict()
"""By identity, with the view itself, so that no other view can have its number meanwhile."""
