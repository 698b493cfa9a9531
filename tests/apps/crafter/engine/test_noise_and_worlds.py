"""Noise, random numbers and new worlds, bit for bit as the packages make them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import opensimplex
import pytest
from opensimplex.constants import GRADIENTS3

from task_app.apps.crafter.engine import noise, worldgen
from task_app.apps.crafter.engine.protocol import MAX_SEED, Engine, world_seed
from task_app.apps.crafter.engine.rng import Random
from tests.apps.crafter.engine.oracle import first_state

SEEDS = (*range(16), 2**31 - 2, 123_456_789, 31_337, 1_000)


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random points, and quotients of small whole numbers as world generation asks for (ties included)."""
    rng = np.random.default_rng(seed)
    x, y, z = rng.uniform(-60, 60, (3, count))
    half = count // 2
    x[:half] = rng.integers(0, 128, half) / rng.integers(1, 16, half)
    y[:half] = rng.integers(0, 128, half) / rng.integers(1, 16, half)
    z[:half] = rng.integers(0, 9, half)
    return x, y, z


def test_gradients_are_the_published_ones() -> None:
    assert np.array_equal(noise.GRADIENTS.ravel(), GRADIENTS3)


@pytest.mark.parametrize("seed", [0, 1, 987_654_321, MAX_SEED - 1])
def test_noise_has_the_packages_bits(seed: int) -> None:
    x, y, z = points(2_000, seed)
    simplex = opensimplex.OpenSimplex(seed)
    theirs = np.array([simplex.noise3(*at) for at in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)])
    assert noise.Simplex(seed).noise3(x, y, z).tobytes() == theirs.tobytes()


def test_noise_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, z = points(1_000, 5)
    whole = noise.Simplex(5).noise3(x, y, z)
    monkeypatch.setattr(noise, "BLOCK", 7)
    assert noise.Simplex(5).noise3(x, y, z).tobytes() == whole.tobytes()


def test_exponentials_of_arrays_and_of_single_numbers_agree() -> None:
    """World generation takes them for whole arrays, the package one by one."""
    values = np.random.default_rng(0).uniform(-50, 8, 50_000)
    assert np.exp(values).tobytes() == np.array([np.exp(value) for value in values]).tobytes()


def test_random_numbers_are_those_of_numpys_legacy_generator() -> None:
    for seed in (0, 7, MAX_SEED - 1):
        mine, theirs = Random.seeded(seed), np.random.RandomState(seed)
        for bound in (1, 2, 3, 4, 5, 144, 2**31 - 1, 2**32 - 1) * 40:
            assert mine.below(bound) == theirs.randint(0, bound, dtype=np.int64)
            assert mine.random() == theirs.uniform()
        mine.getrandbits(32 * 2 * 63 * 49)
        theirs.uniform(32, 127, (63, 49))
        key, position = mine.words()
        assert (list(key), position) == (theirs.get_state()[1].tolist(), theirs.get_state()[2])  # pyright: ignore


@pytest.mark.parametrize("seed", SEEDS)
def test_new_worlds_are_the_packages(make: Callable[..., Engine], seed: int) -> None:
    engine = make()
    engine.reset(seed)
    assert engine.canonical_bytes() == first_state(seed)


def test_creatures_of_a_world_stand_on_tiles_of_their_kind() -> None:
    land = worldgen.generate(Random.seeded(world_seed(3)))
    assert len(land.materials) == 64 * 64
    assert len({tile for _, tile in land.creatures}) == len(land.creatures) > 20
