"""Small worlds made for one purpose, and playing them beside the package."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from task_app.apps.crafter.engine import native
from task_app.apps.crafter.engine.creatures import NEW_HEALTH
from task_app.apps.crafter.engine.protocol import (
    AREA,
    ARROW,
    CHUNK,
    CHUNKS,
    COW,
    PLANT,
    PLAYER_FIELDS,
    SKELETON,
    ZOMBIE,
    Engine,
    StepOutcome,
    decode_state,
    encode_state,
)  # fmt: skip
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.apps.crafter.engine.rules import ACHIEVEMENTS, ACTIONS, ITEM_INITIAL, ITEMS, MATERIAL_ID
from tests.apps.crafter.engine.oracle import OrderedPackage

ENGINES: list[Callable[..., Engine]] = [ReferenceEngine, *([] if native.available() else [native.NativeEngine])]
State = dict[str, Any]


def engine_name(engine: Callable[..., Engine]) -> str:
    return getattr(engine, "name", "")


def meadow(x: int = 32, y: int = 32, *, facing: tuple[int, int] = (0, 1), seed: int = 0, **player: int) -> State:
    """Grass everywhere, the player at (x, y), nobody else. `player`: its fields and its items by name."""
    _, key, position, *_ = np.random.RandomState(seed).get_state()
    items = dict(zip(ITEMS, ITEM_INITIAL, strict=True))
    fields = dict.fromkeys(PLAYER_FIELDS, 0) | {"x": x, "y": y, "facing_x": facing[0], "facing_y": facing[1]}
    for name, value in player.items():
        (items if name in items else fields)[name] = value
    fields["last_health"] = items["health"]
    return {
        "step": 0,
        "player": fields,
        "inventory": tuple(items.values()),
        "achievements": (0,) * len(ACHIEVEMENTS),
        "materials": bytearray([MATERIAL_ID["grass"]] * AREA * AREA),
        "objects": [],
        "chunks": [(_chunk(x, y), [0])],
        "rng_key": tuple(key.tolist()),  # pyright: ignore[reportAttributeAccessIssue]
        "rng_pos": position,
    }


def put(state: State, kind: int, x: int, y: int, *, health: int | None = None, counter: int = 0,
        facing: tuple[int, int] = (0, 0)) -> State:  # fmt: skip
    """Add a thing, the last in the order of all and of its chunk."""
    state["objects"].append((kind, x, y, NEW_HEALTH[kind] if health is None else health, counter, *facing))
    chunks = dict(state["chunks"])
    chunks.setdefault(_chunk(x, y), []).append(len(state["objects"]))
    state["chunks"] = list(chunks.items())
    return state


def lay(state: State, material: str, *places: tuple[int, int]) -> State:
    """Change the material of some tiles."""
    for x, y in places:
        state["materials"][x * AREA + y] = MATERIAL_ID[material]
    return state


def _chunk(x: int, y: int) -> int:
    return x // CHUNK * CHUNKS + y // CHUNK


def both(engine: Engine, package: OrderedPackage, actions: Iterable[int]) -> list[StepOutcome]:
    """Play both, comparing outcome and full state after every step, until death."""
    outcomes: list[StepOutcome] = []
    for action in actions:
        expected, outcome = package.play(action), engine.step(action)
        assert outcome == expected, f"step {len(outcomes)}, {ACTIONS[action]}"
        if engine.canonical_bytes() != package.canonical_bytes():
            assert difference(engine, package) == {}, f"step {len(outcomes)}, {ACTIONS[action]}"
        outcomes.append(outcome)
        if outcome[1]:
            break
    return outcomes


def difference(engine: Engine, package: OrderedPackage) -> dict[str, Any]:
    """Parts of the state in which they differ, as (engine's, package's)."""
    mine, theirs = engine.canonical_state(), package.canonical_state()
    return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


def play_scene(make: Callable[..., Engine], state: State, *actions: str) -> tuple[list[set[str]], State, list[float]]:
    """Play a scene beside the package: the events of each step by name, the state at the end, the rewards."""
    engine, package = make(), OrderedPackage()
    engine.load(encode_state(state))
    package.load(encode_state(state))
    assert engine.canonical_bytes() == package.canonical_bytes() == encode_state(state)
    outcomes = both(engine, package, [ACTIONS.index(action) for action in actions])
    events = [{ACHIEVEMENTS[index] for index in events} for _, _, events in outcomes]
    return events, engine.canonical_state(), [reward for reward, _, _ in outcomes]


def item(state: State, name: str) -> int:
    return state["inventory"][ITEMS.index(name)]


def material(state: State, x: int, y: int) -> str:
    return list(MATERIAL_ID)[state["materials"][x * AREA + y] - 1]


def at_step(data: bytes, step: int) -> bytes:
    """The state, but later: the step count decides about daylight."""
    return encode_state(decode_state(data) | {"step": step})


def meddle(data: bytes, chance: random.Random) -> bytes:
    """The state with items granted and the surroundings changed, so that in time every rule fires.

    Items get random counts, plants are nearly ripe, one creature nearby becomes another, and the player
    faces another material or a creature that dies at the next blow.
    """
    state = decode_state(data)
    state["inventory"] = (9, *(chance.choice((0, 1, 2, 5, 9)) for _ in ITEMS[1:]))
    state["player"]["last_health"] = 9
    state["objects"] = [_grown(thing, chance) for thing in state["objects"]]
    state["materials"] = bytearray(state["materials"])
    x, y = state["player"]["x"], state["player"]["y"]
    near = [index for index, thing in enumerate(state["objects"]) if abs(thing[1] - x) + abs(thing[2] - y) < 10]
    if near:
        _turn(state["objects"], chance.choice(near), chance)
    x, y = x + state["player"]["facing_x"], y + state["player"]["facing_y"]
    if 0 <= x < AREA and 0 <= y < AREA and (x, y) not in {(thing[1], thing[2]) for thing in state["objects"]}:
        if chance.random() < 0.3:
            put(state, chance.choice((COW, ZOMBIE, SKELETON)), x, y, health=1)
        else:
            lay(state, chance.choice([name for name in MATERIAL_ID if name != "lava"]), (x, y))
    return encode_state(state)


def _turn(objects: list[tuple[int, ...]], which: int, chance: random.Random) -> None:
    """Make another kind of thing of one."""
    _, x, y, *_ = objects[which]
    kind = chance.choice(list(NEW_HEALTH))
    facing = chance.choice(((-1, 0), (1, 0), (0, -1), (0, 1))) if kind == ARROW else (0, 0)
    objects[which] = (kind, x, y, NEW_HEALTH[kind], 0, *facing)


def _grown(thing: tuple[int, ...], chance: random.Random) -> tuple[int, ...]:
    return (*thing[:4], chance.randrange(295, 303), *thing[5:]) if thing[0] == PLANT else thing


def random_actions(seed: int, steps: int, *, weights: Sequence[int] | None = None) -> list[int]:
    return random.Random(seed).choices(range(len(ACTIONS)), weights, k=steps)
