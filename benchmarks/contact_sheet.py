"""Rendered frames beside the `crafter` package's own, at all hours: benchmarks/results/frames.png.

    python benchmarks/contact_sheet.py

Each row is one step of the package (its chunks in insertion order, as in the tests). Left, its 64×64 frame;
then ours from the state after that step alone, night noise included; then where they differ (black: nowhere);
right, ours at 256×256. Prints the pixels that differ and the time of a frame; fails if any pixel differs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from PIL import Image, ImageDraw

from task_app.apps.crafter.engine.protocol import AREA, CHUNK, CHUNKS, SKELETON, encode_state
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.apps.crafter.engine.rules import ITEMS, MATERIAL_ID, WALKABLE
from task_app.apps.crafter.render import Picture, picture, png_bytes
from tests.apps.crafter.engine.oracle import OrderedPackage

RESULT = Path(__file__).parent / "results" / "frames.png"
SEED = 11
SHOWN, GAP, LABEL = 256, 8, 90
NOON, DUSK, NIGHT, ASLEEP = 60, 165, 210, 190
ITEMS_HELD = {"food": 7, "drink": 5, "energy": 3, "sapling": 1, "wood": 5, "stone": 9, "iron": 1, "stone_pickaxe": 1}
State = dict[str, Any]


def placed(state: State, x: int, y: int, step: int, **player: int) -> State:
    """The state with the player elsewhere, at another hour, and with something in its hands."""
    chunks = {number: [member for member in members if member != 0] for number, members in state["chunks"]}
    chunks.setdefault(x // CHUNK * CHUNKS + y // CHUNK, []).append(0)
    counts = dict(zip(ITEMS, state["inventory"], strict=True)) | ITEMS_HELD
    return state | {
        "step": step,
        "player": state["player"] | {"x": x, "y": y} | player,
        "inventory": tuple(counts.values()),
        "chunks": list(chunks.items()),
    }


def best_place(state: State, worth: Callable[[int, int], float]) -> tuple[int, int]:
    """The free tile to stand on that is worth most."""
    taken = {(thing[1], thing[2]) for thing in state["objects"]}
    tiles = [divmod(index, AREA) for index, material in enumerate(state["materials"]) if material in WALKABLE]
    return max((tile for tile in tiles if tile not in taken), key=lambda tile: worth(*tile))


def outlook(state: State) -> tuple[int, int]:
    """Where the view holds most kinds of material, and creatures."""
    world = np.frombuffer(state["materials"], np.uint8).reshape(AREA, AREA)
    things = [(thing[1], thing[2]) for thing in state["objects"]]

    def worth(x: int, y: int) -> float:
        near = sum(abs(tx - x) <= 4 and abs(ty - y) <= 3 for tx, ty in things)
        return 2 * len(np.unique(world[max(0, x - 4) : x + 5, max(0, y - 3) : y + 4])) + near

    return best_place(state, worth)


def cave(state: State) -> tuple[int, int]:
    """Where most of the view is tunnel, ore or stone and skeletons are near."""
    world = np.frombuffer(state["materials"], np.uint8).reshape(AREA, AREA)
    dark = np.isin(world, [MATERIAL_ID[name] for name in ("path", "coal", "iron", "diamond", "lava")])
    skeletons = [(thing[1], thing[2]) for thing in state["objects"] if thing[0] == SKELETON]

    def worth(x: int, y: int) -> float:
        near = sum(abs(sx - x) <= 4 and abs(sy - y) <= 3 for sx, sy in skeletons)
        return float(dark[max(0, x - 4) : x + 5, max(0, y - 3) : y + 4].sum()) + 20 * near

    return best_place(state, worth)


def scenes() -> dict[str, State]:
    """The state before each frame, by the row's label."""
    engine = ReferenceEngine()
    engine.reset(SEED)
    new = engine.canonical_state()
    outdoors = outlook(new)
    corner = best_place(new, lambda x, y: -(x + y))
    return {
        "day": placed(new, *outdoors, NOON),
        "dusk": placed(new, *outdoors, DUSK),
        "night": placed(new, *outdoors, NIGHT),
        "asleep": placed(new, *outdoors, ASLEEP, sleeping=1),
        "border": placed(new, *corner, NOON),
        "cave": placed(new, *cave(new), NOON),
        "cave, night": placed(new, *cave(new), NIGHT),
    }


def frames(package: OrderedPackage, state: State) -> tuple[Picture, Picture, Picture]:
    """One step of the package from here: its own frame, ours of the state after it, and ours four times as large."""
    package.load(encode_state(state))
    theirs = package.step(0)[0]
    after = package.canonical_state()
    return theirs, picture(after), picture(after, SHOWN)


def milliseconds(state: State, size: int) -> float:
    """CPU time of one frame, in the median."""
    taken = []
    for _ in range(40):
        begin = time.process_time()
        picture(state, size)
        taken.append(1e3 * (time.process_time() - begin))
    return median(taken)


def sheet(rows: dict[str, tuple[Picture, Picture, Picture]]) -> Image.Image:
    titles = ("crafter's, 64 by 64", "ours, 64 by 64", "difference", "ours, 256 by 256")
    made = Image.new("RGB", (LABEL + len(titles) * (SHOWN + GAP), 24 + len(rows) * (SHOWN + GAP)), "white")
    draw = ImageDraw.Draw(made)
    for column, title in enumerate(titles):
        draw.text((LABEL + column * (SHOWN + GAP), 6), title, fill="black")
    for row, (label, (theirs, ours, large)) in enumerate(rows.items()):
        top = 24 + row * (SHOWN + GAP)
        draw.text((6, top + SHOWN // 2), label, fill="black")
        difference = np.where(theirs != ours, 255, 0).astype(np.uint8)
        for column, pixels in enumerate((theirs, ours, difference, large)):
            shown = Image.fromarray(pixels).resize((SHOWN, SHOWN), Image.Resampling.NEAREST)
            made.paste(shown, (LABEL + column * (SHOWN + GAP), top))
    return made


def main() -> int:
    package = OrderedPackage(picture=True)
    states = scenes()
    rows = {label: frames(package, state) for label, state in states.items()}
    wrong = 0
    for label, (theirs, ours, _) in rows.items():
        differing = int((theirs != ours).any(axis=-1).sum())
        wrong += differing
        print(f"{label:12} {differing} of {theirs.shape[0] * theirs.shape[1]} pixels differ")
    for size in (64, 128, 256, 512):
        day, night = (milliseconds(states[label], size) for label in ("day", "night"))
        print(f"{size}×{size}: {day:.2f} ms by day, {night:.2f} ms at night")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_bytes(png_bytes(np.asarray(sheet(rows))))
    print(f"written: {RESULT}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
