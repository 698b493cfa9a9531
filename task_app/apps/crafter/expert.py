"""A scripted player that knows the rules. It sees the 9×7 view and remembers earlier views, nothing else.

Every goal of the moment becomes an `Idea`: what it is worth in achievements (with those it opens up) and
how many actions it takes. The expert follows the idea with the most worth per action, imagines its effect,
and plans on from there until the decision is full or the next action depends on a result it must see first.
It never looks at the world behind the view and never learns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from task_app.apps.crafter.expert_map import COLLECT, MAKE, MOVES, PLACE, Memory, Reach, Ways, add, apart
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ITEM_MAX
from task_app.apps.crafter.view import CrafterView

__all__ = ["ExpertAgent"]

SIGHT = 30
ENEMIES = ("zombie", "skeleton", "arrow")
TOOLS = ("wood_pickaxe", "wood_sword", "stone_pickaxe", "stone_sword", "iron_pickaxe", "iron_sword")
TOOL_WORTH = {"wood_pickaxe": 4.0, "stone_pickaxe": 2.5, "iron_pickaxe": 2.0}
W = dict(
    wood_first=1.2, wood_more=0.6, wood_iron=0.3, stone=1.0, stone_furnace=0.6, coal=1.2, iron=1.5, diamond=1.5,
    drink=1.0, cow=1.0, sapling=2.0, plant=1.0, sleep=2.5, explore=0.07, zombie=1.0, skeleton=1.0, furnace=1.5,
    table=1.0, place_stone=1.0, cow_extra=2.0, zombie_extra=3.0, skel_extra=8.0, table_far=6.0, need=4.0,
    sapling_batch=5, explore_batch=5, second_wood=4, gain=3, danger=3, near=8, near_rate=0.3, tired=3, hurt=4, missing=3, shelter=8.0,
)


@dataclass(frozen=True, slots=True)
class Idea:
    """Go to `reach`, then do `then`. `steps` counts all actions; `look`: what follows depends on the result."""

    name: str
    worth: float
    steps: float
    reach: Reach | None
    then: tuple[str, ...] = ()
    look: bool = False
    most: int = 99

    @property
    def rate(self) -> float:
        """Worth per action."""
        return self.worth / max(self.steps, 0.5)


class ExpertAgent:
    """Plays one episode."""

    def __init__(self, options: CrafterOptions, seed: int) -> None:
        self._least = options.min_actions_per_decision
        self._most = options.max_actions_per_decision
        self._random = random.Random(seed)
        self._memory = Memory()
        self.last = []

    def act(self, observation: CrafterView) -> list[str]:
        """The actions of the next decision."""
        self._memory.see(observation)
        self.last = []
        plan: list[str] = []
        while len(plan) < self._most:
            if not self._extend(plan) and len(plan) >= self._least:
                break
        return plan

    def _extend(self, plan: list[str]) -> bool:
        """Add the next idea's actions to the plan; False when one should look before going on."""
        memory = self._memory
        idea, actions = self._next()
        self.last.append(idea.name)
        for action in actions[: idea.most]:
            if plan and memory.may_be_deadly(action):
                if len(plan) < self._least:
                    plan.append("noop")
                return False
            plan.append(action)
            memory.imagine(action)
            if len(plan) >= self._most:
                return False
            if len(plan) >= self._least and self._in_danger():
                return False
        return not idea.look and len(actions) <= idea.most

    def _in_danger(self) -> bool:
        memory = self._memory
        return any(kind in ENEMIES and apart(place, memory.pos) <= W["danger"] for place, kind in memory.objects.items())

    def _next(self) -> tuple[Idea, list[str]]:
        memory = self._memory
        if memory.sleeping:
            return Idea("asleep", 1, 1, None), ["sleep"] * min(memory.rest_left, self._most)
        ways = Ways(memory, int(W["near"]))
        best = max(self._ideas(ways), key=lambda idea: idea.rate)
        if best.rate < W["near_rate"]:
            ways = Ways(memory, SIGHT)
            best = max(self._ideas(ways), key=lambda idea: idea.rate)
            if best.rate < W["explore"]:
                best = next(self._exploring(ways), best)
        actions = (ways.actions(best.reach) if best.reach else []) + list(best.then)
        return best, actions or ["noop"]

    def _ideas(self, ways: Ways) -> Iterator[Idea]:
        yield Idea("wait", 0.0, 1, None, ("noop",), look=True)
        yield from self._collecting(ways)
        yield from self._hunting(ways)
        yield from self._crafting(ways)
        yield from self._placing(ways)
        yield from self._planting(ways)
        yield from self._resting(ways)

    # -- gathering

    def _wood_worth(self) -> float:
        inv, have = self._memory.inventory, self._memory.inventory["wood"]
        table = PLACE["table"]["uses"]["wood"]
        if not inv["wood_pickaxe"] or not inv["wood_sword"]:
            wanted = (0 if self._memory.benches else table) + (not inv["wood_pickaxe"]) + (not inv["wood_sword"])
            if have < wanted:
                return W["wood_first"]
        if have < table + (not inv["stone_pickaxe"]) + (not inv["stone_sword"]) and not (
            inv["stone_pickaxe"] and inv["stone_sword"]
        ):
            return W["wood_more"]
        missing = (not inv["iron_pickaxe"]) + (not inv["iron_sword"])
        if missing and have < missing + table:
            return W["wood_iron"]
        return 0.0

    def _stone_worth(self) -> float:
        inv, done, have = self._memory.inventory, self._memory.done, self._memory.inventory["stone"]
        tools = (not inv["stone_pickaxe"]) + (not inv["stone_sword"])
        if have < tools or not done["collect_stone"] or (not have and not done["place_stone"]):
            return W["stone"]
        if not done["place_furnace"] and have < PLACE["furnace"]["uses"]["stone"] + tools:
            return W["stone_furnace"]
        return 0.1 if have < 5 else 0.0

    def _wishes(self) -> Iterator[tuple[str, float]]:
        inv, done = self._memory.inventory, self._memory.done
        tools = (not inv["iron_pickaxe"]) + (not inv["iron_sword"])
        yield "tree", self._wood_worth()
        yield "stone", self._stone_worth()
        yield "coal", W["coal"] if not done["collect_coal"] else 0.3 if inv["coal"] < tools else 0.0
        yield "iron", W["iron"] if not done["collect_iron"] else 0.8 if inv["iron"] < tools else 0.0
        yield "diamond", W["diamond"] if not done["collect_diamond"] else 0.0
        yield "water", W["drink"] if not done["collect_drink"] else self._need("drink")
        yield "ripe_plant", 1.5 if not done["eat_plant"] else self._need("food")

    def _need(self, vital: str) -> float:
        level = self._memory.inventory[vital]
        return W["need"] * (5 - level) / 4 if level <= 4 else 0.1 if level <= 6 else 0.0

    def _collecting(self, ways: Ways) -> Iterator[Idea]:
        for kind, worth in self._wishes():
            reach = ways.beside.get(kind)
            if reach and worth > 0 and (kind == "ripe_plant" or self._memory.can_collect(kind)):
                yield Idea(kind, worth, reach.steps + 1, reach, ("do",))

    def _hunting(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        cow = W["cow"] if not memory.done["eat_cow"] else self._need("food")
        zombie = W["zombie"] if not memory.done["defeat_zombie"] else 0.2
        skeleton = W["skeleton"] if not memory.done["defeat_skeleton"] else 0.0
        for kind, worth, extra in (("cow", cow, W["cow_extra"]), ("zombie", zombie, W["zombie_extra"]), ("skeleton", skeleton, W["skel_extra"])):
            reach = ways.beside.get(kind)
            if reach and worth:
                hits = memory.hits(kind)
                steps = reach.steps + hits + extra
                if kind == "zombie" and reach.steps <= 1:
                    worth, steps = worth + 1, hits
                yield Idea(kind, worth, steps, reach, ("do",), look=True)

    # -- making and placing

    def _tool_worth(self, tool: str) -> float:
        return 0.0 if self._memory.inventory[tool] else TOOL_WORTH.get(tool, 1.0)

    def _crafting(self, ways: Ways) -> Iterator[Idea]:
        for tool in TOOLS:
            worth = self._tool_worth(tool)
            if worth and self._memory.has(MAKE[tool]["uses"]):
                reach = ways.to_workshop(MAKE[tool]["nearby"])
                if reach:
                    yield Idea(tool, worth, reach.steps + 1, reach, (f"make_{tool}",))

    def _table_worth(self) -> float:
        """What a table here would open up with the wood that would be left."""
        memory = self._memory
        wood = memory.inventory["wood"] - PLACE["table"]["uses"]["wood"]
        worth, count = 0.0, 0
        for tool in TOOLS:
            uses = MAKE[tool]["uses"]
            if self._tool_worth(tool) and "furnace" not in MAKE[tool]["nearby"] and wood >= 1 and memory.has(uses):
                wood -= 1
                worth += self._tool_worth(tool)
                count += 1
        if not memory.inventory["wood_sword"] and count < 2:
            return 0.0
        if not memory.done["place_table"]:
            worth += W["table"]
        return worth / (count + 1) * 2 if count else 0.0

    def _placing(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        near = ways.to_workshop(("table",))
        if memory.has(PLACE["table"]["uses"]) and (near is None or near.steps > W["table_far"]):
            reach = ways.to_place(PLACE["table"]["where"])
            worth = self._table_worth()
            if not worth and not memory.done["place_table"] and "tree" not in ways.beside:
                worth = 0.5
            if reach and worth:
                yield Idea("table", worth, reach.steps + 2, reach, ("place_table",))
        if memory.has(PLACE["furnace"]["uses"]) and near and not memory.done["place_furnace"]:
            reach = ways.to_place(PLACE["furnace"]["where"], lambda place: memory.workshop(place, ("table",)))
            if reach:
                yield Idea("furnace", W["furnace"], reach.steps + 1, reach, ("place_furnace",))
        if memory.inventory["stone"] and not memory.done["place_stone"]:
            reach = ways.to_place(PLACE["stone"]["where"])
            if reach:
                yield Idea("place_stone", W["place_stone"], reach.steps + 1, reach, ("place_stone",))

    def _planting(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        if memory.done["place_plant"] and (memory.done["eat_plant"] or True):
            return
        reach = ways.to_place(PLACE["plant"]["where"])
        if reach is None:
            return
        if memory.inventory["sapling"]:
            yield Idea("plant", W["plant"], reach.steps + 1, reach, ("place_plant",))
        elif not memory.done["collect_sapling"]:
            chance = COLLECT["grass"]["probability"]
            batch = int(W["sapling_batch"])
            yield Idea("sapling", W["sapling"], reach.steps + 1 / chance + 1, reach, ("do",) * batch, look=True)

    # -- the rest

    def _resting(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        missing = ITEM_MAX["energy"] - memory.inventory["energy"]
        enemies = any(kind in ENEMIES for kind in memory.objects.values())
        if missing <= 0:
            return
        if not memory.done["wake_up"] and not enemies:
            yield Idea("sleep", W["sleep"], 12 * missing, None, ("sleep",))
        elif memory.inventory["energy"] <= W["tired"] or (memory.inventory["health"] <= W["hurt"] and missing >= W["missing"]):
            if memory.closed_in(memory.pos):
                yield Idea("sleep", W["need"], 1, None, ("sleep",))
            elif idea := self._shelter(ways):
                yield idea
            elif memory.inventory["energy"] <= 2 and not enemies:
                yield Idea("sleep", W["need"], 12, None, ("sleep",))

    def _shelter(self, ways: Ways) -> Idea | None:
        memory = self._memory
        if not memory.can_collect("stone"):
            return None
        if memory.inventory["stone"]:
            for reach in ways.places():
                if reach.steps > 6: break
                ahead = add(reach.place, reach.facing)
                if memory.free(ahead) and memory.closed_in(reach.place, ahead):
                    return Idea("shelter", W["shelter"], reach.steps + 1, reach, ("place_stone",))
        for place in ways.order:
            for step in MOVES:
                first = add(place, step)
                second = add(first, step)
                if self._solid(first, place, second) and self._solid(second, first):
                    dig = [MOVES[step]] if memory.free(first) else ["do", MOVES[step]]
                    dig += [MOVES[step]] if memory.free(second) else ["do", MOVES[step]]
                    reach = Reach(ways.steps[place] + 1, place, None if memory.free(first) else step)
                    return Idea("dig_in", W["shelter"], reach.steps + 6, reach, tuple(dig))
        return None

    def _solid(self, place, *but) -> bool:
        memory = self._memory
        if memory.clearing(place) not in ((), ("do",)):
            return False
        for step in MOVES:
            side = add(place, step)
            if side not in but and (memory.free(side) or memory.kind(side) is None or side in memory.objects):
                return False
        return True

    def _exploring(self, ways: Ways) -> Iterator[Idea]:
        memory = self._memory
        best, best_score = None, 0.0
        for place in ways.frontier:
            steps = ways.steps[place]
            gain = memory.new_in_sight(place)
            score = gain / (steps + W["gain"])
            if steps and score > best_score:
                best, best_score = place, score
        if best is not None:
            reach = Reach(ways.steps[best], best)
            yield Idea("explore", W["explore"], 1, reach, most=int(W["explore_batch"]))
