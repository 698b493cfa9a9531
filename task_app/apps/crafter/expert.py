"""A scripted player that knows the rules. It has the 9×7 view and what it remembers of earlier views, nothing else.

Each goal of the moment becomes an `Idea`: what it is worth in achievements (those it opens up included) and
how many actions it takes. The expert follows the idea with the most worth per action, imagines its effect,
and plans on from there until the decision is full or what comes next depends on a result it must see first.
It never looks at the world behind the view, never learns, and never steps where lava might be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from task_app.apps.crafter.expert_map import COLLECT, MAKE, MOVES, PLACE, Memory, Reach, Ways, add, apart
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ITEM_MAX
from task_app.apps.crafter.view import CrafterView

__all__ = ["ExpertAgent"]

WOOD_TOOLS = ("wood_pickaxe", "wood_sword")
STONE_TOOLS = ("stone_pickaxe", "stone_sword")
IRON_TOOLS = ("iron_pickaxe", "iron_sword")
TOOLS = (*WOOD_TOOLS, *STONE_TOOLS, *IRON_TOOLS)
ENEMIES = ("zombie", "skeleton", "arrow")

TOOL_WORTH: Mapping[str, float] = {
    "wood_pickaxe": 4.0,  # nothing under ground can be had without it
    "wood_sword": 1.0,
    "stone_pickaxe": 2.5,
    "stone_sword": 1.0,
    "iron_pickaxe": 2.0,
    "iron_sword": 1.0,
}
WOOD_WORTH = ((WOOD_TOOLS, 1.2), (STONE_TOOLS, 0.6), (IRON_TOOLS, 0.3))
"""What a piece of wood is worth while it is missing for these tools."""
STONE_WORTH, FURNACE_STONE_WORTH, SPARE_STONE_WORTH = 1.0, 0.6, 0.1
ORE_WORTH = {"coal": (1.2, 0.3), "iron": (1.5, 0.8), "diamond": (1.5, 0.0)}
"""The first piece, and later ones while tools need them."""
TABLE_WORTH, LONE_TABLE_WORTH, FURNACE_WORTH, PLACED_STONE_WORTH = 1.0, 0.5, 1.5, 1.0
SAPLING_WORTH, PLANT_WORTH, RIPE_PLANT_WORTH = 2.0, 1.0, 1.5
WATER_WORTH, COW_WORTH, NEED_WORTH, SOON_WORTH = 1.0, 1.0, 4.0, 0.1
ENEMY_WORTH, SECOND_ZOMBIE_WORTH, DEFENCE_WORTH = 1.0, 0.2, 1.0
SLEEP_WORTH = 2.5  # more than the one achievement: later it takes longer and zombies are about
EXPLORING_RATE = 0.07  # worth per action that unseen land promises

CHASE = {"cow": 2, "zombie": 3, "skeleton": 8}
"""Actions lost because they move: cows stray, zombies come, skeletons keep away."""
LOOKS = ((8, 0.3), (16, 0.15), (30, 0.0))
"""How many actions away to look for ideas, and the rate that makes looking further needless."""
WHOLE_WORLD = 128
LOW, TIRED = 4, 3  # vitals from which on food and drink, and sleep, are needs
DANGER = 3  # an enemy this near makes every action's result uncertain
NEW_TABLE = 6  # a table further away than this is not worth going back to
BLIND = 5  # at most so many actions towards what may have changed on arrival


@dataclass(frozen=True, slots=True)
class Idea:
    """Go to `reach`, then do `then`. `steps` is the number of actions until it is expected to pay.

    `look` says that what comes next depends on a result one has to see.
    """

    worth: float
    steps: float
    reach: Reach | None = None
    then: tuple[str, ...] = ()
    look: bool = False

    @property
    def rate(self) -> float:
        """Worth per action."""
        return self.worth / max(self.steps, 1)


class ExpertAgent:
    """Plays one episode. The same seed and views give the same actions."""

    def __init__(self, options: CrafterOptions, seed: int) -> None:
        self._least = options.min_actions_per_decision
        self._most = options.max_actions_per_decision
        self._random = random.Random(seed)
        self._memory = Memory()

    def act(self, observation: CrafterView) -> list[str]:
        """The next decision's actions."""
        self._memory.see(observation)
        plan: list[str] = []
        while len(plan) < self._most:
            if not self._extend(plan) and len(plan) >= self._least:
                break
        return plan

    def _extend(self, plan: list[str]) -> bool:
        """Add the next actions to the plan; False when one should look before going on."""
        memory = self._memory
        actions, look = self._next()
        for action in actions:
            if memory.may_be_deadly(action):
                if len(plan) < self._least:
                    plan.append("noop")
                return False
            plan.append(action)
            memory.imagine(action)
            if len(plan) >= self._most or (len(plan) >= self._least and self._in_danger()):
                return False
        return not look

    def _in_danger(self) -> bool:
        memory = self._memory
        return any(kind in ENEMIES and apart(place, memory.pos) <= DANGER for place, kind in memory.objects.items())

    def _next(self) -> tuple[list[str], bool]:
        """The actions of the best idea, at least one, and whether one should look after them."""
        memory = self._memory
        if memory.sleeping:
            return ["sleep"] * memory.rest_left, False
        ways = Ways(memory)
        idea = self._best_idea(ways)
        actions = [*(ways.actions(idea.reach) if idea.reach else ()), *idea.then]
        return (actions[:BLIND] if idea.look else actions) or ["noop"], idea.look

    def _best_idea(self, ways: Ways) -> Idea:
        """The idea with the highest rate; far places count only while near ones offer little."""
        best = self._wait()
        for limit, enough in LOOKS:
            ways.widen(limit)
            best = max((best, *self._ideas(ways)), key=lambda idea: idea.rate)
            if best.rate >= enough:
                break
        if best.rate < EXPLORING_RATE:
            best = self._explore(ways) or best
        return best

    def _wait(self) -> Idea:
        """For want of anything better a random step, which also ends standstills."""
        free = [name for step, name in MOVES.items() if self._memory.free(add(self._memory.pos, step))]
        return Idea(0, 1, None, (self._random.choice(free) if free else "noop",), look=True)

    def _ideas(self, ways: Ways) -> Iterator[Idea]:
        yield from self._collect(ways)
        yield from self._hunt(ways)
        yield from self._make(ways)
        yield from self._place_table(ways)
        yield from self._place_furnace_or_stone(ways)
        yield from self._plant(ways)
        yield from self._rest()

    def _collect(self, ways: Ways) -> Iterator[Idea]:
        for kind, worth in self._wishes():
            reach = ways.beside.get(kind)
            if reach and worth and (kind == "ripe_plant" or self._memory.can_collect(kind)):
                yield Idea(worth, reach.steps + 1, reach, ("do",))

    def _wishes(self) -> Iterator[tuple[str, float]]:
        """What could be collected, and what one piece of it is worth now."""
        inventory, done = self._memory.inventory, self._memory.done
        yield "tree", self._wood_worth()
        yield "stone", self._stone_worth()
        wanted = sum(not inventory[tool] for tool in IRON_TOOLS)
        for ore, (first, later) in ORE_WORTH.items():
            yield ore, first if not done[f"collect_{ore}"] else later if inventory[ore] < wanted else 0
        yield "water", self._need("drink") if done["collect_drink"] else WATER_WORTH
        yield "ripe_plant", self._need("food") if done["eat_plant"] else RIPE_PLANT_WORTH

    def _need(self, vital: str) -> float:
        """What filling up a vital is worth: the more the lower it is."""
        level = self._memory.inventory[vital]
        if level > LOW:
            return SOON_WORTH if level <= LOW + 2 else 0
        return NEED_WORTH * (LOW + 1 - level) / LOW

    def _wood_worth(self) -> float:
        """Wood is for the next tools, and for a table near the place where they will be made."""
        memory = self._memory
        for tools, worth in WOOD_WORTH:
            wanted = sum(MAKE[tool]["uses"]["wood"] for tool in tools if not memory.inventory[tool])
            if wanted and not (tools == WOOD_TOOLS and memory.benches):
                wanted += PLACE["table"]["uses"]["wood"]
            if memory.inventory["wood"] < wanted:
                return worth
        return 0

    def _stone_worth(self) -> float:
        """Stone is for tools, for placing one, for the furnace; a few more bridge water."""
        memory, stone = self._memory, self._memory.inventory["stone"]
        tools = sum(not memory.inventory[tool] for tool in STONE_TOOLS)
        if stone < max(tools, not memory.done["place_stone"]):
            return STONE_WORTH
        furnace = PLACE["furnace"]["uses"]["stone"]
        if not memory.done["place_furnace"] and stone < furnace + tools:
            return FURNACE_STONE_WORTH
        return SPARE_STONE_WORTH if stone < furnace else 0

    def _hunt(self, ways: Ways) -> Iterator[Idea]:
        """Cows are food; enemies are hunted once each, and zombies again when they get in the way."""
        memory, done = self._memory, self._memory.done
        prey = {
            "cow": self._need("food") if done["eat_cow"] else COW_WORTH,
            "zombie": SECOND_ZOMBIE_WORTH if done["defeat_zombie"] else ENEMY_WORTH,
            "skeleton": 0 if done["defeat_skeleton"] else ENEMY_WORTH,
        }
        for kind, worth in prey.items():
            reach = ways.beside.get(kind)
            if reach and kind == "zombie" and reach.steps <= 1:
                yield Idea(worth + DEFENCE_WORTH, memory.hits(kind), reach, ("do",), look=True)
            elif reach and worth:
                yield Idea(worth, reach.steps + memory.hits(kind) + CHASE[kind], reach, ("do",), look=True)

    def _make(self, ways: Ways) -> Iterator[Idea]:
        for tool in self._affordable(self._memory.inventory["wood"]):
            reach = ways.to_workshop(MAKE[tool]["nearby"])
            if reach:
                yield Idea(TOOL_WORTH[tool], reach.steps + 1, reach, (f"make_{tool}",))

    def _affordable(self, wood: int) -> list[str]:
        """The missing tools that `wood` allows to make one after another, the rest being in stock."""
        memory = self._memory
        tools: list[str] = []
        for tool in TOOLS:
            uses = MAKE[tool]["uses"]
            if not memory.inventory[tool] and memory.has(uses) and wood >= uses["wood"]:
                wood -= uses["wood"]
                tools.append(tool)
        return tools

    def _place_table(self, ways: Ways) -> Iterator[Idea]:
        """A table right here, for the tools that can then be made with the wood that is left."""
        memory, uses = self._memory, PLACE["table"]["uses"]
        near = ways.to_workshop(("table",))
        if not memory.has(uses) or (near and near.steps <= NEW_TABLE):
            return
        first = 0 if memory.done["place_table"] else TABLE_WORTH
        wood = memory.inventory["wood"] - uses["wood"]
        tools = [tool for tool in self._affordable(wood) if tool not in IRON_TOOLS]
        worth = first + sum(TOOL_WORTH[tool] for tool in tools) if tools else first and LONE_TABLE_WORTH
        if not memory.inventory["wood_pickaxe"] and len(tools) < len(WOOD_TOOLS) and "tree" in ways.beside:
            return  # the wood for both tools first: coming back to a table costs more
        reach = ways.to_place(PLACE["table"]["where"])
        if reach and worth:
            yield Idea(worth, reach.steps + 1 + len(tools), reach, ("place_table",))

    def _place_furnace_or_stone(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        if memory.has(PLACE["furnace"]["uses"]) and not memory.done["place_furnace"]:
            reach = ways.to_place(PLACE["furnace"]["where"], lambda place: memory.workshop(place, ("table",)))
            if reach:
                yield Idea(FURNACE_WORTH, reach.steps + 1, reach, ("place_furnace",))
        if memory.has(PLACE["stone"]["uses"]) and not memory.done["place_stone"]:
            reach = ways.to_place(PLACE["stone"]["where"])
            if reach:
                yield Idea(PLACED_STONE_WORTH, reach.steps + 1, reach, ("place_stone",))

    def _plant(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        reach = None if memory.done["place_plant"] else ways.to_place(PLACE["plant"]["where"])
        if reach and memory.inventory["sapling"]:
            yield Idea(PLANT_WORTH, reach.steps + 1, reach, ("place_plant",))
        elif reach and not memory.done["collect_sapling"]:
            tries = 1 / COLLECT["grass"]["probability"]
            yield Idea(SAPLING_WORTH, reach.steps + tries + 1, reach, ("do",) * BLIND, look=True)

    def _rest(self) -> Iterator[Idea]:
        """Sleep as soon as it is possible, since waking up counts; later only when tired. Zombies hit sleepers hard."""
        memory = self._memory
        missing = ITEM_MAX["energy"] - memory.inventory["energy"]
        if missing <= 0 or any(kind in ENEMIES for kind in memory.objects.values()):
            return
        if not memory.done["wake_up"]:
            yield Idea(SLEEP_WORTH, 12 * missing, None, ("sleep",))
        elif memory.inventory["energy"] <= TIRED:
            yield Idea(NEED_WORTH, 12, None, ("sleep",))

    def _explore(self, ways: Ways) -> Idea | None:
        """Towards the place that brings the most unseen land into view for the way there."""
        if not ways.frontier:
            ways.widen(WHOLE_WORLD)
        best, best_score = None, 0.0
        for place in ways.frontier:
            steps = ways.steps[place]
            score = self._memory.new_in_sight(place) / (steps + 3)
            if steps and score > best_score:
                best, best_score = Reach(steps, place), score
        return Idea(EXPLORING_RATE, 1, best, look=True) if best else None
