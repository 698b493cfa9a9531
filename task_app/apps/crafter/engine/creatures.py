"""The living things of ordered Crafter in plain Python: what each does in a step, and how they appear and vanish.

Part of the reference engine, of which the player's side is `reference.py`. A killed creature is removed, but
does what it would have done in that step. The order of random draws is part of the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from task_app.apps.crafter.engine.protocol import ARROW, COW, PLANT, SKELETON, ZOMBIE
from task_app.apps.crafter.engine.rules import MATERIAL_ID
from task_app.apps.crafter.engine.world import HEALTH, STRIDE, Chunk, Thing, World, tile
from task_app.core.errors import EnvError

__all__ = ["DIRECTIONS", "NEW_HEALTH", "LivingWorld"]

DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
NEIGHBOURS = tuple(dx * STRIDE + dy for dx, dy in DIRECTIONS)
GRASS, PATH = MATERIAL_ID["grass"], MATERIAL_ID["path"]
BROKEN_BY_ARROWS = (MATERIAL_ID["table"], MATERIAL_ID["furnace"])
NEW_HEALTH = {COW: 3, ZOMBIE: 5, SKELETON: 3, ARROW: 0, PLANT: 1}


@dataclass(frozen=True, slots=True)
class Balance:
    """A kind appears on a material in chunks that have `space` tiles of it; distances are from the player."""

    kind: int
    material: int
    space: int
    spawn_distance: int
    spawn_chance: float
    despawn_distance: int
    despawn_chance: float


ZOMBIES = Balance(ZOMBIE, GRASS, 50, 6, 0.3, 0, 0.4)
SKELETONS = Balance(SKELETON, PATH, 6, 7, 0.1, 7, 0.1)
COWS = Balance(COW, GRASS, 30, 5, 0.01, 5, 0.1)


class LivingWorld(World):
    """A world whose creatures, arrows and plants act. `updates` says how, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = {
            COW: self._update_cow,
            ZOMBIE: self._update_zombie,
            SKELETON: self._update_skeleton,
            ARROW: self._update_arrow,
            PLANT: self._update_plant,
        }

    def _update_cow(self, cow: Thing) -> None:
        if cow.health <= 0:
            self.remove(cow)
        if self.random.random() < 0.5:
            self._stray(cow)

    def _update_zombie(self, zombie: Thing) -> None:
        random = self.random.random
        if zombie.health <= 0:
            self.remove(zombie)
        if self._distance(zombie) <= 8 and random() < 0.9:
            self.move(zombie, *self._toward(zombie, random() < 0.8))
        else:
            self._stray(zombie)
        if self._distance(zombie) <= 1:
            if zombie.counter:
                zombie.counter -= 1
            else:
                self._hurt(self.player, 7 if self.sleeping else 2)
                zombie.counter = 5

    def _update_skeleton(self, skeleton: Thing) -> None:
        random = self.random.random
        if skeleton.health <= 0:
            self.remove(skeleton)
        skeleton.counter = max(0, skeleton.counter - 1)
        distance = self._distance(skeleton)
        if distance <= 3:
            dx, dy = self._toward(skeleton, random() < 0.6)
            if self.move(skeleton, -dx, -dy):
                return
        if distance <= 5 and random() < 0.5:
            self._shoot(skeleton, *self._toward(skeleton, True))
        elif distance <= 8 and random() < 0.3:
            self.move(skeleton, *self._toward(skeleton, random() < 0.6))
        elif random() < 0.2:
            self._stray(skeleton)

    def _shoot(self, skeleton: Thing, dx: int, dy: int) -> None:
        if skeleton.counter > 0:
            return
        arrow = Thing(ARROW, skeleton.x + dx, skeleton.y + dy, NEW_HEALTH[ARROW], 0, dx, dy)
        if self.at[arrow.tile] is None and arrow.standable[self.materials[arrow.tile]]:
            self.add(arrow)
            skeleton.counter = 4

    def _update_arrow(self, arrow: Thing) -> None:
        target = arrow.tile + arrow.dx * STRIDE + arrow.dy
        thing, material = self.at[target], self.materials[target]
        if thing is not None:
            self._hurt(thing, 2)
            self.remove(arrow)
        elif not arrow.standable[material]:
            self.remove(arrow)
            if material in BROKEN_BY_ARROWS:
                self.set_material(target, PATH)
        else:
            self.move(arrow, arrow.dx, arrow.dy)

    def _update_plant(self, plant: Thing) -> None:
        plant.counter += 1
        beside = (self.at[plant.tile + offset] for offset in NEIGHBOURS)
        if any(thing is not None and thing.kind in (ZOMBIE, SKELETON, COW) for thing in beside):
            plant.health = max(0, plant.health - 1)
        if plant.health <= 0:
            self.remove(plant)

    def _distance(self, thing: Thing) -> int:
        return abs(thing.x - self.player.x) + abs(thing.y - self.player.y)

    def _toward(self, thing: Thing, long_axis: bool) -> tuple[int, int]:
        """One step to the player along the longer axis, or along the other; (0, 0) if that one is level."""
        dx, dy = self.player.x - thing.x, self.player.y - thing.y
        if (abs(dx) > abs(dy)) == long_axis:
            return (dx > 0) - (dx < 0), 0
        return 0, (dy > 0) - (dy < 0)

    def _stray(self, thing: Thing) -> None:
        self.move(thing, *DIRECTIONS[self.random.below(4)])

    def _hurt(self, thing: Thing, damage: int) -> None:
        if thing is self.player:
            self.inventory[HEALTH] = max(0, self.inventory[HEALTH] - damage)
        else:
            thing.health = max(0, thing.health - damage)

    def balance(self, light: float) -> None:
        """Few creatures make room for new ones, many for none; by daylight, chunk by chunk."""
        zombies = int(3.5 - 3 * light)
        targets = ((ZOMBIES, zombies, zombies), (SKELETONS, 1, 2), (COWS, 1, int(1.5 + light)))
        for chunk in self.known_chunks:
            for rule, fewest, most in targets:
                count = chunk.kinds[rule.kind]
                if count < fewest and chunk.materials[rule.material] >= rule.space:
                    self._spawn(chunk, rule)
                elif count > most:
                    self._despawn(chunk, rule)

    def _spawn(self, chunk: Chunk, rule: Balance) -> None:
        if self.random.random() >= rule.spawn_chance:
            return
        place = self._nth_tile(chunk, rule.material, self.random.below(chunk.materials[rule.material]))
        thing = Thing(rule.kind, *place, NEW_HEALTH[rule.kind])
        if self.at[thing.tile] is None and self._distance(thing) >= rule.spawn_distance:
            self.add(thing)

    def _despawn(self, chunk: Chunk, rule: Balance) -> None:
        if self.random.random() >= rule.despawn_chance:
            return
        creatures = [thing for thing in chunk.members if thing.kind == rule.kind]
        thing = creatures[self.random.below(len(creatures))]
        if self._distance(thing) >= rule.despawn_distance:
            self.remove(thing)

    def _nth_tile(self, chunk: Chunk, material: int, n: int) -> tuple[int, int]:
        """Where the chunk's tile number n (from 0) of this material lies, column by column."""
        top, bottom = chunk.rows().start, chunk.rows().stop
        for x in chunk.columns():
            column = self.materials[tile(x, top) : tile(x, bottom)]
            here = column.count(material)
            if n < here:
                ys = [y for y, found in enumerate(column, top) if found == material]
                return x, ys[n]
            n -= here
        raise EnvError(f"chunk at ({chunk.x}, {chunk.y}) has fewer tiles of material {material} than it counted")
