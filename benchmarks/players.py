"""How well the scripted players of Crafter play: mean number of achievements over a hundred fixed seeds.

    python benchmarks/players.py            the table, and benchmarks/results/players.json
    python benchmarks/players.py --seeds N  the first N seeds only; then nothing is written unless --out says where

Seeds 0 to 99, one to five actions a decision; the player's own seed is the world's. Intervals are 95 %
(normal, over seeds); times are CPU seconds of a whole episode, world generation included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from task_app.apps.crafter.engine import CrafterEnv, which_engine
from task_app.apps.crafter.expert import ExpertAgent
from task_app.apps.crafter.options import CrafterOptions
from task_app.apps.crafter.planner import EFFORT, play_planned
from task_app.apps.crafter.scripted import RandomAgent
from task_app.apps.crafter.view import CrafterView

RESULT = Path(__file__).parent / "results" / "players.json"
SEEDS = 100
OPTIONS = CrafterOptions(min_actions_per_decision=1, max_actions_per_decision=5)
LONG_EFFORT = 10
"""The planner's effort in the long game, where its default would take minutes for each seed of a slow machine."""


@dataclass(frozen=True)
class Row:
    """One line of the table. `play` maps a seed to an episode's last view."""

    player: str
    steps: int
    play: Callable[[int], CrafterView]
    required: float | None = None
    goal: float | None = None


def play_agent(kind: type[ExpertAgent] | type[RandomAgent], steps: int, seed: int) -> CrafterView:
    """The last view of an episode of at most `steps` steps."""
    env, agent = CrafterEnv(), kind(OPTIONS, seed)
    view = env.reset(seed)
    while view.step < steps:
        for action in agent.act(view)[: steps - view.step]:
            result = env.step(action)
            view = result.observation
            if result.terminated or result.truncated:
                return view
    return view


def play_planner(steps: int, effort: float, seed: int) -> CrafterView:
    """The same for the planner, which knows how long the episode is."""
    return play_planned(seed, OPTIONS, steps, effort)[1]


ROWS = (
    Row("random", 100, partial(play_agent, RandomAgent, 100)),
    Row("random", 300, partial(play_agent, RandomAgent, 300)),
    Row("expert", 100, partial(play_agent, ExpertAgent, 100), 9.8, 10.2),
    Row("expert", 300, partial(play_agent, ExpertAgent, 300), 13.5, 14.0),
    Row("expert", 1_000, partial(play_agent, ExpertAgent, 1_000), None, 15.1),
    Row("planner", 100, partial(play_planner, 100, EFFORT), 12.0),
    Row(f"planner, effort {LONG_EFFORT}", 300, partial(play_planner, 300, LONG_EFFORT)),
)


def episode(play: Callable[[int], CrafterView], seed: int) -> tuple[int, bool, float]:
    """Achievements, whether the player died, CPU seconds."""
    begin = time.process_time()
    view = play(seed)
    achieved = sum(count > 0 for count in view.achievements.values())
    return achieved, view.inventory["health"] <= 0, time.process_time() - begin


def measure(seeds: int, jobs: int) -> dict[str, Any]:
    """Every row of the table over the first `seeds` seeds, `jobs` episodes at a time."""
    result: dict[str, Any] = {"machine": machine(), "seeds": seeds, "options": OPTIONS.model_dump(), "rows": []}
    with ProcessPoolExecutor(jobs) as pool:
        for row in ROWS:
            print(f"{row.player}, {row.steps} steps …", file=sys.stderr)
            episodes = list(pool.map(partial(episode, row.play), range(seeds)))
            scores = [achieved for achieved, _, _ in episodes]
            result["rows"].append(
                {
                    "player": row.player,
                    "steps": row.steps,
                    "mean": mean(scores),
                    "interval": 1.96 * stdev(scores) / sqrt(seeds),
                    "lowest": min(scores),
                    "highest": max(scores),
                    "deaths": sum(died for _, died, _ in episodes),
                    "median seconds": median(seconds for _, _, seconds in episodes),
                    "mean seconds": mean(seconds for _, _, seconds in episodes),
                    "required": row.required,
                    "goal": row.goal,
                    "scores": scores,
                }
            )
            print(line(result["rows"][-1]), file=sys.stderr, flush=True)
    return result


def machine() -> dict[str, Any]:
    """Where and with which engine this was measured."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [text.split(":")[1].strip() for text in lines if text.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "engine": which_engine()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def line(row: dict[str, Any]) -> str:
    """One row for people."""
    required, goal = (f"≥ {row[name]:g}" if row[name] else "" for name in ("required", "goal"))
    bars = [row[name] for name in ("required", "goal") if row[name]]
    verdict = " / ".join("met" if row["mean"] >= bar else "missed" for bar in bars)
    figures = f"{row['mean']:.2f} ± {row['interval']:.2f} | {row['lowest']} to {row['highest']} | {row['deaths']}"
    seconds = f"{row['median seconds']:.3f}"
    return f"| {row['player']} | {row['steps']:,} | {figures} | {seconds} | {required} | {goal} | {verdict} |"


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    head = "| player | steps | achievements | range | deaths | s an episode | required | goal | |"
    return "\n".join((head, "|" + "---|" * 9, *map(line, result["rows"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0 on; at least 2")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="episodes at a time")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    result = measure(chosen.seeds, chosen.jobs)
    print(table(result))
    out = chosen.out or (RESULT if chosen.seeds == SEEDS else None)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
