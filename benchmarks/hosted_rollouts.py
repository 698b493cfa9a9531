"""Speed of the hosted task app beside the closest peer's recorded figures.

    python benchmarks/hosted_rollouts.py [--rollouts 40] [--output benchmarks/results/hosted_rollouts.json]

Three processes: a stub model that answers at once, the task app with a trace database, and this one, the
clients. A rollout is 10 decisions of 5 actions; 8 rollouts share a seed; every seed is new to the app, so
world generation is in the figures. Prints them and stores them as JSON. Starts and ends what it needs.

The stub's fixed answer makes the 8 rollouts of a seed alike, and equal messages are stored once; the last
measurement, one rollout per seed, shows the database without that help.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
DECISIONS = 10
ROLLOUTS_PER_SEED = 8
CLIENTS = (1, 8)

PEER = {
    "rollouts_per_s": 0.6,
    "server_cpu_ms_per_decision": "160-200",
    "response_bytes": 58_000,
    "database_bytes_per_decision": 13_400,
    "traces_kept_of_40": 5,
}
"""synth-ai 0.2.9.dev8 with the same stub on a 2-core machine; 1 and 8 clients alike, traces kept with 8."""

TARGET = {"rollouts_per_s": 10.0, "server_cpu_ms_per_decision": 10.0}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of the load. Times are wall-clock seconds except for CPU, which is the server process's own.

    environment_share  seconds spent making and stepping worlds over the server's CPU seconds (wall over
                       CPU, so with several clients an upper bound)
    """

    clients: int
    rollouts: int
    rollouts_per_seed: int
    seconds: float
    rollouts_per_s: float
    server_cpu_ms_per_decision: float
    environment_share: float
    response_bytes: float
    database_bytes_per_decision: float
    traces_kept: int


@contextmanager
def process(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python process and the address in the first line it prints; ended by its id."""
    started = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert started.stdout is not None
    try:
        words = started.stdout.readline().split()
        yield started, next(word for word in words if word.startswith("http://"))
    finally:
        started.terminate()
        started.communicate(timeout=30)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, threads that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def database_bytes(path: Path) -> int:
    """Pages in use, those of the write-ahead log included."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    connection.close()
    return pages * size


def request(run_id: str, seed: int, model_url: str) -> dict[str, Any]:
    """The body of one rollout, its trace asked for."""
    return {
        "run_id": run_id,
        "env": {"seed": seed},
        "policy": {
            "policy_name": "chat",
            "config": {"model": "stub", "inference_url": model_url, "max_llm_calls": DECISIONS},
        },
        "record": {"return_trace": True},
    }


@dataclass(frozen=True, slots=True)
class Setup:
    """What runs during a measurement: the app's process id and address, the stub's address, the database."""

    pid: int
    address: str
    model_url: str
    db: Path


def measure(setup: Setup, clients: int, seeds: Sequence[int], per_seed: int = ROLLOUTS_PER_SEED) -> Measurement:
    """Play `per_seed` rollouts of each seed from `clients` clients."""
    pid, db = setup.pid, setup.db
    run_id = f"clients-{clients}-seed-{seeds[0]}"
    bodies = [request(run_id, seed, setup.model_url) for seed in seeds for _ in range(per_seed)]
    bytes_before, cpu_before, start = database_bytes(db), cpu_seconds(pid), time.perf_counter()
    with (
        httpx.Client(base_url=setup.address, timeout=120, trust_env=False) as http,
        ThreadPoolExecutor(clients) as pool,
    ):
        answers = list(pool.map(lambda body: http.post("/rollout", json=body).raise_for_status(), bodies))
    seconds, cpu_s = time.perf_counter() - start, cpu_seconds(pid) - cpu_before
    decisions = DECISIONS * len(bodies)
    return Measurement(
        clients=clients,
        rollouts=len(bodies),
        rollouts_per_seed=per_seed,
        seconds=round(seconds, 3),
        rollouts_per_s=round(len(bodies) / seconds, 2),
        server_cpu_ms_per_decision=round(1000 * cpu_s / decisions, 2),
        environment_share=round(environment_seconds(db, run_id) / cpu_s, 3),
        response_bytes=round(sum(len(answer.content) for answer in answers) / len(answers)),
        database_bytes_per_decision=round((database_bytes(db) - bytes_before) / decisions),
        traces_kept=traces_kept(db, run_id, [answer.json() for answer in answers]),
    )


def environment_seconds(db: Path, run_id: str) -> float:
    """Seconds the run's episodes spent making worlds and stepping them, by their own clocks."""
    sql = """SELECT sum(details ->> 'reset_s') + sum(details ->> 'env_s') FROM episodes WHERE run_id = ?"""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, (run_id,)).fetchone()[0]


def traces_kept(db: Path, run_id: str, answers: Sequence[dict[str, Any]]) -> int:
    """How many answers hold a trace whose episode is in the database with all of its decisions."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        sql = """SELECT episode_id FROM episodes JOIN decisions ON decisions.episode = episodes.id
                 WHERE run_id = ? GROUP BY episode_id HAVING count(*) = ?"""
        stored = {row[0] for row in connection.execute(sql, (run_id, DECISIONS))}
    return len(stored & {answer["trace"]["session_id"] for answer in answers if answer["trace"]})


def measure_all(seeds_per_measurement: int) -> list[Measurement]:
    """Warm up, measure with each number of clients, then once with nothing shared between rollouts."""
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "bench.db")
        serve = ["-m", "task_app", "serve", "crafter", "--port", "0", "--trace-db", str(db)]
        with process([str(HERE / "stub_model.py")]) as (_, model_url), process(serve) as (server, address):
            setup = Setup(server.pid, address, model_url, db)
            seeds = iter(range(10_000))
            measure(setup, 1, [next(seeds)])
            measured = [
                measure(setup, clients, [next(seeds) for _ in range(seeds_per_measurement)]) for clients in CLIENTS
            ]
            return [*measured, measure(setup, 1, [next(seeds) for _ in range(ROLLOUTS_PER_SEED)], per_seed=1)]


def run(rollouts: int) -> dict[str, Any]:
    """Everything as plain JSON values; `rollouts` for each number of clients, rounded up to whole seeds."""
    load_before = os.getloadavg()[0]
    *measured, unshared = measure_all(-(-rollouts // ROLLOUTS_PER_SEED))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_average_before": round(load_before, 2),
        "decisions_per_rollout": DECISIONS,
        "actions_per_decision": 5,
        "measured": [asdict(measurement) for measurement in measured],
        "one_rollout_per_seed": asdict(unshared),
        "peer": PEER,
        "times_the_peers_rollouts_per_s": [round(m.rollouts_per_s / PEER["rollouts_per_s"], 1) for m in measured],
        "target": TARGET,
        "target_met": all(
            m.rollouts_per_s >= TARGET["rollouts_per_s"]
            and m.server_cpu_ms_per_decision <= TARGET["server_cpu_ms_per_decision"]
            and m.traces_kept == m.rollouts
            for m in measured
        ),
    }


def main() -> None:
    """Run, print, store; the exit code is 1 when the target was missed."""
    parser = argparse.ArgumentParser(description="Speed of the hosted task app beside the closest peer's.")
    parser.add_argument("--rollouts", type=int, default=40, help="rollouts for each number of clients")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "hosted_rollouts.json")
    arguments = parser.parse_args()
    result = run(arguments.rollouts)
    text = json.dumps(result, indent=2)
    print(text)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text + "\n")
    sys.exit(0 if result["target_met"] else 1)


if __name__ == "__main__":
    main()
