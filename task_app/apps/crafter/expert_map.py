"""What the expert remembers of its views, what it expects its own actions to do, and the ways through it.

`Memory` holds the map by offset from the start, the creatures in view and the player's own state;
`imagine` changes it as an action is expected to. `Ways` are shortest paths from where the player stands.
Nothing here looks at the world itself, draws random numbers, or wants anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from task_app.apps.crafter.data import DATA
from task_app.apps.crafter.rules import ITEM_MAX, MATERIALS, WALKABLE
from task_app.apps.crafter.view import HALF_HEIGHT, HALF_WIDTH, CrafterView

__all__ = ["COLLECT", "MAKE", "MOVES", "PLACE", "Memory", "Point", "Reach", "Ways", "add", "apart"]

Point = tuple[int, int]

COLLECT: Mapping[str, Any] = DATA["collect"]
PLACE: Mapping[str, Any] = DATA["place"]
MAKE: Mapping[str, Any] = DATA["make"]

_EDGE = "edge"
_FAR = 1 << 30
_BENCHES = ("table", "furnace")
MOVES: Mapping[Point, str] = {(-1, 0): "move_left", (1, 0): "move_right", (0, -1): "move_up", (0, 1): "move_down"}
_STEPS: Mapping[str, Point] = {name: step for step, name in MOVES.items()}
_AROUND = tuple((x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0))
_HEALTH: Mapping[str, int] = {"cow": 3, "zombie": 5, "skeleton": 3}
_DAMAGE: Mapping[str, int] = {"iron_sword": 5, "stone_sword": 3, "wood_sword": 2}
_PLANTS = ("plant", "ripe_plant")
_COW_FOOD = 6
_ENTRY_STEPS = (1, 2, 4)
"""To enter a tile by how many actions clear it; water, never walked on, has to be turned to as well."""
_REST_STEPS = 11  # steps asleep that give one energy; falling asleep takes one more


def add(a: Point, b: Point) -> Point:
    """Where a step or offset `b` leads from `a`."""
    return (a[0] + b[0], a[1] + b[1])


def apart(a: Point, b: Point) -> int:
    """Steps between two places on open ground."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


class Memory:
    """Everything the expert believes. `see` corrects it from a view, `imagine` runs ahead of the views."""

    def __init__(self) -> None:
        self.tiles: dict[Point, str] = {}
        self.objects: dict[Point, str] = {}
        self.benches: dict[Point, str] = {}
        self.pos: Point = (0, 0)
        self.facing: Point = (0, 1)
        self.inventory: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.sleeping = False
        self.rest_left = 0
        self._soon_seen: set[Point] = set()
        self._maybe: list[Point] = [(0, 0)]
        self._hits: dict[Point, int] = {}

    def see(self, view: CrafterView) -> None:
        """Take over what a view shows; creatures out of view are forgotten, plants stay."""
        ox, oy = self.pos = view.offset
        self.facing = view.facing
        self.inventory = dict(view.inventory)
        self.done = dict(view.achievements)
        self.sleeping = view.sleeping and self.inventory["energy"] < ITEM_MAX["energy"]
        self.rest_left = max(self.rest_left, 1) if self.sleeping else 0
        self._soon_seen, self._maybe, self._hits = set(), [self.pos], {}
        for x, y, material in view.tiles():
            self._set((ox + x, oy + y), material or _EDGE)
        self.objects = {
            place: kind
            for place, kind in self.objects.items()
            if kind in _PLANTS and (abs(place[0] - ox) > HALF_WIDTH or abs(place[1] - oy) > HALF_HEIGHT)
        }
        self.objects.update({(ox + seen.x, oy + seen.y): seen.kind for seen in view.objects})

    def _set(self, place: Point, material: str) -> None:
        self.tiles[place] = material
        if material in _BENCHES:
            self.benches[place] = material
        elif place in self.benches:  # an arrow can destroy one
            del self.benches[place]

    def kind(self, place: Point) -> str | None:
        """The object at a place, else its material, else None where nothing was seen yet."""
        return self.objects.get(place) or self.tiles.get(place)

    def free(self, place: Point) -> bool:
        """Whether one can walk there."""
        return self.tiles.get(place) in WALKABLE and place not in self.objects

    @property
    def ahead(self) -> Point:
        """The tile that do and place act on."""
        return add(self.pos, self.facing)

    def hits(self, kind: str) -> int:
        """How many blows a creature takes with the best sword owned."""
        damage = next((power for sword, power in _DAMAGE.items() if self.inventory[sword]), 1)
        return -(-_HEALTH[kind] // damage)

    def can_collect(self, material: str) -> bool:
        """Whether the tools to take a material are owned."""
        rule = COLLECT.get(material)
        return rule is not None and self.has(rule["require"])

    def has(self, items: Mapping[str, int]) -> bool:
        """Whether the inventory holds at least these."""
        return all(self.inventory[name] >= count for name, count in items.items())

    def clearing(self, material: str) -> tuple[str, ...] | None:
        """The actions that make a faced tile walkable: none, dig, or bridge; None if it cannot be done."""
        if material in WALKABLE:
            return ()
        if material == "water":  # not lava: turning towards it would be walking into it
            return ("place_stone", "do") if self.inventory["stone"] and self.can_collect("stone") else None
        return ("do",) if self.can_collect(material) else None

    def new_in_sight(self, place: Point) -> int:
        """A sample of how much unseen land comes into view at a place (0 to 8)."""
        x0, y0 = place
        spots = [(x0 + HALF_WIDTH * x, y0 + HALF_HEIGHT * y) for x, y in _AROUND]
        return sum(spot not in self.tiles and spot not in self._soon_seen for spot in spots)

    def may_be_deadly(self, action: str) -> bool:
        """Whether a move could end in lava or the unknown, given that any earlier move may have been blocked."""
        step = _STEPS.get(action)
        return step is not None and any(self.tiles.get(add(p, step), "lava") == "lava" for p in self._maybe)

    def imagine(self, action: str) -> None:
        """Change everything as the action is expected to: creatures stand still, no luck with saplings."""
        if action in _STEPS:
            self._imagine_move(_STEPS[action])
        elif action == "do":
            self._imagine_do()
        elif action == "sleep":
            self._imagine_sleep()
        elif action.startswith("place_"):
            self._imagine_place(action.removeprefix("place_"))
        elif action.startswith("make_"):
            self._imagine_make(action.removeprefix("make_"))

    def _imagine_move(self, step: Point) -> None:
        moved = [add(p, step) for p in self._maybe if self.tiles.get(add(p, step)) in WALKABLE]
        self._maybe = list(dict.fromkeys(self._maybe + moved))
        self.facing = step
        if self.free(self.ahead):
            self.pos = x0, y0 = self.ahead
            for x in range(x0 - HALF_WIDTH, x0 + HALF_WIDTH + 1):
                self._soon_seen.update((x, y) for y in range(y0 - HALF_HEIGHT, y0 + HALF_HEIGHT + 1))

    def _imagine_do(self) -> None:
        kind = self.kind(self.ahead)
        if kind is None or kind == "grass":
            return
        if kind in _HEALTH:
            self._imagine_blow(kind)
        elif kind == "ripe_plant":
            self.objects[self.ahead] = "plant"
            self._achieve("eat_plant")
        elif self.can_collect(kind):
            self._set(self.ahead, COLLECT[kind]["leaves"])
            for name, count in COLLECT[kind]["receive"].items():
                self._receive(name, count)
                self._achieve(f"collect_{name}")

    def _imagine_blow(self, kind: str) -> None:
        place = self.ahead
        self._hits[place] = self._hits.get(place, 0) + 1
        if self._hits[place] < self.hits(kind):
            return
        del self.objects[place]
        if kind == "cow":
            self._receive("food", _COW_FOOD)
        self._achieve("eat_cow" if kind == "cow" else f"defeat_{kind}")

    def _imagine_place(self, name: str) -> None:
        rule = PLACE[name]
        if self.kind(self.ahead) not in rule["where"] or not self.has(rule["uses"]):
            return
        self._spend(rule["uses"])
        if rule["type"] == "object":
            self.objects[self.ahead] = name
        else:
            self._set(self.ahead, name)
        self._achieve(f"place_{name}")

    def _imagine_make(self, name: str) -> None:
        rule = MAKE[name]
        if self.has(rule["uses"]) and self.workshop(self.pos, rule["nearby"]):
            self._spend(rule["uses"])
            self._receive(name, rule["gives"])
            self._achieve(f"make_{name}")

    def _imagine_sleep(self) -> None:
        missing = ITEM_MAX["energy"] - self.inventory["energy"]
        if not self.sleeping and missing:
            self.sleeping, self.rest_left = True, missing * _REST_STEPS + 1
        if self.sleeping:
            self.rest_left -= 1
            if self.rest_left <= 0:
                self.sleeping, self.inventory["energy"] = False, ITEM_MAX["energy"]

    def workshop(self, place: Point, needed: Collection[str]) -> bool:
        """Whether one can craft here: the benches are near and it is not the world's left or top border."""
        near = {self.benches.get(add(place, step)) for step in _AROUND}
        at_border = _EDGE in (self.tiles.get(add(place, (-1, 0))), self.tiles.get(add(place, (0, -1))))
        return near.issuperset(needed) and not at_border

    def _receive(self, name: str, count: int) -> None:
        self.inventory[name] = max(0, min(self.inventory[name] + count, ITEM_MAX[name]))

    def _spend(self, items: Mapping[str, int]) -> None:
        for name, count in items.items():
            self._receive(name, -count)

    def _achieve(self, name: str) -> None:
        self.done[name] = self.done.get(name, 0) + 1


@dataclass(frozen=True, slots=True)
class Reach:
    """A place to stand, the side to face there (None: any), and how many actions that takes."""

    steps: int
    place: Point
    facing: Point | None = None


class Ways:
    """The cheapest ways from where the player stands, digging and bridging included, as far as `widen` looked."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        clearings = {material: memory.clearing(material) for material in MATERIALS}
        self._kinds = memory.tiles | memory.objects
        self._costs = {name: _ENTRY_STEPS[len(how)] for name, how in clearings.items() if how is not None}
        self.steps: dict[Point, int] = {memory.pos: 0}
        self.order: list[Point] = []
        self.beside: dict[str, Reach] = {}
        self.frontier: list[Point] = []
        self._from: dict[Point, Point] = {}
        self._layers: list[list[Point]] = [[memory.pos]]
        self._looked = 0

    def widen(self, limit: int) -> None:
        """Look at all places up to `limit` actions away, nearest first; `order` lists them so."""
        self._layers += ([] for _ in range(limit + max(self._costs.values()) + 1 - len(self._layers)))
        for distance in range(self._looked, limit + 1):
            for place in self._layers[distance]:
                if self.steps[place] == distance:  # else a cheaper way was found meanwhile
                    self.order.append(place)
                    self._visit(place, distance)
        self._looked = limit + 1

    def _visit(self, place: Point, distance: int) -> None:
        """Look at the four neighbours. The hot loop: plain look-ups, and no calls for open ground."""
        kinds, costs, steps = self._kinds, self._costs, self.steps
        x, y = place
        at_frontier = False
        for target in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)):
            if steps.get(target, _FAR) <= distance:
                continue
            kind = kinds.get(target)
            if kind is None:
                at_frontier = True
                continue
            cost = costs.get(kind)
            if cost != 1:
                known = self.beside.get(kind)
                if known is None or known.steps > distance:
                    self._note(kind, place, (target[0] - x, target[1] - y), distance)
            if cost and distance + cost < steps.get(target, _FAR):
                steps[target] = distance + cost
                self._from[target] = place
                self._layers[distance + cost].append(target)
        if at_frontier:
            self.frontier.append(place)

    def _note(self, kind: str, place: Point, step: Point, distance: int) -> None:
        """Remember from where a thing is reached with the fewest actions, the turn towards it included."""
        total = distance + (0 if self._arrives_facing(place, step) else 1)
        known = self.beside.get(kind)
        if known is None or total < known.steps:
            self.beside[kind] = Reach(total, place, step)

    def _arrives_facing(self, place: Point, step: Point) -> bool:
        """Whether a cheapest way to `place` ends looking along `step`."""
        memory = self._memory
        if place == memory.pos:
            return memory.facing == step
        before = (place[0] - step[0], place[1] - step[1])
        return self.steps.get(before, _FAR) + self._costs[memory.tiles[place]] == self.steps[place]

    def places(self) -> Iterator[Reach]:
        """Every place found so far, nearest first, with the facing one arrives with."""
        for place in self.order:
            before = self._from.get(place)
            facing = (place[0] - before[0], place[1] - before[1]) if before else self._memory.facing
            yield Reach(self.steps[place], place, facing)

    def to_place(self, where: Collection[str], here: Callable[[Point], bool] = lambda _: True) -> Reach | None:
        """The nearest place that satisfies `here` and faces one of the things in `where`."""
        for reach in self.places():
            if reach.facing and self._kinds.get(add(reach.place, reach.facing)) in where and here(reach.place):
                return reach
        return None

    def to_workshop(self, needed: Collection[str]) -> Reach | None:
        """The nearest place where the needed benches are near."""
        best: Reach | None = None
        for bench in self._memory.benches:
            for step in _AROUND:
                place = add(bench, step)
                steps = self.steps.get(place)
                closer = steps is not None and (best is None or steps < best.steps)
                if closer and self._memory.workshop(place, needed):
                    best = Reach(steps or 0, place)
        return best

    def actions(self, reach: Reach) -> list[str]:
        """The actions that lead there, tiles in the way cleared, ending with the right facing."""
        memory, route = self._memory, [reach.place]
        if reach.facing and reach.place in self._from and self._arrives_facing(reach.place, reach.facing):
            route.append((reach.place[0] - reach.facing[0], reach.place[1] - reach.facing[1]))
        while route[-1] in self._from:
            route.append(self._from[route[-1]])
        route.reverse()
        actions: list[str] = []
        facing = memory.facing
        for here, there in pairwise(route):
            step = (there[0] - here[0], there[1] - here[1])
            clearing = memory.clearing(memory.tiles[there]) or ()
            if clearing and facing != step:
                actions.append(MOVES[step])
            actions += [*clearing, MOVES[step]]
            facing = step
        if reach.facing and facing != reach.facing:
            actions.append(MOVES[reach.facing])
        return actions
