"""The native engine: equal to the ordered package and to the reference after every step, and safe against misuse.

The long comparison (a million steps) is `benchmarks/engine.py --long`.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from typing import Any

import numpy as np
import opensimplex
import pytest

from task_app.apps.crafter.engine import native, rules
from task_app.apps.crafter.engine.native import NativeBatch, NativeEngine
from task_app.apps.crafter.engine.protocol import LAST_STEP, MAX_SEED, decode_state, encode_state, seal
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.core.errors import EnvError
from tests.apps.crafter.engine.native_scenes import shake
from tests.apps.crafter.engine.oracle import OrderedPackage

pytestmark = pytest.mark.skipif(bool(native.available()), reason=f"no native engine: {native.available()}")

NOOP, DO, SLEEP = 0, 5, 6
SEEDS = (0, 1, 2)


def differences(left: bytes, right: bytes) -> dict[str, tuple[Any, Any]]:
    """What differs between two canonical states, by field."""
    one, other = decode_state(left), decode_state(right)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def assert_equal_step(engine: NativeEngine, other: Any, action: int) -> tuple[float, bool, tuple[int, ...]]:
    outcome, expected = engine.step(action), other.play(action) if hasattr(other, "play") else other.step(action)
    assert outcome == expected
    own, others = engine.canonical_bytes(), other.canonical_bytes()
    assert own == others, differences(own, others)
    return outcome


def started(seed: int = 1, night_draws: Any = "stock") -> NativeEngine:
    engine = NativeEngine(night_draws)
    engine.reset(seed)
    return engine


def package_of(seed: int, **options: Any) -> OrderedPackage:
    package = OrderedPackage(**options)
    package.reset_to(seed)
    return package


def changed(state: bytes, **fields: Any) -> bytes:
    return encode_state(decode_state(state) | fields)


# The parts


@pytest.mark.parametrize("seed", [0, 1, 12_345, MAX_SEED - 1])
def test_draws_are_numpys(seed: int) -> None:
    ours, numpys, chosen = [], np.random.RandomState(seed), random.Random(seed)
    plan: list[int] = [chosen.choice((0, 1, 2, 3, 4, 5, 100, 144, 2**31 - 1, 2**32 - 1, -6174)) for _ in range(400)]
    expected: list[Any] = []
    for n in plan:
        if n < 0:
            numpys.uniform(32, 127, (63, 49))
        expected.append(None if n < 0 else numpys.randint(0, n) if n else numpys.uniform())
    ours, key, position = native._extension.draws(seed, plan)  # pyright: ignore[reportOptionalMemberAccess]
    _, numpys_key, numpys_position, *_ = numpys.get_state()
    assert (ours, key, position) == (expected, np.asarray(numpys_key).tobytes(), numpys_position)


@pytest.mark.parametrize("seed", [0, 3, 77, 2**31 - 3])
def test_noise_is_the_packages_to_the_bit(seed: int) -> None:
    theirs, draw = opensimplex.OpenSimplex(seed), random.Random(seed)
    noise = native._extension.noise  # pyright: ignore[reportOptionalMemberAccess]
    for _ in range(500):
        x, y, z = draw.uniform(-40, 70), draw.uniform(-40, 70), draw.randint(0, 9)
        if draw.random() < 0.3:
            x, y = round(2 * x) / 2, round(y)  # ties between corners
        assert noise(seed, x, y, z) == theirs.noise3(x, y, z)


def test_a_world_fits_in_64_kilobytes() -> None:
    assert native._extension.WORLD_BYTES <= 64 * 1024  # pyright: ignore[reportOptionalMemberAccess]


# Equal games


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_the_package_from_the_start(seed: int) -> None:
    engine, package, draw = started(seed), package_of(seed), random.Random(seed)
    assert engine.canonical_bytes() == package.canonical_bytes()
    for _ in range(350):  # nights begin at 148
        if assert_equal_step(engine, package, draw.randrange(17))[1]:
            break


def test_equals_the_package_with_its_pictures() -> None:
    engine, package, draw = started(4), package_of(4, picture=True), random.Random(4)
    state = changed(engine.canonical_bytes(), step=120)
    engine.load(state)
    package.load(state)
    for step in range(80):
        if step % 20 == 0 or package._player.health <= 2:  # kept alive into the night
            package.load(state := _healthy(package.canonical_bytes()))
            engine.load(state)
        assert_equal_step(engine, package, draw.randrange(17))
    assert engine.view().daylight < 0.5


def _healthy(state: bytes) -> bytes:
    values = decode_state(state)
    return changed(state, inventory=(9, *values["inventory"][1:]), player=values["player"] | {"last_health": 9})


def test_equals_the_package_in_busy_scenes() -> None:
    """Items granted, creatures and workshops around, borders, nights, sleep, ripe plants: rarely met in random play."""
    engine, package, draw = started(5), package_of(5), random.Random(5)
    for step in range(700):
        if step % 10 == 0 or package._player.health <= 0:
            state = shake(package.canonical_bytes(), draw)
            package.load(state)
            engine.load(state)
            assert package.canonical_bytes() == engine.canonical_bytes() == state
        assert_equal_step(engine, package, draw.choice((DO, DO, draw.randrange(17))))


def test_equals_the_package_without_night_draws() -> None:
    engine, package = started(6, "none"), package_of(6, night_draws="none")
    state = changed(engine.canonical_bytes(), step=200)
    engine.load(state)
    package.load(state)
    for _ in range(30):
        assert_equal_step(engine, package, NOOP)


@pytest.mark.parametrize("seed", range(10, 16))
def test_equals_the_reference(seed: int) -> None:
    engine, reference, draw = started(seed), ReferenceEngine(), random.Random(seed)
    reference.reset(seed)
    assert engine.canonical_bytes() == reference.canonical_bytes()
    seen: Counter[int] = Counter()
    for step in range(1_200):
        if (step > 300 and step % 10 == 0) or engine.view().inventory[0] <= 0:
            state = shake(reference.canonical_bytes(), draw)
            reference.load(state)
            engine.load(state)
        seen.update(assert_equal_step(engine, reference, draw.choice((DO, draw.randrange(17))))[2])
        if step % 7 == 0:
            assert engine.view() == reference.view()
            assert engine.state_hash() == reference.state_hash()
    assert len(seen) >= 15


def test_every_achievement_occurs_in_busy_scenes_equal_to_the_reference() -> None:
    engine, reference, draw = started(20), ReferenceEngine(), random.Random(20)
    seen: Counter[int] = Counter()
    for step in range(20_000):
        if step % 8 == 0 or engine.view().inventory[0] <= 0:
            engine.load(state := shake(engine.canonical_bytes(), draw))
            reference.load(state)
        action = draw.choice((DO, draw.randrange(17)))
        outcome = engine.step(action)
        assert outcome == reference.step(action)
        seen.update(outcome[2])
        if step % 50 == 0:
            assert engine.canonical_bytes() == reference.canonical_bytes()
        if len(seen) == len(rules.ACHIEVEMENTS):
            break
    assert len(seen) == len(rules.ACHIEVEMENTS)


# Forks, many actions, many worlds


def test_a_restored_snapshot_goes_the_same_way() -> None:
    engine, draw = started(7), random.Random(7)
    engine.step_many([draw.randrange(6) for _ in range(40)])
    kept, state = engine.snapshot(), engine.canonical_bytes()
    actions = [draw.randrange(17) for _ in range(200)]
    first = engine.step_many(actions), engine.state_hash()
    fork = NativeEngine()
    fork.restore(kept)
    assert fork.canonical_bytes() == state
    assert (fork.step_many(actions), fork.state_hash()) == first
    engine.restore(kept)
    assert [engine.step(action) for action in actions[: len(first[0])]] == first[0]


def test_step_many_stops_at_death_and_refuses_before_it_starts() -> None:
    engine = started()
    engine.load(_dying(engine.canonical_bytes()))
    assert [outcome[1] for outcome in engine.step_many([NOOP] * 9)] == [True]
    engine = started()
    before = engine.canonical_bytes()
    with pytest.raises(EnvError, match="unknown action 17"):
        engine.step_many([NOOP, 17])
    assert engine.canonical_bytes() == before
    assert engine.step_many([]) == []


def _dying(state: bytes) -> bytes:
    """One step before the player dies of hunger."""
    values = decode_state(state)
    values["inventory"] = (1, 0, *values["inventory"][2:])
    values["player"] |= {"recover2": -30, "last_health": 1}
    return encode_state(values)


@pytest.mark.parametrize("night_draws", ["stock", "none"])
def test_a_batch_equals_single_games(night_draws: Any) -> None:
    seeds = [1, 2, 3, 2, 9]
    batch, draw = NativeBatch(len(seeds), night_draws), np.random.RandomState(0)
    batch.reset(seeds)
    singles = [started(seed, night_draws) for seed in seeds]
    over = [False] * len(seeds)
    for _ in range(400):
        actions = draw.randint(0, 17, len(seeds)).astype(np.uint8)
        rewards, dead, events = batch.step(actions)
        for i, single in enumerate(singles):
            if over[i]:
                assert (rewards[i], dead[i], events[i]) == (0, True, 0)
                continue
            outcome = single.step(int(actions[i]))
            rose = tuple(a for a in range(len(rules.ACHIEVEMENTS)) if events[i] >> a & 1)
            assert (rewards[i], dead[i], rose) == outcome
            over[i] = outcome[1]
    for i, single in enumerate(singles):
        assert batch.canonical_bytes(i) == single.canonical_bytes()
        assert batch.view(i) == single.view()
    batch.restore(0, singles[4].snapshot())
    singles[1].restore(batch.snapshot(2))
    assert batch.canonical_bytes(0) == singles[4].canonical_bytes()
    assert singles[1].canonical_bytes() == singles[2].canonical_bytes()


# Misuse


def test_a_new_engine_has_no_world() -> None:
    engine = NativeEngine()
    calls: list[Any] = [engine.view, engine.snapshot, engine.canonical_bytes, engine.state_hash]
    for call in [*calls, lambda: engine.step(NOOP), lambda: engine.step_many([NOOP])]:
        with pytest.raises(EnvError, match="reset"):
            call()
    with pytest.raises(EnvError, match="reset"):
        NativeBatch(2).step(np.zeros(2, np.uint8))


@pytest.mark.parametrize("action", [-1, 17, 2**70, True, 1.0, "do", None])
def test_unknown_actions_are_refused(action: Any) -> None:
    engine = started()
    with pytest.raises(EnvError, match="unknown action"):
        engine.step(action)


def test_numpys_integers_are_actions() -> None:
    assert started().step(np.int64(NOOP)) == started().step(NOOP)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("seed", [-1, MAX_SEED, 2**70, True, 1.5, "1"])
def test_unknown_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(EnvError, match="seed must be an integer from 0 to"):
        NativeEngine().reset(seed)
    with pytest.raises(EnvError, match="seed must be an integer from 0 to"):
        NativeBatch(1).reset([seed])


def test_unknown_night_draws_are_refused() -> None:
    with pytest.raises(EnvError, match="night_draws"):
        NativeEngine("all")  # pyright: ignore[reportArgumentType]


def test_no_step_after_death_or_after_the_last() -> None:
    engine = started()
    alive = engine.canonical_bytes()
    engine.load(_dying(alive))
    assert engine.step(NOOP)[1]
    with pytest.raises(EnvError, match="death"):
        engine.step(NOOP)
    engine.load(changed(alive, step=LAST_STEP - 1))
    engine.step(NOOP)
    with pytest.raises(EnvError, match="10000"):
        engine.step(NOOP)
    engine.reset(1)
    engine.step(NOOP)


def test_foreign_and_damaged_snapshots_are_refused_and_change_nothing() -> None:
    engine = started()
    good, before = engine.snapshot(), engine.canonical_bytes()
    flipped = bytearray(good)
    flipped[4_000] ^= 1
    layout = bytearray(good)
    layout[8] = 9
    bad = {
        "not a snapshot": [b"", b"x" * 40, good[1:]],
        "format 9": [bytes(layout)],
        "reference engine": [seal("reference", "stock", b"...")],
        "night_draws": [started(night_draws="none").snapshot()],
        "damaged snapshot": [good[:-1], good + b"\0", bytes(flipped), seal("native", "stock", b"short")],
        "must be bytes": ["text", None, bytearray(good)],
    }
    for message, payloads in bad.items():
        for payload in payloads:
            with pytest.raises(EnvError, match=message):
                engine.restore(payload)
            batch = NativeBatch(1)
            with pytest.raises(EnvError, match=message):
                batch.restore(0, payload)
    assert engine.canonical_bytes() == before


def test_impossible_states_are_refused() -> None:
    engine = started()
    state = engine.canonical_bytes()
    values = decode_state(state)
    player, first = values["player"], values["objects"][0]
    (chunk, members), *others = values["chunks"]
    bad: list[dict[str, Any]] = [
        {"step": -1},
        {"step": LAST_STEP + 1},
        {"rng_pos": 625},
        {"inventory": (-1, *values["inventory"][1:])},
        {"achievements": (2_000_000, *values["achievements"][1:])},
        {"materials": b"\x0d" + values["materials"][1:]},
        {"player": player | {"x": 64}},
        {"player": player | {"facing_x": 1}},
        {"player": player | {"sleeping": 2}},
        {"player": player | {"hunger2": 51}},
        {"player": player | {"fatigue": -11}},
        {"inventory": (10, *values["inventory"][1:])},
        {"objects": [(0, *first[1:]), *values["objects"][1:]]},
        {"objects": [(*first[:3], 256, *first[4:]), *values["objects"][1:]]},
        {"objects": [(1, player["x"], player["y"], *first[3:]), *values["objects"][1:]]},
        {"objects": [*values["objects"], first]},
        {"objects": values["objects"][1:]},
        {"chunks": others},
        {"chunks": [(chunk, members[1:]), *others]},
        {"chunks": [(chunk, [*members, members[0]]), *others]},
        {"chunks": [(36, members), *others]},
    ]
    for fields in bad:
        with pytest.raises(EnvError, match="not a canonical"):
            engine.load(encode_state(values | fields))
    for payload in (b"", state[:-1], state + b"\0" * 4, struct.pack("<i", 2) + state[4:], "text"):
        with pytest.raises(EnvError, match="canonical"):
            engine.load(payload)  # pyright: ignore[reportArgumentType]
    assert engine.canonical_bytes() == state


def test_a_full_world_says_so_and_plays_on_after_reset() -> None:
    engine = started()
    values = decode_state(engine.canonical_bytes())
    values["materials"] = b"\x02" * 4096
    values["inventory"] = (*values["inventory"][:4], 9, *values["inventory"][5:])
    player = values["player"]
    room = native._extension.CAPACITY  # pyright: ignore[reportOptionalMemberAccess]
    ahead = (player["x"] + player["facing_x"], player["y"] + player["facing_y"])
    places = [(x, y) for x in range(64) for y in range(64) if (x, y) not in (ahead, (player["x"], player["y"]))][:room]
    chunks: dict[int, list[int]] = {player["x"] // 12 * 6 + player["y"] // 12: [0]}
    for number, (x, y) in enumerate(places, 1):
        chunks.setdefault(x // 12 * 6 + y // 12, []).append(number)
    values |= {"objects": [(5, x, y, 1, 0, 0, 0) for x, y in places], "chunks": list(chunks.items())}
    engine.load(encode_state(values))
    for _ in range(2):
        with pytest.raises(EnvError, match="more than 2046 objects"):
            engine.step(rules.ACTIONS.index("place_plant"))
    with pytest.raises(EnvError, match="objects"):
        engine.snapshot()
    engine.reset(1)
    engine.step(NOOP)


def test_misuse_of_a_batch_is_refused_before_any_world_moves() -> None:
    batch = NativeBatch(3)
    batch.reset([1, 2, 3])
    before = [batch.canonical_bytes(i) for i in range(3)]
    for actions in (np.array([0, 0, 17], np.uint8), np.zeros(2, np.uint8), np.zeros(3, np.int64), np.zeros(3)):
        with pytest.raises(EnvError):
            batch.step(actions)
    with pytest.raises(TypeError):
        batch.step([0, 0, 0])  # pyright: ignore[reportArgumentType]
    for index in (-1, 3):
        with pytest.raises(EnvError, match="worlds 0 to 2"):
            batch.snapshot(index)
    with pytest.raises(EnvError, match="3 seeds"):
        batch.reset([1])
    with pytest.raises(EnvError, match="1 to 65536"):
        NativeBatch(0)
    assert [batch.canonical_bytes(i) for i in range(3)] == before
