"""Pictures against the `crafter` package's own, pixel by pixel: along episodes, in made scenes, at any size."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from task_app.apps.crafter.engine.protocol import AREA, ARROW, COW, PLANT, SKELETON, ZOMBIE, encode_state
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.apps.crafter.engine.rules import ACTIONS, ITEMS, MATERIALS
from task_app.apps.crafter.render import LEAST_SIDE, MOST_SIDE, Picture, picture, png_bytes
from task_app.core.errors import EnvError
from tests.apps.crafter.engine.oracle import OrderedPackage
from tests.apps.crafter.engine.scenes import State, lay, meadow, put

NOON, DUSK, DARKEST = 60, 150, 210
NIGHT_SHAPE = (63, 49)
DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
SLEEP = ACTIONS.index("sleep")


class Painter(OrderedPackage):
    """The package with its pictures, and the generator as it was before the latest one."""

    def __init__(self) -> None:
        super().__init__(picture=True)
        self.before = np.random.RandomState(0)

    def render(self, size: Any = None) -> Any:
        self.before = same_generator(self._world.random)
        return super().render(size)

    def _obs(self) -> Any:
        self.seen = super()._obs()
        return self.seen


def same_generator(generator: np.random.RandomState) -> np.random.RandomState:
    copied = np.random.RandomState(0)
    copied.set_state(generator.get_state())
    return copied


def as_python(generator: np.random.RandomState) -> random.Random:
    """The `random.Random` that gives the same numbers."""
    made: tuple[Any, ...] = generator.get_state(legacy=True)  # pyright: ignore[reportAssignmentType]
    copied = random.Random()
    copied.setstate((3, (*made[1].tolist(), made[2]), None))
    return copied


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter()


def start(painter: Painter, seed: int, step: int) -> None:
    """A new world, at another hour."""
    engine = ReferenceEngine()
    engine.reset(seed)
    painter.load(encode_state(engine.canonical_state() | {"step": step}))


def play(painter: Painter, actions: list[int]) -> Iterator[None]:
    for action in actions:
        _, dead, _ = painter.play(action)
        yield
        if dead:
            break


def random_actions(seed: int, steps: int, only: tuple[int, ...] = tuple(range(len(ACTIONS)))) -> list[int]:
    choose = random.Random(seed)
    return [choose.choice(only) for _ in range(steps)]


def everything(step: int = NOON, *, facing: tuple[int, int] = (0, 1), **player: int) -> State:
    """All materials, creatures, plants and arrows in view, and things of one kind on several materials."""
    state = meadow(30, 30, facing=facing, **player)
    state["step"] = step
    for number, name in enumerate(MATERIALS):
        lay(state, name, (26 + number % 9, 27 + number // 9))
    state["materials"][26 * AREA + 33] = 0
    lay(state, "path", (29, 32), (30, 32))
    lay(state, "sand", (31, 32))
    lay(state, "water", (33, 32))
    creatures = ((COW, 26, 31), (COW, 31, 32), (ZOMBIE, 27, 31), (SKELETON, 29, 32))
    for kind, x, y in (*creatures, (COW, 35, 30), (COW, 30, 34)):  # the last two just out of view
        put(state, kind, x, y)
    for x, grown in ((28, 300), (29, 301)):
        put(state, PLANT, x, 31, counter=grown)
    for x, facing in zip((30, 31, 32, 33), DIRECTIONS, strict=True):
        put(state, ARROW, x, 33 if x != 33 else 32, facing=facing)
    return state


def test_along_episodes_by_day_and_night_given_the_same_draws(painter: Painter) -> None:
    nights = 0
    for seed in range(4):
        start(painter, seed, 100 + 30 * seed)
        for _ in play(painter, random_actions(seed, 80)):
            state, night = painter.canonical_state(), painter._world.daylight < 0.5
            expected, nights = painter.seen, nights + night
            assert np.array_equal(picture(state, noise=painter.before), expected), (seed, painter._step)
            if night and painter._step % 10 == 0:
                assert np.array_equal(picture(state, noise=as_python(painter.before)), expected)
                numbers = same_generator(painter.before).uniform(size=NIGHT_SHAPE)
                assert np.array_equal(picture(state, noise=numbers), expected)
    assert 100 < nights < 250


def test_a_state_alone_holds_the_draws_of_its_step(painter: Painter) -> None:
    """The numbers the package drew for its picture are found by running the generator backwards."""
    nights = 0
    for seed in range(6, 10):
        start(painter, seed, 120 + 10 * seed)
        for _ in play(painter, random_actions(seed, 40)):
            nights += painter._world.daylight < 0.5
            assert np.array_equal(picture(painter.canonical_bytes()), painter.seen), (seed, painter._step)
    assert nights > 80


def test_asleep_by_day_and_night(painter: Painter) -> None:
    seen = []
    for step in (NOON, DUSK, DARKEST):
        painter.load(encode_state(everything(step, energy=1)))
        for _ in play(painter, [SLEEP] * 5):
            seen.append(painter._player.sleeping)
            assert np.array_equal(picture(painter.canonical_state()), painter.seen)
    assert sum(seen) > 8


@pytest.mark.parametrize("step", [NOON, DARKEST])
@pytest.mark.parametrize(("x", "y"), [(0, 0), (63, 0), (0, 63), (63, 63), (3, 30), (60, 30), (30, 2), (30, 61)])
def test_near_every_border(painter: Painter, step: int, x: int, y: int) -> None:
    state = meadow(x, y)
    state["step"] = step
    painter.load(encode_state(state))
    for _ in play(painter, random_actions(x + y, 15, only=(1, 2, 3, 4))):
        assert np.array_equal(picture(painter.canonical_state()), painter.seen)


@pytest.mark.parametrize("facing", DIRECTIONS)
@pytest.mark.parametrize("step", [NOON, DARKEST])
@pytest.mark.parametrize("sleeping", [0, 1])
def test_every_material_creature_arrow_and_plant(
    painter: Painter, step: int, facing: tuple[int, int], sleeping: int
) -> None:
    state = everything(step, facing=facing, sleeping=sleeping)
    painter.load(encode_state(state))
    expected = painter.render()
    assert np.array_equal(picture(state, noise=painter.before), expected)


def test_every_count_of_every_item(painter: Painter) -> None:
    for shift in range(10):
        state = meadow()
        state["inventory"] = tuple((shift + index) % 10 for index in range(len(ITEMS)))
        painter.load(encode_state(state))
        assert np.array_equal(picture(state), painter.render())


def test_a_count_of_two_digits_is_drawn_as_the_package_draws_it(painter: Painter) -> None:
    state = meadow(wood=10)
    painter.load(encode_state(state))
    assert np.array_equal(picture(state), painter.render())


SIZES = [(18, 18), (63, 63), (65, 100), (101, 64), (128, 128), (144, 144), (256, 256), (300, 270), (600, 600)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [NOON, DARKEST])
def test_any_size_looks_as_the_package_renders_it_next(painter: Painter, size: tuple[int, int], step: int) -> None:
    state = everything(step, sapling=3, wood=9)
    painter.load(encode_state(state))
    drawn = picture(state, size)
    assert drawn.shape == (size[1], size[0], 3)
    assert drawn.flags.c_contiguous
    assert np.array_equal(drawn, painter.render(size))
    assert np.array_equal(drawn, picture(state, size, noise=painter.before))


def test_every_width_of_a_tile(painter: Painter) -> None:
    state = meadow()
    state["inventory"] = tuple(1 + index % 9 for index in range(len(ITEMS)))
    painter.load(encode_state(state))
    for unit in range(2, 59):
        size = (9 * unit + unit % 9, 9 * (60 - unit))
        assert np.array_equal(picture(state, size), painter.render(size)), size


def test_the_same_state_gives_the_same_picture_and_other_states_other_noise() -> None:
    first, later = everything(DARKEST), everything(DARKEST)
    later["rng_pos"] = 17
    for size in (64, 90):
        assert np.array_equal(picture(first, size), picture(encode_state(first), size))
        assert not np.array_equal(picture(first, size), picture(later, size))


def test_noise_counts_only_in_the_dark() -> None:
    zeros, ones = np.zeros(NIGHT_SHAPE), np.ones(NIGHT_SHAPE)
    day, night = everything(NOON), everything(DARKEST)
    assert np.array_equal(picture(day, noise=zeros), picture(day, noise=ones))
    assert not np.array_equal(picture(night, noise=zeros), picture(night, noise=ones))


def test_no_generator_is_touched() -> None:
    night, numpy, python = everything(DARKEST), np.random.RandomState(1), random.Random(1)
    words, state = same_generator(numpy), python.getstate()
    picture(night, noise=numpy)
    picture(night, noise=python)
    assert numpy.uniform() == words.uniform()
    assert python.getstate() == state


def test_a_game_is_the_same_with_and_without_pictures() -> None:
    watched, alone = ReferenceEngine(), ReferenceEngine()
    for engine in (watched, alone):
        engine.load(encode_state(everything(140)))
    for action in random_actions(3, 60, only=(0, 1, 2, 3, 4, 5, SLEEP)):
        before = watched.state_hash()
        picture(watched.canonical_state())
        picture(watched.canonical_state(), 128, noise=watched.random)
        picture(watched.canonical_bytes())
        assert watched.state_hash() == before
        outcome = watched.step(action)
        assert outcome == alone.step(action)
        if outcome[1]:
            break
    assert watched.steps > 160
    assert watched.state_hash() == alone.state_hash()


def test_png_bytes_is_the_same_picture() -> None:
    drawn: Picture = picture(everything(), (90, 128))
    with Image.open(io.BytesIO(png_bytes(drawn))) as image:
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image), drawn)


@pytest.mark.parametrize("size", [LEAST_SIDE - 1, MOST_SIDE + 1, 0, -64, (64, 9), (5000, 64)])
def test_a_size_out_of_bounds_is_an_error(size: int | tuple[int, int]) -> None:
    with pytest.raises(EnvError, match="sides must be 18 to 2048"):
        picture(everything(), size)


def test_misshapen_noise_and_impossible_states_are_errors() -> None:
    with pytest.raises(EnvError, match=r"shape \(63, 49\), got \(49, 63\)"):
        picture(everything(DARKEST), noise=np.zeros((49, 63)))
    with pytest.raises(EnvError, match="not a canonical"):
        picture(b"nothing")
    state = everything()
    state["player"]["x"] = 64
    with pytest.raises(EnvError, match="x is 64"):
        picture(encode_state(state))


def test_the_package_is_not_imported_and_an_episode_needs_no_images() -> None:
    code = (
        "import sys; import task_app.apps.crafter.app, task_app.apps.crafter.engine;"
        "print('PIL' in sys.modules, end=' ');"
        "import task_app.apps.crafter.render; print('crafter' in sys.modules, 'imageio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
