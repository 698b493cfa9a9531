"""`CrafterEnv`: names, ends, snapshots, the shared worlds, and the choice of an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from task_app.apps.crafter.engine import ENGINE, MAX_SEED, CrafterEnv, choice, make_engine, native, which_engine
from task_app.apps.crafter.engine import env as env_module
from task_app.apps.crafter.engine.protocol import PLANT, RIPE_GROWN, Engine, encode_state
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.apps.crafter.rules import ACHIEVEMENTS, ACTIONS, MATERIALS
from task_app.apps.crafter.view import SeenObject
from task_app.core.errors import ConfigError, EnvError
from task_app.core.task import Snapshot
from tests.apps.crafter.engine.oracle import OrderedPackage
from tests.apps.crafter.engine.scenes import lay, meadow, put, random_actions

Make = Callable[..., Engine]


def staged(make: Make, state: dict[str, Any], **options: Any) -> CrafterEnv:
    """An environment in the middle of a scene."""
    engine = make()
    env = CrafterEnv(engine=engine, **options)
    env.reset(0)
    engine.load(encode_state(state))
    return env


def test_an_episode_is_the_packages(make: Make) -> None:
    env, oracle = CrafterEnv(engine=make()), OrderedPackage()
    oracle.reset_to(5)
    view = env.reset(5)
    assert view.step == 0
    for action in random_actions(5, 200):
        result, (reward, dead, events) = env.step(ACTIONS[action]), oracle.play(action)
        player = oracle._player
        assert (result.reward, result.terminated, result.truncated) == (reward, dead, False)
        assert result.events == tuple(ACHIEVEMENTS[index] for index in events)
        assert result.observation.inventory == player.inventory
        assert result.observation.achievements == player.achievements
        assert result.observation.daylight == oracle._world.daylight
        assert result.observation.offset == (player.pos[0] - 32, player.pos[1] - 32)
        around = [(x, y) for x in range(-4, 5) for y in range(-3, 4)]
        assert [result.observation.material(x, y) for x, y in around] == [
            oracle._world[player.pos[0] + x, player.pos[1] + y][0] for x, y in around
        ]
        if dead:
            break


def test_names_of_things_in_view(make: Make) -> None:
    state = put(put(meadow(), PLANT, 33, 32, counter=RIPE_GROWN), PLANT, 31, 32)
    view = staged(make, state).step("noop").observation
    assert view.objects == (SeenObject("ripe_plant", 1, 0), SeenObject("plant", -1, 0))
    assert view.thing(1, 0) == "ripe_plant"


def test_death_terminates_and_time_truncates(make: Make) -> None:
    dying = staged(make, lay(meadow(), "lava", (33, 32)), max_steps=1)
    result = dying.step("move_right")
    assert (result.terminated, result.truncated) == (True, False)
    late = staged(make, meadow(), max_steps=2)
    late.step("noop")
    result = late.step("noop")
    assert (result.terminated, result.truncated) == (False, True)
    for env in (dying, late):
        with pytest.raises(EnvError, match="after the end"):
            env.step("noop")
        env.reset(0)
        env.step("noop")


def test_misuse_is_named(make: Make) -> None:
    env = CrafterEnv(engine=make())
    for call in (lambda: env.step("noop"), env.snapshot, env.survey):
        with pytest.raises(EnvError, match="reset"):
            call()
    for seed in (-1, MAX_SEED, True, 1.5, "3"):
        with pytest.raises(EnvError, match="seed must be an integer"):
            env.reset(seed)  # pyright: ignore[reportArgumentType]
    env.reset(0)
    with pytest.raises(EnvError, match="unknown Crafter action 'fly'"):
        env.step("fly")


def test_snapshots_fork_and_remember_the_end(make: Make) -> None:
    env, other = CrafterEnv(engine=make(), max_steps=30), CrafterEnv(engine=make(), max_steps=30)
    env.reset(9)
    for action in random_actions(9, 10):
        env.step(ACTIONS[action])
    saved = env.snapshot()
    view = other.restore(saved)
    assert view == env.restore(saved)
    for action in random_actions(1, 20):
        assert env.step(ACTIONS[action]) == other.step(ACTIONS[action])
    ended = env.snapshot()
    other.restore(saved)
    other.restore(ended)
    with pytest.raises(EnvError, match="after the end"):
        other.step("noop")


def test_a_snapshot_needs_its_own_engine_and_night_draws(make: Make) -> None:
    env = CrafterEnv(engine=make())
    env.reset(0)
    saved = env.snapshot()
    assert saved.engine == f"{ENGINE}/{env._engine.name}"
    with pytest.raises(EnvError, match="crafter-0/old"):
        env.restore(Snapshot("crafter-0/old", saved.payload))
    other = CrafterEnv(engine=make("none"))
    with pytest.raises(EnvError, match="night_draws='stock'"):
        other.restore(saved)
    for payload in (b"", saved.payload[:50]):
        with pytest.raises(EnvError, match="snapshot"):
            env.restore(Snapshot(saved.engine, payload))


def test_survey_counts_tiles_and_finds_the_nearest(make: Make) -> None:
    facts = staged(make, lay(meadow(), "water", (0, 32), (40, 30))).survey()
    assert set(facts) == set(MATERIALS)
    assert facts["water"] == {"tiles": 2, "nearest": 10}
    assert facts["grass"] == {"tiles": 64 * 64 - 2, "nearest": 0}
    assert facts["iron"] == {"tiles": 0, "nearest": None}


class CountingEngine(ReferenceEngine):
    made: list[int]

    def reset(self, seed: int) -> None:
        self.made.append(seed)
        super().reset(seed)


def test_a_group_shares_one_generation_of_its_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_module, "_WORLDS", env_module._Worlds(2))
    monkeypatch.setattr(CountingEngine, "made", [], raising=False)
    views: list[Any] = []
    threads = [
        threading.Thread(target=lambda: views.append(CrafterEnv(engine=CountingEngine()).reset(8))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CountingEngine.made == [8]
    assert all(view == views[0] for view in views)
    env = CrafterEnv(engine=CountingEngine())
    for seed in (8, 1, 2, 8):
        env.reset(seed)
    assert CountingEngine.made == [8, 1, 2, 8]


# Which engine


def test_the_native_engine_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASK_APP_ENGINE", raising=False)
    monkeypatch.delenv("TASK_APP_REQUIRE_NATIVE", raising=False)
    monkeypatch.setattr(native, "available", lambda: "")
    assert which_engine()[0] == "native"


def test_an_engine_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASK_APP_ENGINE", "reference")
    assert which_engine() == ("reference", "TASK_APP_ENGINE=reference")
    assert make_engine("none").name == "reference"
    monkeypatch.setenv("TASK_APP_ENGINE", "quick")
    with pytest.raises(ConfigError, match="reference or native, got 'quick'"):
        make_engine()


@pytest.mark.parametrize(
    "variables", [{"TASK_APP_ENGINE": "native"}, {"TASK_APP_REQUIRE_NATIVE": "1", "TASK_APP_ENGINE": ""}]
)
def test_a_required_native_engine_that_is_missing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setattr(native, "available", lambda: "the extension is not built")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvError, match="required, but the extension is not built"):
        make_engine()


@pytest.mark.parametrize("built", [False, True])
def test_without_it_the_reference_plays_and_a_stale_one_is_reported(
    monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    monkeypatch.delenv("TASK_APP_ENGINE", raising=False)
    monkeypatch.delenv("TASK_APP_REQUIRE_NATIVE", raising=False)
    monkeypatch.setattr(native, "available", lambda: "older than its sources")
    monkeypatch.setattr(choice, "find_spec", lambda name: object() if built else None)
    assert which_engine() == ("reference", "older than its sources")
    if built:
        with pytest.warns(RuntimeWarning, match="slower reference engine: older"):
            assert make_engine().name == "reference"
    else:
        assert make_engine().name == "reference"
