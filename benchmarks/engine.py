"""How fast the Crafter engines are against the stock `crafter` package, in one process: medians of CPU time.

    python benchmarks/engine.py             the table, and benchmarks/results/engine.json
    python benchmarks/engine.py --long      instead: a million steps, native against reference, full state after each
    python benchmarks/engine.py --package N with --long: N episodes against the ordered package, too

Stock runs as installed, without numba. Times are of this process's CPU, so that other load on the machine
disturbs both sides alike; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"  # where numba is installed, opensimplex would use it
sys.path.insert(0, str(Path(__file__).parents[1]))

import crafter
import numpy as np

from task_app.apps.crafter.engine import native
from task_app.apps.crafter.engine.protocol import Engine, decode_state
from task_app.apps.crafter.engine.reference import ReferenceEngine

RESULT = Path(__file__).parent / "results" / "engine.json"
SEEDS = range(100, 106)
STEPS = 300  # one day and night
BATCH = 256
TARGETS: dict[str, dict[str, float]] = {
    "reference": {"reset": 20, "step": 50, "step without render": 12, "snapshot and restore": 500},
    "native": {"reset": 400, "step": 1_200, "step without render": 300, "snapshot and restore": 5},
}
BATCH_TARGET, BYTES_TARGET = 1_500_000, 64 * 1024
STOCK_STEP = 1_307e-6  # seconds on the two quiet cores that the targets in absolute units were set on


def times(calls: Iterable[Callable[[], Any]]) -> list[float]:
    """CPU seconds of each call."""
    taken = []
    for call in calls:
        begin = time.process_time_ns()
        call()
        taken.append((time.process_time_ns() - begin) / 1e9)
    return taken


def actions_for(seed: int) -> list[int]:
    """Random movement and doing: a player that lives through most of a day."""
    return random.Random(seed).choices(range(7), k=STEPS)


# Stock


class Unrendered(crafter.Env):
    """Stock without its picture: what a step costs when nobody looks."""

    def render(self, size: Any = None) -> Any:
        return None


def stock_times(kind: type[crafter.Env]) -> tuple[float, list[float]]:
    """Median seconds of a reset, and the seconds of every step."""
    resets, steps = [], []
    for seed in SEEDS:
        env = kind(seed=seed)
        resets += times([env.reset])
        steps += times([partial(env.step, action) for action in actions_for(seed)])
    return median(resets), steps


# Ours


def engine_times(make: Callable[[], Engine], many: int) -> dict[str, float]:
    """Medians in seconds. Short calls are timed `many` at a time: the clock itself takes about a microsecond."""
    engine, resets, steps, copies, night = make(), [], [], [], []
    for seed in SEEDS:
        engine.reset(seed)
        resets += times([lambda s=seed: engine.reset(s)] * (1 + many // 10))
        start = engine.snapshot()
        actions = actions_for(seed)
        for _ in range(1 + many // 10):
            engine.restore(start)
            for at in range(0, STEPS, many):
                share = time_steps(engine, actions[at : at + many])
                if share is None:
                    break
                (night if 150 <= at % 300 < 270 else steps).append(share)
        engine.restore(start)
        copies += [t / many for t in times([lambda: [engine.restore(engine.snapshot()) for _ in range(many)]] * 20)]
    both = steps + night
    return {
        "reset": median(resets),
        "step": median(both),
        "step by day": median(steps),
        "step by night": median(night) if night else float("nan"),
        "step mean": sum(both) / len(both),
        "snapshot and restore": median(copies),
    }


def time_steps(engine: Engine, actions: list[int]) -> float | None:
    """Seconds a step; None once the player has died."""
    step, dead = engine.step, False
    begin = time.process_time_ns()
    for action in actions:
        dead = step(action)[1]
        if dead:
            return None
    return (time.process_time_ns() - begin) / 1e9 / len(actions)


def batch_rate(night_draws: Any) -> float:
    """Steps a second on one core: 256 worlds through STEPS steps, a dead world going on from its own start."""
    batch = native.NativeBatch(BATCH, night_draws)
    batch.reset([10_000 + i for i in range(BATCH)])
    starts = [batch.snapshot(i) for i in range(BATCH)]
    actions = np.random.RandomState(0).randint(0, 17, (STEPS, BATCH)).astype(np.uint8)
    rates = []
    for _ in range(5):
        begin = time.process_time_ns()
        for row in actions:
            _, dead, _ = batch.step(row)
            for i in np.flatnonzero(dead):
                batch.restore(int(i), starts[i])
        rates.append(actions.size / (time.process_time_ns() - begin) * 1e9)
        for i in range(BATCH):
            batch.restore(i, starts[i])
    return median(rates)


# The table


def measure() -> dict[str, Any]:
    print("stock crafter, with and without pictures (a minute) …", file=sys.stderr)
    reset, steps = stock_times(crafter.Env)
    _, bare = stock_times(Unrendered)
    stock = {"reset": reset, "step": median(steps), "step without render": median(bare)}
    result: dict[str, Any] = {"machine": machine(), "stock seconds": stock, "engines": {}}
    result["machine"]["slower than where the targets were set"] = stock["step"] / STOCK_STEP
    makers: dict[str, tuple[Callable[[], Engine], int]] = {"reference": (ReferenceEngine, 1)}
    if not native.available():
        makers["native"] = (native.NativeEngine, 50)
    for name, (make, many) in makers.items():
        print(f"{name} …", file=sys.stderr)
        seconds = engine_times(make, many)
        ratios = {
            "reset": stock["reset"] / seconds["reset"],
            "step": stock["step"] / seconds["step"],
            "step without render": stock["step without render"] / seconds["step"],
            "snapshot and restore": seconds["snapshot and restore"] * 1e6,
        }
        result["engines"][name] = {"seconds": seconds, "measured": ratios, "targets": TARGETS[name]}
    if "native" in makers:
        result["batch"] = {
            "worlds": BATCH,
            "steps a second": batch_rate("stock"),
            "steps a second without night draws": batch_rate("none"),
            "target": BATCH_TARGET,
        }
        extension: Any = native._extension
        result["bytes per world"] = {"struct": extension.WORLD_BYTES, "target": BYTES_TARGET}
        engine = native.NativeEngine()
        engine.reset(1)
        result["bytes per world"]["snapshot"] = len(engine.snapshot())
    return result


def machine() -> dict[str, Any]:
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    stock = {name: value * 1e6 for name, value in result["stock seconds"].items()}
    lines = [
        "| | stock µs | engine | µs | ratio | target | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, engine in result["engines"].items():
        for what, target in engine["targets"].items():
            value = engine["measured"][what]
            if what == "snapshot and restore":
                row = (what, "", name, f"{value:.2f}", "", f"≤ {target:g} µs", _met(value <= target))
            else:
                micro = engine["seconds"]["step" if what.startswith("step") else what] * 1e6
                row = (what, f"{stock[what]:,.0f}", name, f"{micro:,.2f}", f"{value:,.0f}×", f"≥ {target:,}×", _met(value >= target))  # fmt: skip  # noqa: E501
            lines.append(f"| {' | '.join(row)} |")
        day, night, mean = (engine["seconds"][f"step {word}"] * 1e6 for word in ("by day", "by night", "mean"))
        lines.append(f"| step by day / by night / mean | | {name} | {day:.2f} / {night:.2f} / {mean:.2f} | | | |")
    if "batch" in result:
        rate, bare = result["batch"]["steps a second"], result["batch"]["steps a second without night draws"]
        lines.append(
            f"| batch of {BATCH}, steps/s | | native | {rate / 1e6:.2f} M ({bare / 1e6:.2f} M without night draws) "
            f"| | ≥ {BATCH_TARGET / 1e6:g} M | {_met(rate >= BATCH_TARGET)} |"
        )
        size = result["bytes per world"]
        lines.append(
            f"| bytes a world (snapshot) | | native | {size['struct']:,} ({size['snapshot']:,}) | | "
            f"≤ {BYTES_TARGET:,} | {_met(size['struct'] <= BYTES_TARGET)} |"
        )
    slower = result["machine"]["slower than where the targets were set"]
    lines.append(f"\nStock's step took {slower:.1f} times what it did where the targets in µs and steps/s were set.")
    return "\n".join(lines)


def _met(fine: bool) -> str:
    return "met" if fine else "missed"


# The long comparison


def compare_long(total: int, package_episodes: int) -> int:
    """Steps with full state, reward, events and random numbers equal after each. Raises at the first difference."""
    from tests.apps.crafter.engine.native_scenes import shake

    if package_episodes:
        _compare_with_package(package_episodes)
    done, seed, events = 0, 0, 0
    reference, engine = ReferenceEngine(), native.NativeEngine()
    while done < total:
        draw = random.Random(seed)
        reference.reset(seed)
        engine.reset(seed)
        for step in range(2_000):
            if seed % 2 and (step % 10 == 0 or engine.view().inventory[0] <= 0):  # odd seeds: busy scenes
                state = shake(engine.canonical_bytes(), draw)
                engine.load(state)
                reference.load(state)
            action = draw.choice((5, draw.randrange(17)))
            mine, other = engine.step(action), reference.step(action)
            done += 1
            events += len(mine[2])
            if mine != other or engine.canonical_bytes() != reference.canonical_bytes():
                raise SystemExit(f"seed {seed} differs at step {step}: {mine} {other}")
            if mine[1] and not seed % 2:
                break
        seed += 1
        if seed % 20 == 0:
            print(f"{done:,} steps, {events:,} events, no difference", file=sys.stderr)
    print(f"native equals reference: {done:,} steps of {seed} games, {events:,} events, no difference")
    return done


def _compare_with_package(episodes: int) -> None:
    from tests.apps.crafter.engine.native_scenes import shake
    from tests.apps.crafter.engine.oracle import OrderedPackage

    engine, done = native.NativeEngine(), 0
    for seed in range(episodes):
        draw, package = random.Random(seed), OrderedPackage()
        package.reset_to(seed)
        engine.reset(seed)
        if engine.canonical_bytes() != package.canonical_bytes():
            raise SystemExit(f"world {seed} differs from the package's")
        for step in range(500):
            if seed % 2 and (step % 10 == 0 or engine.view().inventory[0] <= 0):
                state = shake(engine.canonical_bytes(), draw)
                engine.load(state)
                package.load(state)
            action = draw.choice((5, draw.randrange(17)))
            mine, other = engine.step(action), package.play(action)
            done += 1
            state, expected = engine.canonical_bytes(), package.canonical_bytes()
            if mine != other or state != expected:
                one, two = decode_state(state), decode_state(expected)
                differing = [name for name in one if one[name] != two[name]]
                raise SystemExit(f"seed {seed} differs from the package at step {step}: {differing}")
            if mine[1] and not seed % 2:
                break
    print(f"native equals the ordered package: {done:,} steps of {episodes} games, no difference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--long", action="store_true", help="compare a million steps instead of measuring")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the long comparison")
    parser.add_argument("--package", type=int, default=0, metavar="N", help="with --long: N games against the package")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.long:
        compare_long(options.steps, options.package)
        return
    result = measure()
    print(table(result))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
