"""The rules of ordered Crafter in plain Python: the engine to read, and the one every other is compared with.

One step: the player acts, then every other thing nearer than 18 tiles, in the order in which they were made;
every tenth step, creatures appear and vanish, chunk by chunk; at night the draws of a stock picture are
skipped. The order of random draws is part of the rules. Numbers that the package keeps in its code,
not in `data.yaml`, stand here where they are used. What the others do is `creatures.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from task_app.apps.crafter.engine.creatures import DIRECTIONS, NEW_HEALTH, LivingWorld
from task_app.apps.crafter.engine.protocol import (
    AREA,
    COW,
    LAST_STEP,
    MAX_SEED,
    NIGHT_WORDS,
    PLANT,
    RIPE_GROWN,
    RIPE_PLANT,
    SKELETON,
    UPDATE_DISTANCE,
    ZOMBIE,
    EngineView,
    NightDraws,
    StepOutcome,
    decode_state,
    hash_state,
    seal,
    unseal,
    world_seed,
)  # fmt: skip
from task_app.apps.crafter.engine.rng import Random
from task_app.apps.crafter.engine.rules import (
    ACHIEVEMENTS,
    ACTIONS,
    COLLECT,
    ITEM_MAX,
    ITEMS,
    MAKE,
    MATERIAL_ID,
    PLACE,
    daylight,
)  # fmt: skip
from task_app.apps.crafter.engine.world import HEALTH, STRIDE, Thing
from task_app.apps.crafter.engine.worldgen import CENTER, generate
from task_app.core.errors import EnvError

__all__ = ["ReferenceEngine"]

FOOD, DRINK, ENERGY = (ITEMS.index(name) for name in ("food", "drink", "energy"))
SWORDS = [(ITEMS.index(f"{name}_sword"), damage) for name, damage in (("wood", 2), ("stone", 3), ("iron", 5))]
LEAST_MAX = min(ITEM_MAX)
DO, SLEEP = ACTIONS.index("do"), ACTIONS.index("sleep")
MOVES = dict(zip((ACTIONS.index(f"move_{name}") for name in ("left", "right", "up", "down")), DIRECTIONS, strict=True))
AROUND = tuple(dx * STRIDE + dy for dx in (-1, 0, 1) for dy in (-1, 0, 1))

LAVA, WATER = MATERIAL_ID["lava"], MATERIAL_ID["water"]
DEFEAT_ZOMBIE, DEFEAT_SKELETON, EAT_COW, EAT_PLANT, WAKE_UP = (
    ACHIEVEMENTS.index(name) for name in ("defeat_zombie", "defeat_skeleton", "eat_cow", "eat_plant", "wake_up")
)
VIEW_COLUMNS = tuple(dx * STRIDE - 3 for dx in range(-4, 5))
"""The topmost of the seven tiles of each column in view, seen from the player's."""


class ReferenceEngine(LivingWorld):
    """One game. See `protocol.Engine`."""

    name = "reference"

    def __init__(self, night_draws: NightDraws = "stock") -> None:
        super().__init__()
        self.night_draws: NightDraws = night_draws
        self._daylight = daylight()

    def reset(self, seed: int) -> None:
        """Make the world of `seed`. Raises EnvError unless 0 ≤ seed < MAX_SEED."""
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
            raise EnvError(f"seed must be an integer from 0 to {MAX_SEED - 1}, got {seed!r}")
        random = Random.seeded(world_seed(seed))
        land = generate(random)
        self.begin(random, land.materials, CENTER, CENTER)
        for kind, place in land.creatures:
            self.add(Thing(kind, *divmod(place, AREA), NEW_HEALTH[kind]))

    def step(self, action: int) -> StepOutcome:
        """Run one action; see `protocol.Engine`."""
        self._check_may_step(action)
        health, achieved = self.inventory[HEALTH], self.achievements.copy()
        self.steps += 1
        light = self._daylight[self.steps]
        others = self.things[1:]  # what is made in this step acts from the next one on
        self._update_player(action)
        updates, x, y = self.updates, self.player.x, self.player.y
        for thing in others:
            if abs(thing.x - x) + abs(thing.y - y) < UPDATE_DISTANCE:
                updates[thing.kind](thing)
        if self.steps % 10 == 0:
            self.balance(light)
        if light < 0.5 and self.night_draws == "stock":
            self.random.getrandbits(32 * NIGHT_WORDS)
        return self._outcome(health, achieved)

    def _check_may_step(self, action: int) -> None:
        if not self.things:
            raise EnvError("step before reset: call reset(seed) first")
        if not 0 <= action < len(ACTIONS):
            raise EnvError(f"unknown action {action!r}: actions are numbered from 0 to {len(ACTIONS) - 1}")
        if self.inventory[HEALTH] <= 0:
            raise EnvError("step after the player's death: call reset(seed) first")
        if self.steps >= LAST_STEP:
            raise EnvError(f"step after the last one, {LAST_STEP}: call reset(seed) first")

    def _outcome(self, health: int, achieved: list[int]) -> StepOutcome:
        """Health won or lost / 10, and 1 if anything was achieved for the first time, however much."""
        now = self.inventory[HEALTH]
        reward = (now - health) / 10
        events: tuple[int, ...] = ()
        if self.achievements != achieved:
            pairs = list(enumerate(zip(achieved, self.achievements, strict=True)))
            events = tuple(index for index, (before, after) in pairs for _ in range(after - before))
            if any(before == 0 < after for _, (before, after) in pairs):
                reward += 1.0
        return reward, now <= 0, events

    def step_many(self, actions: Sequence[int]) -> list[StepOutcome]:
        """Run several actions, stopping after the player's death."""
        outcomes: list[StepOutcome] = []
        for action in actions:
            outcomes.append(self.step(action))
            if outcomes[-1][1]:
                break
        return outcomes

    # The player

    def _update_player(self, action: int) -> None:
        if self.sleeping:
            if self.inventory[ENERGY] < ITEM_MAX[ENERGY]:
                action = SLEEP
            else:
                self.sleeping = False
                self.achievements[WAKE_UP] += 1
        if action in MOVES:
            self.facing = MOVES[action]
            self.move(self.player, *self.facing)
            if self.materials[self.player.tile] == LAVA:
                self.inventory[HEALTH] = 0
        elif action == DO:
            self._do(self.player.tile + self.facing[0] * STRIDE + self.facing[1])
        elif action == SLEEP:
            if self.inventory[ENERGY] < ITEM_MAX[ENERGY]:
                self.sleeping = True
        elif action in PLACE:
            self._place(action, self.facing[0], self.facing[1])
        elif action in MAKE:
            self._make(action)
        self._grow_hungry_and_tired()
        self._heal_or_suffer()
        if min(self.inventory) < 0 or max(self.inventory) > LEAST_MAX:
            self.inventory = [max(0, min(count, most)) for count, most in zip(self.inventory, ITEM_MAX, strict=True)]
        if self.inventory[HEALTH] < self.last_health:
            self.sleeping = False
        self.last_health = self.inventory[HEALTH]

    def _grow_hungry_and_tired(self) -> None:
        """Hunger and thirst grow half as fast asleep (they are kept doubled); tiredness falls asleep."""
        inventory = self.inventory
        self.hunger2 += 1 if self.sleeping else 2
        if self.hunger2 > 50:
            self.hunger2 = 0
            inventory[FOOD] -= 1
        self.thirst2 += 1 if self.sleeping else 2
        if self.thirst2 > 40:
            self.thirst2 = 0
            inventory[DRINK] -= 1
        self.fatigue = min(self.fatigue - 1, 0) if self.sleeping else self.fatigue + 1
        if self.fatigue < -10:
            self.fatigue = 0
            inventory[ENERGY] += 1
        if self.fatigue > 30:
            self.fatigue = 0
            inventory[ENERGY] -= 1

    def _heal_or_suffer(self) -> None:
        """Health returns while nothing is lacking, twice as fast asleep; else it goes, half as fast asleep."""
        inventory = self.inventory
        if inventory[FOOD] > 0 and inventory[DRINK] > 0 and (inventory[ENERGY] > 0 or self.sleeping):
            self.recover2 += 4 if self.sleeping else 2
        else:
            self.recover2 -= 1 if self.sleeping else 2
        if self.recover2 > 50:
            self.recover2 = 0
            inventory[HEALTH] += 1
        if self.recover2 < -30:
            self.recover2 = 0
            inventory[HEALTH] = max(0, inventory[HEALTH] - 1)

    def _do(self, target: int) -> None:
        thing = self.at[target]
        if thing is None:
            self._collect(target)
        elif thing.kind == PLANT:
            if thing.counter > RIPE_GROWN:
                thing.counter = 0
                self.inventory[FOOD] += 4
                self.achievements[EAT_PLANT] += 1
        elif thing.kind in (ZOMBIE, SKELETON, COW):
            self._strike(thing)

    def _strike(self, thing: Thing) -> None:
        thing.health = max(0, thing.health - max([1, *(damage for sword, damage in SWORDS if self.inventory[sword])]))
        if thing.health > 0:
            return
        if thing.kind == ZOMBIE:
            self.achievements[DEFEAT_ZOMBIE] += 1
        elif thing.kind == SKELETON:
            self.achievements[DEFEAT_SKELETON] += 1
        else:
            self.inventory[FOOD] += 6
            self.achievements[EAT_COW] += 1
            self.hunger2 = 0

    def _collect(self, target: int) -> None:
        """Take what the tile gives. One number is drawn even where success is certain."""
        material = self.materials[target]
        if material == WATER:
            self.thirst2 = 0
        rule = COLLECT.get(material)
        if rule is None or any(self.inventory[item] < amount for item, amount in rule.require):
            return
        self.set_material(target, rule.leaves)
        if self.random.random() <= rule.probability:
            for (item, amount), achievement in zip(rule.receive, rule.achievements, strict=True):
                self.inventory[item] += amount
                self.achievements[achievement] += 1

    def _place(self, action: int, dx: int, dy: int) -> None:
        rule, target = PLACE[action], self.player.tile + dx * STRIDE + dy
        if self.at[target] is not None or self.materials[target] not in rule.where or not self._pay(rule.uses):
            return
        if rule.material is not None:
            self.set_material(target, rule.material)
        else:
            self.add(Thing(PLANT, self.player.x + dx, self.player.y + dy, NEW_HEALTH[PLANT]))
        self.achievements[rule.achievement] += 1

    def _make(self, action: int) -> None:
        """Make a tool beside what it needs. At x = 0 or y = 0 the package sees nothing nearby; so it is here."""
        rule, player = MAKE[action], self.player
        if player.x == 0 or player.y == 0:
            return
        nearby = {self.materials[player.tile + offset] for offset in AROUND}
        if nearby.issuperset(rule.nearby) and self._pay(rule.uses):
            self.inventory[rule.item] += rule.gives
            self.achievements[rule.achievement] += 1

    def _pay(self, uses: Sequence[tuple[int, int]]) -> bool:
        """Take the items if there are enough of all; whether there were."""
        if any(self.inventory[item] < amount for item, amount in uses):
            return False
        for item, amount in uses:
            self.inventory[item] -= amount
        return True

    # Looking, saving

    def view(self) -> EngineView:
        """What the player sees now."""
        if not self.things:
            raise EnvError("no world to look at: call reset(seed) first")
        player, here = self.player, self.player.tile
        seen = [thing for offset in VIEW_COLUMNS for thing in self.at[here + offset : here + offset + 7] if thing]
        seen.sort(key=_by_serial)
        return EngineView(
            step=self.steps,
            materials=b"".join([self.materials[here + offset : here + offset + 7] for offset in VIEW_COLUMNS]),
            objects=tuple([
                (RIPE_PLANT if thing.kind == PLANT and thing.counter > RIPE_GROWN else thing.kind,
                 thing.x - player.x, thing.y - player.y)
                for thing in seen if thing is not player
            ]),
            facing=self.facing,
            inventory=tuple(self.inventory),
            achievements=tuple(self.achievements),
            offset=(player.x - CENTER, player.y - CENTER),
            daylight=self._daylight[self.steps],
            sleeping=self.sleeping,
        )  # fmt: skip

    def snapshot(self) -> bytes:
        """The canonical bytes, sealed."""
        if not self.things:
            raise EnvError("no world to snapshot: call reset(seed) first")
        return seal(self.name, self.night_draws, self.canonical_bytes())

    def restore(self, payload: bytes) -> None:
        """Return to a snapshot. Raises EnvError for one of another engine, format or night_draws."""
        self.assume(decode_state(unseal(self.name, self.night_draws, payload)))

    def state_hash(self) -> str:
        """SHA-256 of the canonical bytes."""
        return hash_state(self.canonical_bytes())


def _by_serial(thing: Thing) -> int:
    return thing.serial
