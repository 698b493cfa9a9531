"""A scripted player that knows the rules. It has the 9×7 view and what it remembers of earlier views, nothing else.

Each goal of the moment becomes an `Idea`: what it is worth in achievements (those it opens up included) and
how many actions it takes. The expert follows the idea with the most worth per action, imagines its effect,
and plans on from there until the decision is full or what comes next depends on a result it must see first.
It never looks at the world behind the view, never learns, and never walks where lava might be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from task_app.apps.crafter.expert_map import COLLECT, MAKE, MOVES, PLACE, Memory, Reach, Ways, add, apart
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ITEM_MAX
from task_app.apps.crafter.view import CrafterView

__all__ = ["ExpertAgent"]

WORTH: Mapping[str, float] = dict(
    tree=1.2, tree_stone_tools=0.6, tree_iron_tools=0.3, stone=1.0, stone_furnace=0.6, stone_spare=0.1,
    coal=1.2, coal_tools=0.3, iron=1.5, iron_tools=0.8, diamond=1.5, water=1.0, cow=1.0, sapling=2.0, plant=1.0, ripe_plant=1.5,
    zombie=1.0, zombie_again=0.2, zombie_adjacent=1.0, skeleton=1.0, wood_pickaxe=4.0, wood_sword=1.0, stone_pickaxe=2.5, stone_sword=1.0,
    iron_pickaxe=2.0, iron_sword=1.0, table=1.0, table_last=0.5, furnace=1.5, place_stone=1.0, sleep=2.5, need=4.0, need_soon=0.1, explore=0.07,
)
P = dict(danger=3, near=8, near_rate=0.3, cow=2, zombie=3, skeleton=8, table_far=6, gain=3, tries=5, blind=5, hungry=4, tired=3, light=0.5, exh=0)
"""..."""

SWORDS_AND_PICKAXES = (
    ("wood_pickaxe", "wood_sword"),
    ("stone_pickaxe", "stone_sword"),
    ("iron_pickaxe", "iron_sword"),
)
ENEMIES = ("zombie", "skeleton", "arrow")
STAGES = ((8, 0.3), (16, 0.15), (30, 0.0))


@dataclass(frozen=True, slots=True)
class Idea:
    """Go to `reach`, then do `then`. `steps` is the expected number of actions until it pays."""

    name: str
    worth: float
    steps: float
    reach: Reach | None
    then: tuple[str, ...] = ()
    look: bool = False
    """Whether what comes next depends on a result one has to see."""

    @property
    def rate(self) -> float:
        """Worth per action."""
        return self.worth / max(self.steps, 0.5)


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
        """Add the best idea's actions to the plan; False when one should look before going on."""
        memory = self._memory
        idea, actions = self._decide()
        for action in actions:
            if memory.may_be_deadly(action):
                if len(plan) < self._least:
                    plan.append("noop")
                return False
            plan.append(action)
            memory.imagine(action)
            if len(plan) >= self._most or (len(plan) >= self._least and self._in_danger()):
                return False
        return not idea.look

    def _in_danger(self) -> bool:
        memory = self._memory
        return any(
            kind in ENEMIES and apart(place, memory.pos) <= P["danger"] for place, kind in memory.objects.items()
        )

    def _decide(self) -> tuple[Idea, list[str]]:
        """The best idea and its actions, at least one. Far places are considered only if near ones offer little."""
        memory = self._memory
        if memory.sleeping:
            return Idea("sleeping", 1, 1, None), ["sleep"] * memory.rest_left
        ways = Ways(memory)
        best = self._wait()
        for reach, enough in STAGES:
            ways.widen(reach)
            best = max(self._ideas(ways), key=lambda idea: idea.rate)
            if best.rate >= enough:
                break
        if best.rate < WORTH["explore"]:
            best = self._explore(ways) or best
        actions = (ways.actions(best.reach) if best.reach else []) + list(best.then)
        return best, (actions[: P["blind"]] if best.look else actions) or ["noop"]

    def _ideas(self, ways: Ways) -> Iterator[Idea]:
        yield self._wait()
        yield from self._collect(ways)
        yield from self._hunt(ways)
        yield from self._make(ways)
        yield from self._build(ways)
        yield from self._grow(ways)
        yield from self._rest()

    def _wait(self) -> Idea:
        """Nothing better to do: a random step, which also ends standstills."""
        free = [name for step, name in MOVES.items() if self._memory.free(add(self._memory.pos, step))]
        return Idea("wait", 0.0, 1, None, (self._random.choice(free) if free else "noop",), look=True)

    # Collecting

    def _collect(self, ways: Ways) -> Iterator[Idea]:
        for kind, worth in self._wishes():
            reach = ways.beside.get(kind)
            if reach and worth and (kind == "ripe_plant" or self._memory.can_collect(kind)):
                yield Idea(kind, worth, reach.steps + 1, reach, ("do",))

    def _wishes(self) -> Iterator[tuple[str, float]]:
        """What is worth collecting now, and how much one piece is worth."""
        inventory, done = self._memory.inventory, self._memory.done
        iron_tools = sum(not inventory[tool] for tool in SWORDS_AND_PICKAXES[2])
        yield "tree", self._wood_worth()
        yield "stone", self._stone_worth()
        for ore in ("coal", "iron"):
            again = WORTH[f"{ore}_tools"] if inventory[ore] < iron_tools else 0.0
            yield ore, again if done[f"collect_{ore}"] else WORTH[ore]
        yield "diamond", 0.0 if done["collect_diamond"] else WORTH["diamond"]
        yield "water", self._need("drink") if done["collect_drink"] else WORTH["water"]
        yield "ripe_plant", self._need("food") if done["eat_plant"] else WORTH["ripe_plant"]

    def _need(self, vital: str) -> float:
        """What filling up a vital is worth, the more the lower it is."""
        level = self._memory.inventory[vital]
        if level > P["hungry"]:
            return WORTH["need_soon"] if level <= P["hungry"] + 2 else 0.0
        return WORTH["need"] * (P["hungry"] + 1 - level) / P["hungry"]

    def _wood_worth(self) -> float:
        """Wood for the next tools, and for a table beside the place where they will be made."""
        inventory = self._memory.inventory
        names = ("tree", "tree_stone_tools", "tree_iron_tools")
        for name, tools in zip(names, SWORDS_AND_PICKAXES, strict=True):
            wanted = sum(MAKE[tool]["uses"]["wood"] for tool in tools if not inventory[tool])
            if name != "tree" or not self._memory.benches:
                wanted += PLACE["table"]["uses"]["wood"] if wanted else 0
            if inventory["wood"] < wanted:
                return WORTH[name]
        return 0.0

    def _stone_worth(self) -> float:
        memory, stone = self._memory, self._memory.inventory["stone"]
        tools = sum(not memory.inventory[tool] for tool in SWORDS_AND_PICKAXES[1])
        if stone < max(tools, not memory.done["place_stone"]):
            return WORTH["stone"]
        furnace = PLACE["furnace"]["uses"]["stone"]
        if not memory.done["place_furnace"] and stone < furnace + tools:
            return WORTH["stone_furnace"]
        return WORTH["stone_spare"] if stone < furnace else 0.0

    def _hunt(self, ways: Ways) -> Iterator[Idea]:
        """Cows to eat; enemies for the achievement, and when they stand beside the player."""
        memory, done = self._memory, self._memory.done
        prey = {
            "cow": self._need("food") if done["eat_cow"] else WORTH["cow"],
            "zombie": WORTH["zombie_again"] if done["defeat_zombie"] else WORTH["zombie"],
            "skeleton": 0.0 if done["defeat_skeleton"] else WORTH["skeleton"],
        }
        for kind, worth in prey.items():
            reach = ways.beside.get(kind)
            if reach and worth:
                steps = reach.steps + memory.hits(kind) + P[kind]
                if kind == "zombie" and reach.steps <= 1:
                    worth, steps = worth + WORTH["zombie_adjacent"], memory.hits(kind)
                yield Idea(kind, worth, steps, reach, ("do",), look=True)

    # Making and placing

    def _make(self, ways: Ways) -> Iterator[Idea]:
        for tool in self._affordable(self._memory.inventory["wood"]):
            reach = ways.to_workshop(MAKE[tool]["nearby"])
            if reach:
                yield Idea(tool, WORTH[tool], reach.steps + 1, reach, (f"make_{tool}",))

    def _affordable(self, wood: int) -> list[str]:
        """The tools still missing that could be made one after another with `wood` and all else in stock."""
        memory, tools = self._memory, []
        for tool in (tool for pair in SWORDS_AND_PICKAXES for tool in pair):
            uses = MAKE[tool]["uses"]
            if not memory.inventory[tool] and memory.has(uses) and wood >= uses["wood"]:
                wood -= uses["wood"]
                tools.append(tool)
        return tools

    def _build(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        workshop = ways.to_workshop(("table",))
        if memory.has(PLACE["table"]["uses"]) and (workshop is None or workshop.steps > P["table_far"]):
            reach = ways.to_place(PLACE["table"]["where"])
            worth, tools = self._table_worth(ways)
            if reach and worth:
                yield Idea("table", worth, reach.steps + 1 + tools, reach, ("place_table",))
        if memory.has(PLACE["furnace"]["uses"]) and workshop and not memory.done["place_furnace"]:
            reach = ways.to_place(PLACE["furnace"]["where"], lambda place: memory.workshop(place, ("table",)))
            if reach:
                yield Idea("furnace", WORTH["furnace"], reach.steps + 1, reach, ("place_furnace",))
        if memory.inventory["stone"] and not memory.done["place_stone"]:
            reach = ways.to_place(PLACE["stone"]["where"])
            if reach:
                yield Idea("place_stone", WORTH["place_stone"], reach.steps + 1, reach, ("place_stone",))

    def _table_worth(self, ways: Ways) -> tuple[float, int]:
        """What a table right here would be worth with the wood that is left, and how many tools it gives."""
        memory = self._memory
        first = 0.0 if memory.done["place_table"] else WORTH["table"]
        wood = memory.inventory["wood"] - PLACE["table"]["uses"]["wood"]
        tools = [tool for tool in self._affordable(wood) if "furnace" not in MAKE[tool]["nearby"]]
        if len(tools) > memory.inventory["wood_pickaxe"] == 0 and len(tools) < 2 and "tree" in ways.beside:
            return 0.0, 0
        if not tools:
            return (first and WORTH["table_last"] if "tree" not in ways.beside else 0.0), 0
        return first + sum(WORTH[tool] for tool in tools), len(tools)

    def _grow(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        reach = None if memory.done["place_plant"] else ways.to_place(PLACE["plant"]["where"])
        if reach and memory.inventory["sapling"]:
            yield Idea("plant", WORTH["plant"], reach.steps + 1, reach, ("place_plant",))
        elif reach and not memory.done["collect_sapling"]:
            tries = 1 / COLLECT["grass"]["probability"]
            yield Idea("sapling", WORTH["sapling"], reach.steps + tries + 1, reach, ("do",) * P["tries"], look=True)

    # Resting and exploring

    def _rest(self) -> Iterator[Idea]:
        """Sleep once as soon as it is possible, since waking up counts; later only when exhausted."""
        memory = self._memory
        missing = ITEM_MAX["energy"] - memory.inventory["energy"]
        if missing <= 0 or any(kind in ENEMIES for kind in memory.objects.values()):
            return
        if not memory.done["wake_up"]:
            yield Idea("sleep", WORTH["sleep"], 12 * missing, None, ("sleep",))
        elif memory.inventory["energy"] <= P["tired"] and memory.daylight >= P["light"] or memory.inventory["energy"] <= P["exh"]:
            yield Idea("sleep", WORTH["need"], 12, None, ("sleep",))

    def _explore(self, ways: Ways) -> Idea | None:
        """Towards the place where the most unseen land comes into view for the way there."""
        memory, best, best_score = self._memory, None, 0.0
        for place in ways.frontier:
            steps = ways.steps[place]
            score = memory.new_in_sight(place) / (steps + P["gain"])
            if steps and score > best_score:
                best, best_score = Reach(steps, place), score
        return Idea("explore", WORTH["explore"], 1, best, look=True) if best else None
