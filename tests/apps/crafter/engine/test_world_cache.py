"""The cache of fresh worlds: one generation per seed, bounded, and right from many threads at once."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from task_app.apps.crafter.engine.env import _Worlds


def key(seed: int) -> tuple[str, str, int]:
    return "reference", "stock", seed


class Maker:
    """Makes worlds that cost nothing, and remembers for which seeds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.made: list[int] = []
        self._seconds = seconds

    def __call__(self, wanted: tuple[str, str, int]) -> bytes:
        self.made.append(wanted[-1])
        threading.Event().wait(self._seconds)
        return f"world {wanted[-1]}".encode()


@pytest.fixture
def make() -> Maker:
    return Maker()


def test_a_world_is_generated_once_per_seed(make):
    worlds = _Worlds(2)
    assert worlds.get(key(1), make) == worlds.get(key(1), make) != worlds.get(key(2), make)
    assert make.made == [1, 2]


def test_the_least_recently_used_is_forgotten(make):
    worlds = _Worlds(2)
    for seed in (1, 2, 1, 3, 1, 2):
        worlds.get(key(seed), make)
    assert make.made == [1, 2, 3, 2]
    assert len(worlds._bytes) == len(worlds._locks) == 2


def test_many_threads_get_the_right_worlds_from_a_small_cache(make):
    worlds = _Worlds(2)
    seeds = [random.Random(thread).choices(range(6), k=3000) for thread in range(8)]
    with ThreadPoolExecutor(8) as pool:
        fetched = list(pool.map(lambda mine: [worlds.get(key(seed), make) for seed in mine], seeds))
    assert fetched == [[f"world {seed}".encode() for seed in mine] for mine in seeds]
    assert len(worlds._bytes) <= 2
    assert len(worlds._locks) <= 2


def test_threads_that_ask_at_once_wait_for_one_generation():
    worlds, make = _Worlds(4), Maker(0.05)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda seed: worlds.get(key(seed), make), [7] * 6))
    assert make.made == [7]
