"""Canonical states, their check, sealed snapshots, and views: the same for every engine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from task_app.apps.crafter.engine import check, native
from task_app.apps.crafter.engine.protocol import (
    ARROW,
    COW,
    MAX_SEED,
    PLANT,
    ZOMBIE,
    Engine,
    decode_state,
    encode_state,
    hash_state,
    seal,
    unseal,
)  # fmt: skip
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.core.errors import EnvError
from tests.apps.crafter.engine.oracle import OrderedPackage, first_state
from tests.apps.crafter.engine.scenes import lay, meadow, put, random_actions

Make = Callable[..., Engine]


def test_decoding_and_encoding_are_inverse() -> None:
    data = first_state(1)
    assert encode_state(decode_state(data)) == data
    assert len(hash_state(data)) == 64


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "not a canonical"),
        (lambda data: data[:-4], "wrong length"),
        (lambda data: data + bytes(4), "wrong length"),
        (lambda data: data[:-1], "not a canonical"),
        (lambda data: struct.pack("<i", 7) + data[4:], "format 7"),
        (lambda data: data[:4296] + struct.pack("<i", 10**6) + data[4300:], "number of objects"),
    ],
)
def test_malformed_states_are_refused(make: Make, damage: Callable[[bytes], bytes], said: str) -> None:
    data = first_state(1)
    with pytest.raises(EnvError, match=said):
        decode_state(damage(data))
    with pytest.raises(EnvError):
        make().load(damage(data))


def changed(**parts: Any) -> dict[str, Any]:
    return meadow() | parts


def player(**fields: int) -> dict[str, Any]:
    state = meadow()
    return state | {"player": state["player"] | fields}


IMPOSSIBLE = [
    (changed(step=-1), "step"),
    (changed(step=10_001), "step"),
    (changed(rng_pos=625), "rng_pos"),
    (player(x=64), "x is 64"),
    (player(sleeping=2), "sleeping"),
    (player(facing_x=1, facing_y=1), "faces no direction"),
    (player(facing_x=0, facing_y=0), "faces no direction"),
    (player(fatigue=31), "fatigue"),
    (player(recover2=-31), "recover2"),
    (changed(inventory=(9, 10, *[0] * 14)), "food"),
    (changed(achievements=(-1, *[0] * 21)), "collect_coal"),
    (changed(materials=bytes([13]) + bytes(4095)), "materials"),
    (put(meadow(), COW, 32, 32), "one tile"),
    (changed(objects=[(7, 1, 1, 1, 0, 0, 0)]), "kind"),
    (changed(objects=[(COW, 1, 64, 1, 0, 0, 0)]), "y is 64"),
    (changed(objects=[(COW, 1, 1, -1, 0, 0, 0)]), "health"),
    (changed(objects=[(COW, 1, 1, 1, 0, 1, 0)]), "arrows face"),
    (changed(objects=[(ARROW, 1, 1, 0, 0, 0, 0)]), "arrows face"),
    (changed(objects=[(COW, 1, 1, 1, 0, 0, 0)]), "chunks"),
    (changed(chunks=[(36, [0])]), "chunks"),
    (changed(chunks=[(14, [0]), (14, [])]), "chunks"),
    (changed(chunks=[(13, [0])]), "chunks"),
    (changed(chunks=[(14, [0, 0])]), "chunks"),
]


@pytest.mark.parametrize(("state", "said"), IMPOSSIBLE, ids=[f"{n}-{said}" for n, (_, said) in enumerate(IMPOSSIBLE)])
def test_impossible_states_are_refused(make: Make, state: dict[str, Any], said: str) -> None:
    data = encode_state(state)
    with pytest.raises(EnvError, match=said):
        check.check_state(data)
    engine = make()
    with pytest.raises(EnvError):
        engine.load(data)


def test_a_refused_state_leaves_the_game_as_it_was(make: Make) -> None:
    engine = make()
    engine.reset(1)
    before = engine.state_hash()
    with pytest.raises(EnvError):
        engine.load(encode_state(changed(chunks=[])))
    assert engine.state_hash() == before


def test_states_travel_between_engines() -> None:
    if native.available():
        pytest.skip(native.available())
    one, other = ReferenceEngine(), native.NativeEngine()
    one.reset(2)
    for action in random_actions(2, 60):
        one.step(action)
    other.load(one.canonical_bytes())
    assert other.state_hash() == one.state_hash()
    assert other.canonical_state() == one.canonical_state()
    assert other.view() == one.view()


def test_forks_of_a_snapshot_go_their_own_ways_and_the_same_way_twice(make: Make) -> None:
    engine, fork = make(), make()
    engine.reset(4)
    for action in random_actions(4, 40):
        engine.step(action)
    saved, hashes = engine.snapshot(), []
    for branch in (5, 6, 5):
        fork.restore(saved)
        outcomes = [fork.step(action) for action in random_actions(branch, 30)]
        hashes.append((fork.state_hash(), outcomes))
    assert hashes[0] == hashes[2] != hashes[1]
    assert engine.snapshot() == saved
    engine.restore(saved)
    assert [engine.step(action) for action in random_actions(5, 30)] == hashes[0][1]


def test_snapshots_say_what_they_are(make: Make) -> None:
    engine = make()
    engine.reset(0)
    saved = engine.snapshot()
    other = "native" if engine.name == "reference" else "reference"
    for payload, said in (
        (b"", "not a snapshot"),
        (b"x" * 100, "not a snapshot"),
        (saved[:8] + struct.pack("<H", 0) + saved[10:], "format 0"),
        (seal(other, "stock", saved[16:]), f"snapshot of the {other} engine"),
        (saved[:10] + b"\x09" + saved[11:], r"unknown \(9\)"),
        (seal(engine.name, "none", saved[16:]), "night_draws='none'"),
        (saved[:-1], "damaged"),
        (saved + b"\0", "damaged"),
    ):
        with pytest.raises(EnvError, match=said):
            engine.restore(payload)
    assert unseal(engine.name, "stock", saved) == saved[16:]


def test_misuse_is_named(make: Make) -> None:
    engine = make()
    for call in (lambda: engine.step(0), engine.snapshot, engine.view):
        with pytest.raises(EnvError, match="reset"):
            call()
    for seed in (-1, MAX_SEED, True, 1.0, "1", None):
        with pytest.raises(EnvError, match="seed must be an integer"):
            engine.reset(seed)  # pyright: ignore[reportArgumentType]
    engine.reset(0)
    for action in (-1, 17, 10**30):
        with pytest.raises(EnvError, match="action"):
            engine.step(action)


def test_a_view_shows_what_the_package_has_around_the_player(make: Make) -> None:
    engine, package = make(), OrderedPackage()
    for x, y in ((0, 0), (63, 63), (3, 60), (32, 32)):
        state = meadow(x, y, facing=(-1, 0), wood=3)
        lay(state, "water", *((a, b) for a in range(64) for b in (2, 61) if (a, b) != (x, y)))
        near = [(a, b) for a in range(x - 5, x + 6) for b in range(y - 4, y + 5) if (a + b) % 3 == 0]
        for a, b in near[::-1]:
            if (a, b) != (x, y) and 0 <= a < 64 and 0 <= b < 64:
                put(state, ZOMBIE if a % 2 else PLANT, a, b, counter=301 * (b % 2))
        engine.load(encode_state(state))
        package.load(encode_state(state))
        seen = engine.view()
        assert (seen.offset, seen.facing, seen.inventory[5]) == ((x - 32, y - 32), (-1, 0), 3)
        assert seen.daylight == package._world.daylight
        assert list(seen.materials) == [
            package._world._mat_ids[package._world[x + dx, y + dy][0]] for dx in range(-4, 5) for dy in range(-3, 4)
        ]
        assert [(dx, dy) for _, dx, dy in seen.objects] == [
            (a - x, b - y)
            for _, a, b, *_ in decode_state(package.canonical_bytes())["objects"]
            if abs(a - x) <= 4 and abs(b - y) <= 3
        ]
