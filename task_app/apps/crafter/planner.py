"""A scripted teacher that searches: it tries continuations of the game on a copy of the world and plays the best one.

A continuation is the expert's play with other worths for its ideas, another taste for where to explore and
perhaps a detour at the start. The planner keeps the best continuation found so far, plays its first decision, and
goes on searching from where that leads: each search varies the best one's worths or draws new ones.
It knows what the world hides, the expert whose play it chooses among does not; the planner gives actions alone,
and nothing it learned from a copy goes into any text. The world it plans for is only ever read by `snapshot`.
"""

from __future__ import annotations

import copy
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from task_app.apps.crafter.engine import CrafterEnv
from task_app.apps.crafter.expert import ExpertAgent, Idea
from task_app.apps.crafter.expert_map import MAKE, MOVES, PLACE, Memory, Reach, Ways, add
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.rules import ITEM_MAX, VITALS
from task_app.apps.crafter.view import CrafterView
from task_app.core.task import Environment, Snapshot

__all__ = ["Planner", "play_planned"]

HORIZON = 100
"""How many steps ahead a continuation is played."""
EFFORT = 30
"""Steps tried on the copy for each step of the real game."""
FIRST_EFFORT = 10
"""The first decision, from which all others follow, is searched as if it were so many steps long."""

SOONER = 0.3  # of two continuations with the same achievements the one that has them sooner
DEATH, HEALTH, OPENED = 2.0, 0.1, 0.15
"""What dying costs, and what full vitals and each thing in stock for a missing achievement are worth at the end."""
SPREADS = (0.3, 0.6, 1.0)
"""How far worths are varied (of their logarithm)."""
COMPASS = 0.5
"""How far the direction to explore in is varied."""
FRESH, DETOUR = 0.15, 0.3
"""The share of tries that start from the expert's own worths, and the share that begin with a detour."""
LONGEST_DETOUR = 4
DETOURS = (*MOVES.values(), "do", "noop", "sleep")
PATIENCE = 2
"""A continuation this many achievements behind the best one at the same step is given up."""

GOALS = (
    "tree", "stone", "coal", "iron", "diamond", "water", "ripe_plant", "cow", "zombie", "skeleton", "grass", "sleep",
    *(f"make_{name}" for name in MAKE), *(f"place_{name}" for name in PLACE),
)  # fmt: skip
"""What an idea of the expert is about: the thing it acts on, or else its action."""


@dataclass(frozen=True)
class Taste:
    """What a continuation likes: factors on the expert's worths by goal, and a direction to explore in."""

    factors: Mapping[str, float]
    compass: tuple[float, float] = (0.0, 0.0)

    def varied(self, chance: random.Random) -> Taste:
        """Another taste near this one."""
        spread = chance.choice(SPREADS)
        factors = {goal: self.factors[goal] * chance.lognormvariate(0, spread) for goal in GOALS}
        x, y = (way + chance.gauss(0, COMPASS) for way in self.compass)
        return Taste(factors, (x, y))


PLAIN = Taste(dict.fromkeys(GOALS, 1.0))


def copied(memory: Memory) -> Memory:
    """A memory of its own to go on with. Good right after `see`, when nothing is imagined yet."""
    other = copy.copy(memory)
    other.tiles, other.objects, other.benches = dict(memory.tiles), dict(memory.objects), dict(memory.benches)
    other.inventory, other.done = dict(memory.inventory), dict(memory.done)
    return other


class TastefulExpert(ExpertAgent):
    """The expert with a taste of its own and, at first, a detour. Goes on from the memory it is given."""

    def __init__(
        self, options: CrafterOptions, seed: int, memory: Memory, taste: Taste, detour: tuple[str, ...] = ()
    ) -> None:
        super().__init__(options, seed)
        self._memory = memory
        self._taste = taste
        self._detour = list(detour)

    def _next(self) -> tuple[list[str], bool]:
        if self._detour and not self._memory.sleeping:
            return [self._detour.pop(0)], False
        return super()._next()

    def _ideas(self, ways: Ways) -> Iterator[Idea]:
        factors = self._taste.factors
        for idea in super()._ideas(ways):
            yield replace(idea, worth=idea.worth * factors.get(self._goal(idea), 1.0))

    def _goal(self, idea: Idea) -> str:
        """What the idea is about, one of GOALS."""
        action, reach = idea.then[0], idea.reach
        if action == "do" and reach and reach.facing:
            return self._memory.kind(add(reach.place, reach.facing)) or action
        return action

    def _explore(self, ways: Ways) -> Idea | None:
        """As the expert does, places in the direction one likes counting for more."""
        best, best_score = super()._explore(ways), 0.0
        if best is None:
            return None
        plain, (x, y), (x0, y0) = best, self._taste.compass, self._memory.pos
        for place in ways.frontier:
            steps = ways.steps[place]
            liking = ((place[0] - x0) * x + (place[1] - y0) * y) / max(steps, 1)
            score = self._memory.new_in_sight(place) / (steps + 3) * math.exp(max(-2.0, min(2.0, liking)))
            if steps and score > best_score:
                best, best_score = replace(plain, reach=Reach(steps, place)), score
        return best


@dataclass
class Continuation:
    """One future as it went on the copy. It can be played on from where it ends.

    `gained` holds the step of each first achievement; `checks` the world after each decision.
    """

    agent: TastefulExpert
    taste: Taste
    view: CrafterView
    end: Snapshot
    decisions: list[list[str]] = field(default_factory=list)
    checks: list[bytes] = field(default_factory=list)
    gained: list[int] = field(default_factory=list)
    dead: bool = False
    over: bool = False

    def gained_by(self, step: int) -> int:
        """How many first achievements it had by then."""
        return bisect_right(self.gained, step)

    def value(self, start: int, steps: int) -> float:
        """How good it is for a player who stands at step `start` of a game of so many steps."""
        soon = [1 - SOONER * (step - start) / HORIZON for step in self.gained if start < step <= steps]
        if self.dead:
            return sum(soon) - DEATH
        health = sum(self.view.inventory[vital] for vital in VITALS) / sum(ITEM_MAX[vital] for vital in VITALS)
        return sum(soon) + HEALTH * health + (OPENED * opened(self.view) if self.view.step < steps else 0)


def opened(view: CrafterView) -> float:
    """How much of what missing achievements use up is in stock, one for each that has all of it."""
    total = 0.0
    for name, uses in _USES.items():
        if not view.achievements[name]:
            total += sum(min(1, view.inventory[item] / count) for item, count in uses.items()) / len(uses)
    return total


_USES: Mapping[str, Mapping[str, int]] = {
    f"{verb}_{name}": rule["uses"] for verb, rules in (("make", MAKE), ("place", PLACE)) for name, rule in rules.items()
}


class Planner:
    """Plans one episode. The same seed and the same world give the same decisions.

    `steps`: how long the episode will be, where it is known; nothing counts after that.
    """

    def __init__(self, options: CrafterOptions, seed: int, steps: int | None = None, effort: float = EFFORT) -> None:
        self._options = options
        self._random = random.Random(seed)
        self._scratch = CrafterEnv(max_steps=options.max_steps, night_draws=options.night_draws)
        self._steps = min(steps or options.max_steps, options.max_steps)
        self._memory = Memory()
        self._effort = effort
        self._credit = effort * FIRST_EFFORT
        self._best: Continuation | None = None
        self._expected = b""

    def plan(self, env: Environment) -> list[str]:
        """The next decision's actions for the world as `env` has it now, which is not moved.

        Raises EnvError where there is none: before the first reset, and after the end.
        """
        here = env.snapshot()
        view: CrafterView = self._scratch.restore(here)
        self._memory.see(view)
        if self._best and (not self._best.decisions or self._expected != here.payload):
            self._best = None  # the game did not go on as planned
        best = self._search(here, view, self._best or self._new(here, view, PLAIN))
        self._best, self._expected = best, best.checks.pop(0)
        actions = best.decisions.pop(0)
        self._credit += self._effort * len(actions)
        return actions

    def _search(self, here: Snapshot, view: CrafterView, best: Continuation) -> Continuation:
        """The best continuation that the credit allows to find, `best` included."""
        start = view.step
        goal = max(start + 1, min(start + HORIZON, self._steps))
        self._play(best, goal)
        value = best.value(start, self._steps)
        while self._credit > 0:
            base = PLAIN if self._random.random() < FRESH else best.taste
            other = self._new(here, view, base.varied(self._random), self._some_detour())
            self._play(other, goal, best)
            new_value = other.value(start, self._steps)
            if new_value > value:
                best, value = other, new_value
        return best

    def _some_detour(self) -> tuple[str, ...]:
        """What to begin with before the expert takes over, mostly nothing."""
        if self._random.random() >= DETOUR:
            return ()
        return tuple(self._random.choices(DETOURS, k=self._random.randint(1, LONGEST_DETOUR)))

    def _new(self, here: Snapshot, view: CrafterView, taste: Taste, detour: tuple[str, ...] = ()) -> Continuation:
        agent = TastefulExpert(self._options, self._random.getrandbits(32), copied(self._memory), taste, detour)
        return Continuation(agent, taste, view, here)

    def _play(self, future: Continuation, goal: int, rival: Continuation | None = None) -> None:
        """Go on with a continuation to step `goal`, or until it has fallen too far behind its rival."""
        if future.over or future.view.step >= goal:
            return
        self._scratch.restore(future.end)
        while not future.over and future.view.step < goal:
            before = future.view.step
            self._play_decision(future)
            self._credit -= future.view.step - before
            step = future.view.step
            if rival and rival.gained_by(step) - future.gained_by(step) > PATIENCE:
                break
        future.end = self._scratch.snapshot()

    def _play_decision(self, future: Continuation) -> None:
        """Its expert's next decision, on the copy as it stands."""
        actions = future.agent.act(future.view)
        for action in actions:
            done = future.view.achievements
            result = self._scratch.step(action)
            future.view = result.observation
            future.gained += [future.view.step for name in set(result.events) if not done[name]]
            if result.terminated or result.truncated:
                future.over, future.dead = True, result.terminated
                break
        future.decisions.append(actions)
        future.checks.append(self._scratch.snapshot().payload)


def play_planned(
    seed: int, options: CrafterOptions, steps: int, effort: float = EFFORT
) -> tuple[list[list[str]], CrafterView]:
    """One planned episode of at most `steps` steps: its decisions, and its last view."""
    env = CrafterEnv(max_steps=options.max_steps, night_draws=options.night_draws)
    planner = Planner(options, seed, steps, effort)
    view, decisions = env.reset(seed), []
    while view.step < steps:
        decisions.append(planner.plan(env))
        for action in decisions[-1][: steps - view.step]:
            result = env.step(action)
            view = result.observation
            if result.terminated or result.truncated:
                return decisions, view
    return decisions, view
