"""Drives a build of the extension with random play, busy scenes and corrupted bytes; run by `test_native_build.py`.

    python fuzz_native.py EXTENSION ROUNDS

Takes the extension from the given file, so that a build with sanitizers can be driven. Whatever the bytes, a
call must succeed or raise EnvError, and a world that was accepted must be playable.
"""

from __future__ import annotations

import importlib.util
import random
import struct
import sys
from typing import Any

import numpy as np

NAME = "task_app.apps.crafter.engine._native"


def take_extension(path: str) -> None:
    """Let `engine.native` find this file's extension; called before anything of the engine is imported."""
    assert NAME.rpartition(".")[0] not in sys.modules
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


def corrupted(payload: bytes, draw: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(draw.choice((1, 1, 2, 8))):
        way, at = draw.randrange(5), draw.randrange(len(data))
        if way == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif way == 1:
            data[at] = draw.choice((0, 1, 63, 64, 127, 128, 255))
        elif way == 2:
            word = draw.choice((0, 1, 63, 64, 2047, 2048, 2**31 - 1, -1, -(2**31)))
            data[at & ~3 : (at & ~3) + 4] = struct.pack("<i", word)
        elif way == 3:
            del data[at : at + draw.choice((1, 4, 16, 4096))]
        else:
            data[at:at] = bytes(draw.randrange(256) for _ in range(draw.choice((1, 4, 16))))
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


def resealed(payload: bytes, native: Any) -> bytes:
    """The snapshot with length and checksum put right, so that only the struct's own checks stand in the way."""
    body = payload[24:]
    return native.seal("native", "stock", struct.pack("<Q", checksum(body)) + body)


def checksum(data: bytes) -> int:
    """As csrc/state.h."""
    mask, factor, chains = 2**64 - 1, 0x9E3779B97F4A7C15, list(range(1, 9))
    whole = len(data) // 64 * 64
    for at in range(0, whole, 64):
        for i, word in enumerate(struct.unpack_from("<8Q", data, at)):
            mixed = (chains[i] ^ word) * factor & mask
            chains[i] = mixed ^ mixed >> 32
    for i, word in enumerate(struct.unpack("<8Q", data[whole:].ljust(64, b"\0"))):
        chains[i] = (chains[i] ^ word) * factor & mask
    total = 0
    for chain in chains:
        total = (total ^ chain ^ total >> 29) * 0xBF58476D1CE4E5B9 & mask
    return total ^ total >> 32


def play(engine: Any, draw: random.Random, steps: int, error: type[Exception]) -> None:
    for _ in range(steps):
        try:
            if engine.step(draw.choice((5, draw.randrange(17))))[1]:
                return
        except error:
            return


def main(path: str, rounds: int) -> None:
    take_extension(path)
    from native_scenes import shake  # beside this script

    from task_app.apps.crafter.engine import native, protocol
    from task_app.core.errors import EnvError

    assert native._extension is sys.modules[NAME]
    assert native._extension.__file__ == path
    assert not native.available(), native.available()
    native.seal = protocol.seal  # type: ignore[attr-defined]
    draw, engine, taken = random.Random(0), native.NativeEngine(), {"snapshot": 0, "state": 0}
    batch = native.NativeBatch(3)
    for turn in range(rounds):
        engine.reset(turn)
        for _ in range(6):
            engine.load(shake(engine.canonical_bytes(), draw))
            play(engine, draw, 30, EnvError)
        engine.reset(turn)
        play(engine, draw, 160, EnvError)
        engine.view()
        good, state = engine.snapshot(), engine.canonical_bytes()
        assert resealed(good, native) == good
        for _ in range(12):
            for kind, call, payload in (
                ("snapshot", engine.restore, corrupted(good, draw)),
                ("snapshot", engine.restore, resealed(corrupted(good, draw), native)),
                ("state", engine.load, corrupted(state, draw)),
            ):
                try:
                    call(payload)
                except EnvError:
                    continue
                taken[kind] += 1
                play(engine, draw, 25, EnvError)
                engine.view()
                engine.canonical_bytes()
        batch.reset([turn, turn + 1, turn + 2])
        for _ in range(40):
            batch.step(np.array([draw.randrange(17) for _ in range(3)], np.uint8))
        batch.restore(1, good)
        batch.view(1)
    print(f"{rounds} rounds, corrupted but playable: {taken}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
