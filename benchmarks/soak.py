"""Many rollouts on one served app: does it keep its memory, its descriptors and every trace?

    python benchmarks/soak.py [--rollouts 20000] [--workers 2] [--output benchmarks/results/soak.json]

A rollout is 10 decisions of 5 actions, asked of a stub model that answers at once, by 8 clients; every 8 rollouts
share a seed. Memory (resident, of all the server's processes) and open descriptors are read every twentieth of the
way; after the first fifth, which warms caches up, memory may move by 5 %. At the end every answer's episode must be
in the database with all its decisions, and the database must pass `traces verify`. Starts and ends what it needs.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from hosted_rollouts import DECISIONS, ROLLOUTS_PER_SEED, children, keep, process, request, timed, traces_kept
from rich.progress import track

from task_app.verify import verify_database

HERE = Path(__file__).parent
CLIENTS = 8
LOOKS = 20
WARM = 4
MOST_DRIFT = 0.05


def resident_mb(pid: int) -> float:
    """Memory of a process and its children that no other process shares, megabytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_", "Pss_Shmem")))
    return own / 1024 + sum(resident_mb(child) for child in children(pid))


def descriptors(pid: int) -> int:
    """Open descriptors of a process and its children."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir())) + sum(descriptors(child) for child in children(pid))


def soak(rollouts: int, workers: int) -> dict[str, Any]:
    """Everything as plain JSON values."""
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "soak.db")
        serve = ["-m", "task_app", "serve", "crafter", "--port", "0", "--trace-db", str(db), "--workers", str(workers)]
        with process([str(HERE / "stub_model.py")]) as (_, model_url), process(serve) as (server, address):
            looks, kept, seconds = play(rollouts, server.pid, address, model_url, db)
        begun = time.perf_counter()
        verdict = verify_database(db, workers=2)
        return figures(looks) | {
            "rollouts": rollouts,
            "seconds": round(seconds, 1),
            "rollouts_per_s": round(rollouts / seconds, 1),
            "traces_kept": kept,
            "database_mb": round(db.stat().st_size / 1e6, 1),
            "verified": verdict.passed,
            "verify_seconds": round(time.perf_counter() - begun, 1),
        }


def play(rollouts: int, pid: int, address: str, model_url: str, db: Path) -> tuple[list[tuple[float, int]], int, float]:
    """(memory, descriptors) at each look, answers whose episode is stored whole, seconds."""
    part = -(-rollouts // LOOKS)
    looks, kept, seconds = [], 0, 0.0
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    with (
        httpx.Client(base_url=address, timeout=120, trust_env=False, limits=limits) as http,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        for look in track(range(LOOKS), description="soaking"):
            numbers = range(look * part, min(rollouts, (look + 1) * part))
            bodies = [request(f"soak-{look}", number // ROLLOUTS_PER_SEED, model_url) for number in numbers]
            begun = time.perf_counter()
            answers = [answer.json() for _, answer in pool.map(lambda body: timed(http, body), bodies)]
            seconds += time.perf_counter() - begun
            kept += traces_kept(db, f"soak-{look}", answers)
            looks.append((resident_mb(pid), descriptors(pid)))
    return looks, kept, seconds


def figures(looks: list[tuple[float, int]]) -> dict[str, Any]:
    """Memory and descriptors once warm, and how far they moved from there."""
    memory, open_files = zip(*looks[WARM - 1 :], strict=True)
    return {
        "memory_mb": [round(one, 1) for one, _ in looks],
        "memory_drift_after_warm_up": round(max(abs(one / memory[0] - 1) for one in memory), 4),
        "descriptors": [number for _, number in looks],
        "descriptors_gained": open_files[-1] - open_files[0],
    }


def main() -> None:
    """Run, print, store; the exit code is 1 when something was lost or grew."""
    parser = argparse.ArgumentParser(description="Many rollouts on one served app.")
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "soak.json")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    found = soak(arguments.rollouts, arguments.workers)
    result = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": f"benchmarks/soak.py --rollouts {arguments.rollouts} --workers {arguments.workers}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_average_before": round(load_before, 2),
        "decisions_per_rollout": DECISIONS,
        **found,
    }
    result["passed"] = (
        found["memory_drift_after_warm_up"] <= MOST_DRIFT
        and found["descriptors_gained"] <= 0
        and found["traces_kept"] == arguments.rollouts
        and found["verified"]
    )
    keep(result, arguments.output)
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()
