"""Full state, reward, death, events and random numbers equal the ordered package's after every step.

Run by default: a few seeds. With `-m long`: 60 seeds × 500 random steps, 60 × 1,000 with items granted so that
every rule fires, and 40 expert episodes of 300 steps. Each compares after every step.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_app.apps.crafter.engine import CrafterEnv
from task_app.apps.crafter.engine.protocol import Engine, decode_state, encode_state
from task_app.apps.crafter.engine.rules import ACHIEVEMENTS, ACTIONS
from task_app.apps.crafter.expert import ExpertAgent
from task_app.apps.crafter.options import CrafterOptions
from tests.apps.crafter.engine.oracle import OrderedPackage, first_state
from tests.apps.crafter.engine.scenes import at_step, both, meddle, random_actions

MEDDLE_EVERY = 12
BUSY = tuple(6 if name == "do" else 1 if name in ("noop", "sleep") else 2 for name in ACTIONS)


def revived(data: bytes) -> bytes:
    """The state with the player in full health: a game goes on after death only like this."""
    state = decode_state(data)
    state["inventory"] = (9, *state["inventory"][1:])
    state["player"]["last_health"] = 9
    return encode_state(state)


def play_random(make: Callable[..., Engine], seed: int, steps: int, *, start: int = 0, night: str = "stock") -> int:
    engine, package = make(night), OrderedPackage(night_draws=night)
    state = at_step(first_state(seed), start)
    engine.load(state)
    package.load(state)
    actions, done = random_actions(seed, steps), 0
    while done < steps:
        done += len(both(engine, package, actions[done:]))
        state = revived(package.canonical_bytes())
        engine.load(state)
        package.load(state)
    return done


def play_granted(make: Callable[..., Engine], seed: int, steps: int) -> set[int]:
    """Play on with a changed state every few steps; the achievements that occurred."""
    engine, package, chance = make(), OrderedPackage(), random.Random(seed)
    engine.reset(seed)
    package.reset_to(seed)
    actions, occurred = random_actions(seed, steps, weights=BUSY), set()
    for start in range(0, steps, MEDDLE_EVERY):
        outcomes = both(engine, package, actions[start : start + MEDDLE_EVERY])
        occurred.update(*(events for _, _, events in outcomes))
        state = meddle(package.canonical_bytes(), chance)
        engine.load(state)
        package.load(state)
    return occurred


def expert_actions(seed: int, steps: int) -> list[int]:
    """What the expert does in a world until it dies, at most `steps` actions."""
    options = CrafterOptions()
    env, agent, actions = CrafterEnv(), ExpertAgent(options, seed), []
    view = env.reset(seed)
    while len(actions) < steps:
        for name in agent.act(view):
            actions.append(ACTIONS.index(name))
            result = env.step(name)
            view = result.observation
            if result.terminated:
                return actions
    return actions[:steps]


def play_expertly(make: Callable[..., Engine], seed: int, steps: int) -> set[int]:
    """An expert's episode beside the package; the achievements that occurred."""
    engine, package = make(), OrderedPackage()
    engine.reset(seed)
    package.reset_to(seed)
    outcomes = both(engine, package, expert_actions(seed, steps))
    return set[int]().union(*(events for _, _, events in outcomes))


@pytest.mark.parametrize("seed", range(2))
def test_expert_play(make: Callable[..., Engine], seed: int) -> None:
    assert len(play_expertly(make, seed, 200)) > 10


@pytest.mark.parametrize("seed", range(6))
def test_random_play(make: Callable[..., Engine], seed: int) -> None:
    assert play_random(make, seed, 300) == 300


@pytest.mark.parametrize("night", ["stock", "none"])
def test_a_night_with_and_without_its_draws(make: Callable[..., Engine], night: str) -> None:
    assert play_random(make, 3, 150, start=140, night=night) == 150


def test_play_with_everything_granted_in_which_every_achievement_occurs(make: Callable[..., Engine]) -> None:
    occurred = set[int]().union(*(play_granted(make, seed, 500) for seed in range(4)))
    assert [name for index, name in enumerate(ACHIEVEMENTS) if index not in occurred] == []


def test_the_oracle_draws_at_night_what_a_rendered_game_draws() -> None:
    """The other tests take the night's draws without a picture; here stock's own rendering makes them."""
    drawn, skipped = OrderedPackage(picture=True), OrderedPackage()
    for package in (drawn, skipped):
        package.reset_to(3)
    for step, action in enumerate(random_actions(3, 185)):
        assert drawn.play(action) == skipped.play(action)
        assert drawn.canonical_bytes() == skipped.canonical_bytes(), step
    assert drawn._world.daylight < 0.5


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 3), dusk=st.booleans(), actions=st.lists(st.integers(0, len(ACTIONS) - 1), max_size=60))
def test_any_actions(make: Callable[..., Engine], seed: int, dusk: bool, actions: list[int]) -> None:
    engine, package = make(), OrderedPackage()
    state = at_step(first_state(seed), 140 if dusk else 0)
    engine.load(state)
    package.load(state)
    both(engine, package, actions)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_long_random_play(make: Callable[..., Engine], seed: int) -> None:
    assert play_random(make, seed, 500) == 500


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 260))
def test_long_play_with_everything_granted(make: Callable[..., Engine], seed: int) -> None:
    assert len(play_granted(make, seed, 1_000)) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_long_expert_play(make: Callable[..., Engine], seed: int) -> None:
    assert len(play_expertly(make, seed, 300)) > 10


PLAY_AND_HASH = """
import random
from task_app.apps.crafter.engine import native
from task_app.apps.crafter.engine.reference import ReferenceEngine
for make in [ReferenceEngine] + [native.NativeEngine] * (not native.available()):
    engine, chance = make(), random.Random(5)
    engine.reset(11)
    for _ in range(200):
        if engine.step(chance.randrange(17))[1]:
            break
    print(engine.state_hash())
"""


def test_two_processes_with_two_hash_seeds_reach_the_same_state() -> None:
    hashes = set()
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        run = subprocess.run(
            [sys.executable, "-c", PLAY_AND_HASH], env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=120
        )
        hashes.update(run.stdout.split())
    assert len(hashes) == 1
