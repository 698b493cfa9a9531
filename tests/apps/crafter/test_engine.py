"""The world is stock Crafter's, step for step, once stock Crafter keeps its creatures in order.

The oracle is the package's own `Env`, pictures and their night noise included; only the sets its chunks
are kept in, whose order is that of memory addresses, are replaced here by lists.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crafter
import numpy as np
import pytest
from crafter import engine as stock_engine
from crafter import objects

from task_app.apps.crafter import engine as our_engine
from task_app.apps.crafter.engine import CrafterEnv
from task_app.apps.crafter.rules import ACHIEVEMENTS, ACTIONS, ITEM_MAX, VITALS
from task_app.core.errors import EnvError
from task_app.core.task import Snapshot

OurEnv = Any
"""A `CrafterEnv` whose inside is looked at."""


class Members(list):
    """A chunk's members in the order they came."""

    add = list.append


class OrderedWorld(stock_engine.World):
    def reset(self, seed=None):
        super().reset(seed)
        self._chunks = defaultdict(Members)


@pytest.fixture
def stock(monkeypatch):
    """Make a stock environment of the given seed, reset, with chunks in insertion order."""

    def make(seed: int, **arguments: Any) -> Any:
        monkeypatch.setattr(stock_engine, "World", OrderedWorld)
        env = crafter.Env(seed=seed, **arguments)
        env.reset()
        return env

    return make


def creature(thing: Any) -> tuple[Any, ...]:
    """Everything an object of the world is made of, as plain values."""
    kept = ("health", "cooldown", "reload", "grown", "sleeping", "_hunger", "_thirst", "_fatigue", "_recover")
    values = tuple(getattr(thing, name, None) for name in kept)
    facing = tuple(getattr(thing, "facing", ()))
    return type(thing).__name__, *map(int, thing.pos), facing, *values


def same_state(ours: OurEnv, stock_env: Any) -> None:
    """Assert that the whole state of both is equal, the random numbers to come included."""
    game, world = ours._game, stock_env._world
    assert np.array_equal(game._world._mat_map, world._mat_map)
    assert [creature(thing) for thing in game._world.objects] == [creature(thing) for thing in world.objects]
    assert game._player.inventory == stock_env._player.inventory
    assert game._player.achievements == stock_env._player.achievements
    assert game._world.daylight == world.daylight
    first, second = tuple(game._world.random.get_state()), tuple(world.random.get_state())
    assert first[2:] == second[2:]
    assert np.array_equal(first[1], second[1])


def play_both(ours: OurEnv, stock_env: Any, actions, granted: Mapping[str, int] | None = None):
    """Play the same actions in both, comparing everything at every step; gives our results."""
    for action in actions:
        if granted:
            for player in (ours._game._player, stock_env._player):
                player.inventory.update(granted)
                player._last_health = player.health
            stock_env._last_health = stock_env._player.health
        result = ours.step(action)
        _, reward, done, info = stock_env.step(ACTIONS.index(action))
        assert result.reward == reward
        assert (result.terminated or result.truncated) == done
        assert result.terminated == (info["discount"] == 0)
        assert dict(result.observation.inventory) == info["inventory"]
        assert dict(result.observation.achievements) == info["achievements"]
        assert result.observation.offset == tuple(info["player_pos"] - 32)
        same_state(ours, stock_env)
        yield result
        if done:
            return


def beside(player: Any, x: int, y: int) -> tuple[int, int]:
    return int(player.pos[0]) + x, int(player.pos[1]) + y


def random_actions(seed: int, steps: int) -> list[str]:
    return random.Random(seed).choices(ACTIONS, k=steps)


def started(seed: int, **options: Any) -> OurEnv:
    env = CrafterEnv(**options)
    env.reset(seed)
    return env


class TestEqualToStock:
    @pytest.mark.parametrize("seed", [0, 5, 17, 2**31 - 2])
    def test_random_play_until_the_end_or_350_steps(self, stock, seed):
        ours, theirs = started(seed), stock(seed)
        same_state(ours, theirs)
        results = list(play_both(ours, theirs, random_actions(seed, 350)))
        assert len(results) > 100

    @pytest.mark.parametrize("seed", [3, 21])
    def test_a_well_fed_player_through_a_whole_night(self, stock, seed):
        ours, theirs = started(seed), stock(seed)
        fed = dict.fromkeys(VITALS, 9)
        daylight = [r.observation.daylight for r in play_both(ours, theirs, random_actions(seed, 420), fed)]
        assert len(daylight) == 420
        assert sum(light < 0.5 for light in daylight) > 120  # the steps at which a stock picture draws noise

    def test_a_player_granted_everything(self, stock):
        ours, theirs = started(8), stock(8)
        everything = dict.fromkeys(ITEM_MAX, 9)
        crafts = [action for action in ACTIONS if action.startswith(("place", "make"))]
        first = ["place_table", "move_left", "place_furnace", "make_iron_pickaxe", "make_iron_sword", "move_up"]
        actions = first + random.Random(8).choices([*ACTIONS, *crafts, "do", "do"], k=320)
        events = {name for r in play_both(ours, theirs, actions, everything) for name in r.events}
        assert {"place_table", "place_furnace", "place_stone", "place_plant", "make_iron_pickaxe"} <= events

    def test_sleeping_through_the_night(self, stock):
        ours, theirs = started(11), stock(11)
        tired = {"energy": 3}
        walk = random_actions(11, 5)
        first = list(play_both(ours, theirs, walk, tired))
        rest = list(play_both(ours, theirs, ["sleep"] * 250))
        assert any(result.observation.sleeping for result in rest)
        assert len(first) + len(rest) > 60

    def test_the_time_limit(self, stock):
        ours, theirs = started(2, max_steps=7), stock(2, length=7)
        results = list(play_both(ours, theirs, ["noop"] * 9))
        assert [result.truncated for result in results] == [False] * 6 + [True]
        assert not results[-1].terminated

    def test_death(self, stock):
        ours, theirs = started(5), stock(5)
        results = list(play_both(ours, theirs, random_actions(1, 3), {"health": 1, "food": 0}))
        starving = list(play_both(ours, theirs, ["noop"] * 60))
        last = (results + starving)[-1]
        assert (last.terminated, last.truncated) == (True, False)
        assert last.observation.inventory["health"] == 0

    def test_death_at_the_time_limit_is_death(self, stock):
        ours, theirs = started(2, max_steps=1), stock(2, length=1)
        for player in (ours._game._player, theirs._player):
            player.world[beside(player, 0, 1)] = "lava"
        (result,) = play_both(ours, theirs, ["move_down"])
        assert (result.terminated, result.truncated) == (True, False)
        assert result.reward == -0.9

    def test_without_night_draws_the_game_is_another_only_at_night(self, stock):
        ours, theirs = started(3, night_draws="none"), stock(3)
        fed = dict.fromkeys(VITALS, 9)
        same = play_both(ours, theirs, random_actions(3, 300), fed)
        with pytest.raises(AssertionError):
            list(same)
        assert 148 <= theirs._step <= 160  # the first steps with daylight below .5
        assert theirs._world.daylight < 0.5


def state_of(env: OurEnv) -> tuple[Any, ...]:
    game = env._game
    numbers = game._world.random.get_state()
    things = tuple(creature(thing) for thing in game._world.objects)
    chunks = {key: [creature(thing) for thing in members] for key, members in game._world.chunks.items()}
    return game._world._mat_map.tobytes(), things, chunks, numbers[1].tobytes(), numbers[2:], game._step, env._over


class TestSnapshots:
    @pytest.fixture
    def played(self):
        env = started(6)
        for action in random_actions(6, 80):
            env.step(action)
        return env

    def test_a_fork_goes_on_exactly_as_the_original(self, played):
        fork = CrafterEnv()
        view = fork.restore(played.snapshot())
        assert state_of(fork) == state_of(played)
        assert view == played._view(played._game)
        for action in random_actions(7, 80):
            assert fork.step(action) == played.step(action)
        assert state_of(fork) == state_of(played)

    def test_a_snapshot_is_restored_any_number_of_times(self, played):
        snapshot = played.snapshot()
        ends = []
        for _ in range(2):
            played.restore(snapshot)
            for action in random_actions(9, 30):
                played.step(action)
            ends.append(state_of(played))
        assert ends[0] == ends[1]

    def test_forks_do_not_touch_each_other(self, played):
        snapshot, before = played.snapshot(), state_of(played)
        fork = CrafterEnv()
        fork.restore(snapshot)
        for action in random_actions(1, 40):
            fork.step(action)
        assert state_of(played) == before
        assert state_of(fork) != before

    def test_the_end_is_part_of_a_snapshot(self):
        env = started(2, max_steps=1)
        env.step("noop")
        other = CrafterEnv()
        other.restore(env.snapshot())
        with pytest.raises(EnvError, match="after the end"):
            other.step("noop")

    def test_a_foreign_snapshot_is_refused(self, played):
        before = state_of(played)
        with pytest.raises(EnvError, match=r"snapshot of engine 'toy' cannot be restored by 'crafter-1\.8\.3"):
            played.restore(Snapshot("toy", played.snapshot().payload))
        assert state_of(played) == before

    def test_there_is_none_before_the_first_reset(self):
        with pytest.raises(EnvError, match="call reset first"):
            CrafterEnv().snapshot()


class TestMisuse:
    @pytest.mark.parametrize("seed", [-1, 2**31 - 1, True, 1.0, "1", None])
    def test_a_seed_no_world_has(self, seed):
        with pytest.raises(EnvError, match=f"seed must be an integer from 0 to {2**31 - 2}, got {seed!r}"):
            CrafterEnv().reset(seed)

    @pytest.mark.parametrize("action", ["fly", "", None, 3, ["noop"]])
    def test_an_unknown_action_changes_nothing(self, action):
        env = started(0)
        before = state_of(env)
        with pytest.raises(EnvError, match=r"unknown Crafter action .*allowed: noop, move_left"):
            env.step(action)
        assert state_of(env) == before

    def test_a_step_before_reset(self):
        with pytest.raises(EnvError, match="step before reset"):
            CrafterEnv().step("noop")

    def test_a_step_after_the_end_until_the_next_reset(self):
        env = started(0, max_steps=2)
        env.step("noop")
        env.step("noop")
        with pytest.raises(EnvError, match="step after the end"):
            env.step("noop")
        env.reset(0)
        assert env.step("noop").observation.step == 1


class TestReproducible:
    def test_each_reset_names_its_world_whatever_was_played_before(self):
        env, fresh = started(4), started(9)
        for action in random_actions(0, 50):
            env.step(action)
        env.reset(9)
        assert state_of(env) == state_of(fresh)

    def test_two_worlds_side_by_side_do_not_share_random_numbers(self):
        actions = random_actions(3, 60)
        alone = started(5)
        results = [alone.step(action) for action in actions]
        first, second = started(5), started(6)
        together = []
        for action in actions:
            second.step("noop")
            np.random.seed(0)
            random.seed(0)
            together.append(first.step(action))
        assert together == results

    def test_seeds_are_different_worlds(self):
        assert len({started(seed)._game._world._mat_map.tobytes() for seed in range(5)}) == 5


class TestWorldCache:
    @pytest.fixture
    def generated(self, monkeypatch):
        """Seeds generated so far; a world costs nothing here."""
        seeds = []

        def quick(seed):
            seeds.append(seed)
            return f"world {seed}"

        monkeypatch.setattr(our_engine, "_Game", quick)
        return seeds

    def test_a_world_is_generated_once_per_seed(self, generated):
        worlds = our_engine._Worlds(2)
        assert worlds.get(1) == worlds.get(1) != worlds.get(2)
        assert generated == [1, 2]

    def test_the_least_recently_used_is_forgotten(self, generated):
        worlds = our_engine._Worlds(2)
        for seed in (1, 2, 1, 3, 1, 2):
            worlds.get(seed)
        assert generated == [1, 2, 3, 2]
        assert len(worlds._bytes) == len(worlds._locks) == 2

    def test_many_threads_get_the_right_worlds_from_a_small_cache(self, generated):
        worlds = our_engine._Worlds(2)
        seeds = [random.Random(thread).choices(range(6), k=3000) for thread in range(8)]

        def fetch(mine):
            return [our_engine.pickle.loads(worlds.get(seed)) for seed in mine]

        with ThreadPoolExecutor(8) as pool:
            fetched = list(pool.map(fetch, seeds))
        assert fetched == [[f"world {seed}" for seed in mine] for mine in seeds]
        assert len(worlds._bytes) <= 2
        assert len(worlds._locks) <= 2

    def test_threads_that_ask_at_once_wait_for_one_generation(self, monkeypatch):
        generations = []

        def slow(seed):
            generations.append(seed)
            our_engine.threading.Event().wait(0.05)
            return seed

        monkeypatch.setattr(our_engine, "_Game", slow)
        worlds = our_engine._Worlds(4)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(worlds.get, [7] * 6))
        assert generations == [7]


class TestEvents:
    def beside_a_tree(self) -> OurEnv:
        env = started(0)
        game = env._game
        x, y = game._player.pos
        game._world[x, y + 1] = "tree"
        assert game._player.facing == (0, 1)
        return env

    def test_two_unlocks_in_one_step_are_two_events_and_pay_once(self):
        env = self.beside_a_tree()
        env._game._player.sleeping = True  # rested: it wakes up, and its action still runs
        result = env.step("do")
        assert result.events == ("collect_wood", "wake_up")
        assert result.reward == 1.0

    def test_a_repeat_is_an_event_without_pay(self):
        env = self.beside_a_tree()
        assert env.step("do").reward == 1.0
        x, y = env._game._player.pos
        env._game._world[x, y + 1] = "tree"
        result = env.step("do")
        assert (result.events, result.reward) == (("collect_wood",), 0.0)
        assert result.observation.achievements["collect_wood"] == 2

    def test_lost_health_is_a_tenth_each(self):
        env = started(0)
        player = env._game._player
        zombie = objects.Zombie(env._game._world, beside(player, 0, 1), player)
        env._game._world.add(zombie)
        rewards = [env.step("noop").reward for _ in range(3)]
        assert min(rewards) == -0.2

    def test_events_are_named_in_sorted_order(self):
        assert list(ACHIEVEMENTS) == sorted(ACHIEVEMENTS)


class TestView:
    def look(self, env: OurEnv, x: int, y: int):
        """The view after putting the player on (x, y)."""
        game = env._game
        there = game._world[x, y][1]
        if there is not None and there is not game._player:
            game._world.remove(there)
        if there is not game._player:
            game._world.move(game._player, (x, y))
        return env._view(game)

    @pytest.mark.parametrize(
        "place",
        [(0, 0), (63, 63), (0, 63), (63, 0), (1, 30), (3, 2), (4, 3), (30, 62), (59, 60), (60, 61), (32, 32)],
        ids=str,
    )
    def test_every_tile_is_the_worlds_also_at_its_border(self, place):
        env = started(12)
        x0, y0 = place
        view = self.look(env, x0, y0)
        world = env._game._world
        tiles = {(x, y): material for x, y, material in view.tiles()}
        assert sorted(tiles) == [(x, y) for x in range(-4, 5) for y in range(-3, 4)]
        for (x, y), material in tiles.items():
            inside = 0 <= x0 + x < 64 and 0 <= y0 + y < 64
            assert material == (world[x0 + x, y0 + y][0] if inside else None)
            assert view.material(x, y) == material

    def test_objects_in_the_9_by_7_tiles_and_no_others(self):
        env = started(12)
        for x0, y0 in [(0, 0), (63, 63), (20, 40), (32, 32), (45, 10)]:
            view = self.look(env, x0, y0)
            seen = {(thing.x, thing.y) for thing in view.objects}
            world = env._game._world
            assert seen == {
                (x, y)
                for x in range(-4, 5)
                for y in range(-3, 4)
                if 0 <= x0 + x < 64 and 0 <= y0 + y < 64 and (x, y) != (0, 0) and world[x0 + x, y0 + y][1] is not None
            }

    def test_every_kind_of_object_has_its_name(self):
        env = started(0)
        game = env._game
        world, player = game._world, game._player
        for thing in list(world.objects):
            if thing is not player:
                world.remove(thing)
        ripe = objects.Plant(world, beside(player, 2, 1))
        ripe.grown = 301
        world.add(objects.Cow(world, beside(player, -4, -3)))
        world.add(objects.Zombie(world, beside(player, 1, 0), player))
        world.add(objects.Skeleton(world, beside(player, 4, 3), player))
        world.add(objects.Arrow(world, beside(player, 0, -1), (0, 1)))
        world.add(objects.Plant(world, beside(player, 2, 0)))
        world.add(ripe)
        world.add(objects.Cow(world, beside(player, 5, 0)))
        view = env._view(game)
        assert {(thing.kind, thing.x, thing.y) for thing in view.objects} == {
            ("cow", -4, -3),
            ("zombie", 1, 0),
            ("skeleton", 4, 3),
            ("arrow", 0, -1),
            ("plant", 2, 0),
            ("ripe_plant", 2, 1),
        }
        assert (view.thing(1, 0), view.object_at(1, 1)) == ("zombie", None)
        assert self.look(env, 0, 0).thing(-1, 0) == "edge"

    def test_where_the_player_stands_is_counted_from_its_start(self):
        env = started(0)
        assert env._view(env._game).offset == (0, 0)
        assert self.look(env, 30, 35).offset == (-2, 3)

    def test_a_view_does_not_change_with_the_world(self):
        env = started(0)
        view = env._view(env._game)
        before = (dict(view.inventory), dict(view.achievements), view.materials)
        env._game._player.inventory["wood"] = 5
        env._game._player.achievements["collect_wood"] = 1
        env._game._world[32, 33] = "lava"
        assert (dict(view.inventory), dict(view.achievements), view.materials) == before


class TestSurvey:
    def test_tiles_and_distances_are_counted_in_the_world_itself(self):
        env = started(1)
        facts, world = env.survey(), env._game._world
        for name, fact in facts.items():
            places = [(x, y) for x in range(64) for y in range(64) if world[x, y][0] == name]
            assert fact["tiles"] == len(places)
            nearest = min((abs(x - 32) + abs(y - 32) for x, y in places), default=None)
            assert fact["nearest"] == nearest
        assert facts["tree"]["tiles"] > 0
        assert facts["table"] == {"tiles": 0, "nearest": None}

    def test_seeds_differ(self):
        assert started(1).survey() != started(2).survey()
