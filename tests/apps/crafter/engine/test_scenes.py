"""One named situation after another, each played beside the package and compared after every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from task_app.apps.crafter.engine.protocol import (
    ARROW,
    COW,
    PLANT,
    RIPE_GROWN,
    RIPE_PLANT,
    SKELETON,
    ZOMBIE,
    Engine,
    encode_state,
)  # fmt: skip
from task_app.apps.crafter.engine.rules import ACTIONS
from task_app.core.errors import EnvError
from tests.apps.crafter.engine.scenes import item, lay, material, meadow, play_scene, put

Make = Callable[..., Engine]


# Borders


@pytest.mark.parametrize(("x", "y"), [(0, 30), (30, 0), (0, 0)])
def test_crafting_fails_at_the_left_and_the_upper_border(make: Make, x: int, y: int) -> None:
    state = lay(meadow(x, y, wood=5), "table", (x + 1, y + 1))
    events, end, rewards = play_scene(make, state, "make_wood_pickaxe")
    assert (events, item(end, "wood"), rewards) == ([set()], 5, [0.0])


@pytest.mark.parametrize(("x", "y"), [(1, 30), (30, 1), (63, 30), (30, 63), (63, 63)])
def test_crafting_works_beside_them_and_at_the_other_borders(make: Make, x: int, y: int) -> None:
    state = lay(meadow(x, y, wood=5), "table", (x - 1, y - 1))
    events, end, rewards = play_scene(make, state, "make_wood_pickaxe")
    assert (events, item(end, "wood"), rewards) == ([{"make_wood_pickaxe"}], 4, [1.0])


@pytest.mark.parametrize(
    ("x", "y", "action", "facing"),
    [
        (0, 9, "move_left", (-1, 0)),
        (63, 9, "move_right", (1, 0)),
        (9, 0, "move_up", (0, -1)),
        (9, 63, "move_down", (0, 1)),
    ],
)
def test_nothing_lies_beyond_the_edge(make: Make, x: int, y: int, action: str, facing: tuple[int, int]) -> None:
    state = meadow(x, y, stone=3, wood=5, sapling=1)
    events, end, _ = play_scene(make, state, action, "do", "place_stone", "place_table", "place_plant")
    assert events == [set()] * 5
    assert (end["player"]["x"], end["player"]["y"]) == (x, y)
    assert (end["player"]["facing_x"], end["player"]["facing_y"]) == facing


def test_creatures_stay_in_the_world(make: Make) -> None:
    state = put(put(put(meadow(2, 2), COW, 0, 0), ZOMBIE, 0, 5), SKELETON, 5, 0)
    _, end, _ = play_scene(make, state, *["noop"] * 40)
    assert all(0 <= thing[1] < 64 and 0 <= thing[2] < 64 for thing in end["objects"])


def test_an_arrow_ends_at_the_edge(make: Make) -> None:
    _, end, _ = play_scene(make, put(meadow(2, 2), ARROW, 1, 5, facing=(-1, 0)), "noop", "noop")
    assert end["objects"] == []


# Items


def test_a_full_inventory_still_counts_what_is_collected(make: Make) -> None:
    state = lay(meadow(wood=9), "tree", (32, 33))
    events, end, rewards = play_scene(make, state, "do")
    assert (events, item(end, "wood"), rewards) == ([{"collect_wood"}], 9, [1.0])
    assert material(end, 32, 33) == "grass"


def test_a_thing_collected_again_pays_no_second_time(make: Make) -> None:
    state = lay(meadow(), "water", (32, 33))
    events, end, rewards = play_scene(make, state, "do", "do")
    assert (events, rewards) == ([{"collect_drink"}] * 2, [1.0, 0.0])
    assert item(end, "drink") == 9


def test_ores_need_their_pickaxes(make: Make) -> None:
    for ore, tool in (("stone", "wood"), ("coal", "wood"), ("iron", "stone"), ("diamond", "iron")):
        bare = lay(meadow(), ore, (32, 33))
        assert play_scene(make, bare, "do")[0] == [set()]
        armed = lay(meadow(**{f"{tool}_pickaxe": 1}), ore, (32, 33))  # pyright: ignore[reportArgumentType]
        assert play_scene(make, armed, "do")[0] == [{f"collect_{ore}"}]


def test_prices_of_what_is_placed_and_made(make: Make) -> None:
    state = lay(meadow(wood=9, stone=9, coal=2, iron=2), "sand", (32, 33))
    actions = ("place_table", "move_left", "place_furnace", "make_iron_pickaxe", "make_iron_sword", "make_stone_sword")
    events, end, _ = play_scene(make, state, *actions)
    assert events == [set() if action == "move_left" else {action} for action in actions]
    assert [item(end, name) for name in ("wood", "stone", "coal", "iron")] == [9 - 2 - 3, 9 - 4 - 1, 0, 0]


def test_iron_tools_need_the_furnace_nearby_too(make: Make) -> None:
    state = lay(meadow(wood=9, coal=2, iron=2), "table", (31, 31))
    assert play_scene(make, state, "make_iron_pickaxe")[0] == [set()]


def test_stone_fills_water_and_lava_but_not_an_occupied_tile(make: Make) -> None:
    for name in ("water", "lava", "path"):
        assert play_scene(make, lay(meadow(stone=1), name, (32, 33)), "place_stone")[0] == [{"place_stone"}]
    assert play_scene(make, put(meadow(stone=1), PLANT, 32, 33), "place_stone")[0] == [set()]


# Several unlocks in one step


def test_two_unlocks_in_one_step_pay_once(make: Make) -> None:
    """Who wakes up acts in the same step."""
    state = lay(meadow(sleeping=1), "tree", (32, 33))
    events, _, rewards = play_scene(make, state, "do")
    assert (events, rewards) == ([{"wake_up", "collect_wood"}], [1.0])


# Sleep


def test_one_sleeps_until_energy_is_full_and_then_wakes(make: Make) -> None:
    state = meadow(energy=7)
    events, end, _ = play_scene(make, state, *["sleep"] * 25)
    awake = next(step for step, names in enumerate(events) if "wake_up" in names)
    assert 21 < awake < 25
    assert item(end, "energy") == 9


def test_asleep_one_does_nothing_else(make: Make) -> None:
    _, end, _ = play_scene(make, meadow(energy=5), "sleep", "move_left", "move_left")
    assert (end["player"]["x"], end["player"]["sleeping"]) == (32, 1)


def test_a_rested_player_does_not_fall_asleep(make: Make) -> None:
    _, end, _ = play_scene(make, meadow(), "sleep")
    assert end["player"]["sleeping"] == 0


def test_a_zombie_hurts_a_sleeper_more_and_wakes_it(make: Make) -> None:
    state = put(meadow(energy=3, sleeping=1), ZOMBIE, 33, 32)
    lay(state, "water", (34, 32), (33, 31), (33, 33))
    _, end, rewards = play_scene(make, state, "noop", "noop")
    assert rewards[0] == -0.7
    assert end["player"]["sleeping"] == 0


# Creatures and arrows


def test_a_killed_zombie_strikes_once_more(make: Make) -> None:
    state = put(meadow(), ZOMBIE, 32, 33, health=1)
    events, end, rewards = play_scene(make, state, "do")
    assert events == [{"defeat_zombie"}]
    assert rewards == [1.0 - 0.2]
    assert end["objects"] == []


def test_swords_count_by_the_best(make: Make) -> None:
    for swords, left in (
        ({}, 4),
        ({"wood_sword": 1}, 3),
        ({"stone_sword": 1, "wood_sword": 1}, 2),
        ({"iron_sword": 1}, 0),
    ):
        state = put(meadow(**swords), ZOMBIE, 32, 33, counter=5)  # pyright: ignore[reportArgumentType]
        _, end, _ = play_scene(make, state, "do")
        assert [thing[3] for thing in end["objects"]] == ([left] if left else [])


def test_a_cow_feeds(make: Make) -> None:
    events, end, _ = play_scene(make, put(meadow(food=2, hunger2=40), COW, 32, 33, health=1), "do")
    assert events == [{"eat_cow"}]
    assert (item(end, "food"), end["player"]["hunger2"]) == (8, 2)


def test_things_act_only_within_18_tiles(make: Make) -> None:
    state = put(put(meadow(), PLANT, 32, 49), PLANT, 32, 50)
    _, end, _ = play_scene(make, state, *["noop"] * 5)
    assert [thing[4] for thing in end["objects"]] == [5, 0]


def test_an_arrow_hits_the_player(make: Make) -> None:
    state = put(meadow(), ARROW, 32, 34, facing=(0, -1))
    _, end, rewards = play_scene(make, state, "noop", "noop")
    assert (rewards, end["objects"]) == ([0.0, -0.2], [])


def test_an_arrow_breaks_a_table_and_crosses_water(make: Make) -> None:
    for bench in ("table", "furnace"):
        state = put(meadow(), ARROW, 36, 32, facing=(1, 0))
        lay(state, "water", (37, 32))
        lay(state, bench, (38, 32))
        _, end, _ = play_scene(make, state, "noop", "noop")
        assert (material(end, 38, 32), end["objects"]) == ("path", [])


def test_an_arrow_kills_what_it_meets_and_the_player_gets_no_credit(make: Make) -> None:
    state = put(put(meadow(), ARROW, 36, 32, facing=(1, 0)), COW, 37, 32, health=2)
    lay(state, "stone", (37, 31), (37, 33), (38, 32))
    events, end, _ = play_scene(make, state, "noop", "noop")
    assert events == [set(), set()]
    assert end["objects"] == []


def test_a_skeleton_shoots_along_a_tunnel(make: Make) -> None:
    state = put(meadow(), SKELETON, 36, 32)
    _, end, _ = play_scene(make, state, *["noop"] * 60)
    assert end["inventory"][0] < 9


# Plants


def test_a_placed_sapling_grows_from_the_next_step_on(make: Make) -> None:
    events, end, _ = play_scene(make, meadow(sapling=1), "place_plant", "noop", "noop")
    assert events[0] == {"place_plant"}
    assert end["objects"] == [(PLANT, 32, 33, 1, 2, 0, 0)]


def test_a_sapling_is_not_food_and_a_ripe_plant_is(make: Make) -> None:
    young = put(meadow(food=3), PLANT, 32, 33, counter=RIPE_GROWN - 1)
    assert play_scene(make, young, "do")[0] == [set()]
    ripe = put(meadow(food=3), PLANT, 32, 33, counter=RIPE_GROWN + 1)
    events, end, _ = play_scene(make, ripe, "do")
    assert (events, item(end, "food")) == ([{"eat_plant"}], 7)
    assert end["objects"][0][4] == 1


def test_a_plant_ripens_in_view(make: Make) -> None:
    engine = make()
    engine.load(encode_state(put(meadow(), PLANT, 32, 33, counter=RIPE_GROWN)))
    assert engine.view().objects == ((PLANT, 0, 1),)
    engine.step(ACTIONS.index("noop"))
    assert engine.view().objects == ((RIPE_PLANT, 0, 1),)


@pytest.mark.parametrize("eater", [COW, ZOMBIE, SKELETON])
def test_a_creature_beside_it_eats_a_plant(make: Make, eater: int) -> None:
    state = put(put(meadow(10, 10), PLANT, 20, 10), eater, 21, 10)
    lay(state, "water", (22, 10), (21, 9), (21, 11))
    _, end, _ = play_scene(make, state, "noop")
    assert PLANT not in {thing[0] for thing in end["objects"]}


# Ends


def test_lava_kills(make: Make) -> None:
    state = lay(meadow(), "lava", (33, 32))
    events, end, rewards = play_scene(make, state, "move_right", "noop")
    assert (events, rewards) == ([set()], [-0.9])
    engine = make()
    engine.load(encode_state(end))
    with pytest.raises(EnvError, match="death"):
        engine.step(0)


def test_hunger_kills(make: Make) -> None:
    _, end, rewards = play_scene(make, meadow(health=1, food=0, recover2=-30), "noop", "noop")
    assert (rewards, item(end, "health")) == ([-0.1], 0)


def test_no_step_after_the_last_one(make: Make) -> None:
    engine = make()
    engine.load(encode_state(meadow() | {"step": 9_999}))
    engine.step(0)
    with pytest.raises(EnvError, match="10000"):
        engine.step(0)


def test_several_steps_in_one_call_stop_at_death(make: Make) -> None:
    one, many = make(), make()
    for engine in (one, many):
        engine.load(encode_state(lay(meadow(), "lava", (35, 32))))
    right = ACTIONS.index("move_right")
    outcomes = many.step_many([right] * 10)
    assert outcomes == [one.step(right) for _ in range(3)]
    assert outcomes[-1][1]
    assert many.state_hash() == one.state_hash()


# Balance


@pytest.mark.parametrize("step", [0, 200])
def test_creatures_appear_and_vanish_by_day_and_night(make: Make, step: int) -> None:
    state = lay(meadow(), "path", *((x, y) for x in range(14, 22) for y in range(26, 34)))
    for x in range(24, 34):
        put(put(put(state, ZOMBIE, x, 25), COW, x, 40), SKELETON, x, 43)
    state["step"] = step
    _, end, _ = play_scene(make, state, *["noop"] * 60)
    assert len(end["objects"]) != 30
