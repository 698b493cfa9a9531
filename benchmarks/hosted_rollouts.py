"""Speed of the hosted task app beside the closest peer's recorded figures.

    python benchmarks/hosted_rollouts.py [--rollouts 160] [--workers 2] [--output F.json]

On one machine: a stub model that answers at once, the task app with a trace database, and this process, the clients.
A rollout is 10 decisions of 5 actions; 8 rollouts share a seed; every seed is new to the app, so world generation is
in the figures. What a decision costs the server is told beside its floor, one bare httpx call with the same body to
the same stub, made by this process every few milliseconds beside as many clients: as often as decisions are made, with
caches as cold and cores as busy. Prints the figures and stores them as JSON. Starts and ends
what it needs.

The stub's fixed answer makes the 8 rollouts of a seed alike, and equal messages are stored once; the last
measurement, one rollout per seed, shows the database without that help.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from task_app.store import TraceStore

HERE = Path(__file__).parent
DECISIONS = 10
ROLLOUTS_PER_SEED = 8
CLIENTS = (1, 8, 64)
FLOOR_CALLS = 400
PAUSE_S = 0.003
HEALTH_CALLS = 200

PEER = {
    "rollouts_per_s": 0.6,
    "server_cpu_ms_per_decision": "160-200",
    "response_bytes": 58_000,
    "database_bytes_per_decision": 13_400,
    "traces_kept_of_40": 5,
}
"""synth-ai 0.2.9.dev8 with the same stub on a 2-core machine; 1 and 8 clients alike, traces kept with 8."""

TARGET = {
    "rollouts_per_s, 8 and 64 clients": 40.0,
    "server_cpu_ms_per_decision above the floor": 1.0,
    "response_bytes_per_decision": 3000,
    "p99 over p50, 8 clients": 3.0,
    "health_p99_ms": 20.0,
}


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
    p50_ms: float
    p99_ms: float
    server_cpu_ms_per_decision: float
    environment_share: float
    response_bytes_per_decision: float
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
    """User and system time of a process and its children so far, threads that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(child) for child in children(pid))


def children(pid: int) -> list[int]:
    """The processes a process started that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


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
        answers = list(pool.map(lambda body: timed(http, body), bodies))
    seconds, cpu_s = time.perf_counter() - start, cpu_seconds(pid) - cpu_before
    decisions = DECISIONS * len(bodies)
    latencies = sorted(latency for latency, _ in answers)
    return Measurement(
        clients=clients,
        rollouts=len(bodies),
        rollouts_per_seed=per_seed,
        seconds=round(seconds, 3),
        rollouts_per_s=round(len(bodies) / seconds, 2),
        p50_ms=round(1000 * percentile(latencies, 0.5), 1),
        p99_ms=round(1000 * percentile(latencies, 0.99), 1),
        server_cpu_ms_per_decision=round(1000 * cpu_s / decisions, 2),
        environment_share=round(environment_seconds(db, run_id) / cpu_s, 3),
        response_bytes_per_decision=round(sum(len(answer.content) for _, answer in answers) / decisions),
        database_bytes_per_decision=round((database_bytes(db) - bytes_before) / decisions),
        traces_kept=traces_kept(db, run_id, [answer.json() for _, answer in answers]),
    )


def timed(http: httpx.Client, body: dict[str, Any]) -> tuple[float, httpx.Response]:
    """One rollout: seconds and answer; one that is told to come again does, and its waiting counts."""
    begun = time.perf_counter()
    while (answer := http.post("/rollout", json=body)).status_code == 429:
        time.sleep(0.05)
    return time.perf_counter() - begun, answer.raise_for_status()


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that a share of the ordered values does not exceed."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def floor_ms(model_url: str, body: bytes, pause_s: float = 0.0) -> float:
    """CPU milliseconds of one httpx call with this body, median of four stretches; the least a decision can cost.

    Without a pause the calls follow at once and everything is in the cache; with one they come as decisions do.
    """
    found = []
    with httpx.Client() as http:
        for _ in range(4):
            spent = 0.0
            for _ in range(FLOOR_CALLS // 4):
                time.sleep(pause_s)
                begun = time.thread_time()
                http.post(f"{model_url}/v1/chat/completions", json=json.loads(body)).json()
                spent += time.thread_time() - begun
            found.append(spent / (FLOOR_CALLS // 4))
    return 1000 * statistics.median(found)


@contextmanager
def played_beside(setup: Setup, seeds: Sequence[int], clients: int) -> Iterator[None]:
    """Rollouts that play all the time, from so many clients."""
    stop = threading.Event()
    bodies = [request(f"beside-{seed}", seed, setup.model_url) for seed in seeds]

    def keep_playing(index: int) -> None:
        with httpx.Client(base_url=setup.address, timeout=120, trust_env=False) as http:
            while not stop.is_set():
                timed(http, bodies[index % len(bodies)])

    with ThreadPoolExecutor(clients) as pool:
        playing = [pool.submit(keep_playing, index) for index in range(clients)]
        time.sleep(1.0)
        try:
            yield
        finally:
            stop.set()
            for one in playing:
                one.result()


def prompt_body(db: Path) -> bytes:
    """What a decision sends: the last stored prompt with its tools, as the app asks for it."""
    with TraceStore.open(db, read_only=True) as store:
        episode = next(iter(store.episodes()))
    decision = episode.decisions[-1]
    return json.dumps(
        {
            "model": "stub",
            "messages": list(decision.messages),
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 512,
            "tools": list(episode.tools),
            "tool_choice": "required",
        }
    ).encode()


PROBE = """
import http.client, sys, time
host, port = sys.argv[1].removeprefix("http://").split(":")
http, took = http.client.HTTPConnection(host, int(port), timeout=60), []
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter()
    http.request("GET", "/health")
    answer = http.getresponse()
    assert answer.read() and answer.status == 200
    took.append(time.perf_counter() - begun)
    time.sleep(0.01)
print(*took)
"""


def health_p99_ms(address: str) -> float:
    """How long `/health` takes at most, but for one in a hundred; asked by a process that does nothing else."""
    command = [sys.executable, "-c", PROBE, address, str(HEALTH_CALLS)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    return 1000 * percentile(sorted(map(float, told.split())), 0.99)


def environment_seconds(db: Path, run_id: str) -> float:
    """Seconds the run's episodes spent making worlds and stepping them, by their own clocks."""
    sql = """SELECT sum(details ->> 'reset_s') + sum(details ->> 'env_s') FROM episodes WHERE run_id = ?"""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, (run_id,)).fetchone()[0]


def traces_kept(db: Path, run_id: str, answers: Sequence[dict[str, Any]]) -> int:
    """How many answers hold a trace whose episode is in the database with as many decisions as were answered."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        sql = """SELECT episode_id, count(*) FROM episodes JOIN decisions ON decisions.episode = episodes.id
                 WHERE run_id = ? GROUP BY episode_id"""
        stored = dict(connection.execute(sql, (run_id,)))
    played = {one["trace"]["session_id"]: one["trajectories"][0]["length"] for one in answers if one["trace"]}
    return sum(stored.get(episode_id) == length for episode_id, length in played.items())


def measure_all(seeds_per_measurement: int, workers: int) -> dict[str, Any]:
    """Warm up, measure with each number of clients, then once with nothing shared between rollouts."""
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder, "bench.db")
        serve = ["-m", "task_app", "serve", "crafter", "--port", "0", "--trace-db", str(db), "--workers", str(workers)]
        with process([str(HERE / "stub_model.py")]) as (_, model_url), process(serve) as (server, address):
            setup = Setup(server.pid, address, model_url, db)
            seeds = iter(range(10_000))
            measure(setup, 4, [next(seeds)])
            measured = [
                measure(setup, clients, [next(seeds) for _ in range(seeds_per_measurement)]) for clients in CLIENTS
            ]
            unshared = measure(setup, 1, [next(seeds) for _ in range(ROLLOUTS_PER_SEED)], per_seed=1)
            body = prompt_body(db)
            hot = floor_ms(model_url, body)
            floors = []
            for clients in CLIENTS:
                with played_beside(setup, [next(seeds) for _ in range(8)], clients):
                    floors.append(round(floor_ms(model_url, body, PAUSE_S), 2))
            with played_beside(setup, [next(seeds) for _ in range(8)], 8):
                health = health_p99_ms(address)
            return {
                "measured": measured,
                "one_rollout_per_seed": unshared,
                "hot_floor_cpu_ms": round(hot, 2),
                "floors_cpu_ms": floors,
                "health_p99_ms": round(health, 1),
            }


def run(rollouts: int, workers: int) -> dict[str, Any]:
    """Everything as plain JSON values; `rollouts` for each number of clients, rounded up to whole seeds."""
    load_before = os.getloadavg()[0]
    found = measure_all(-(-rollouts // ROLLOUTS_PER_SEED), workers)
    measured: list[Measurement] = found["measured"]
    floors: list[float] = found["floors_cpu_ms"]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": f"benchmarks/hosted_rollouts.py --rollouts {rollouts} --workers {workers}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_average_before": round(load_before, 2),
        "workers": workers,
        "decisions_per_rollout": DECISIONS,
        "actions_per_decision": 5,
        "measured": [asdict(measurement) for measurement in measured],
        "one_rollout_per_seed": asdict(found["one_rollout_per_seed"]),
        "floor_cpu_ms_of_one_httpx_call_beside_as_many_clients": floors,
        "the_same_with_nothing_between_the_calls": found["hot_floor_cpu_ms"],
        "server_cpu_ms_per_decision_above_the_floor": [
            round(m.server_cpu_ms_per_decision - floor, 2) for m, floor in zip(measured, floors, strict=True)
        ],
        "health_p99_ms_while_8_play": found["health_p99_ms"],
        "peer": PEER,
        "times_the_peers_rollouts_per_s": [round(m.rollouts_per_s / PEER["rollouts_per_s"], 1) for m in measured],
        "share_of_the_peers_server_cpu": [round(m.server_cpu_ms_per_decision / 160, 4) for m in measured],
        "target": TARGET,
        "missed": missed(measured, floors, found["health_p99_ms"]),
    }


def missed(measured: Sequence[Measurement], floors: Sequence[float], health_ms: float) -> list[str]:
    """The targets that were not met, each with its figure."""
    found = []
    for m, floor in zip(measured, floors, strict=True):
        above = m.server_cpu_ms_per_decision - floor
        if m.clients > 1 and m.rollouts_per_s < 40:
            found.append(f"{m.clients} clients: {m.rollouts_per_s} rollouts/s of 40")
        if above > 1:
            found.append(f"{m.clients} clients: {above:.2f} ms of CPU a decision above the floor, of 1")
        if m.response_bytes_per_decision > 3000:
            found.append(f"{m.clients} clients: {m.response_bytes_per_decision} bytes a decision of 3000")
        if m.traces_kept != m.rollouts:
            found.append(f"{m.clients} clients: {m.traces_kept} of {m.rollouts} traces kept")
        if m.clients == 8 and m.p99_ms > 3 * m.p50_ms:
            found.append(f"8 clients: p99 {m.p99_ms} ms is more than 3 × p50 {m.p50_ms} ms")
    if health_ms > 20:
        found.append(f"/health p99 {health_ms} ms of 20")
    return found


def keep(result: dict[str, Any], output: Path) -> None:
    """Print the figures and store them."""
    text = json.dumps(result, indent=2)
    print(text)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text + "\n")


def main() -> None:
    """Run, print, store; the exit code is 1 when a target was missed."""
    parser = argparse.ArgumentParser(description="Speed of the hosted task app beside the closest peer's.")
    parser.add_argument("--rollouts", type=int, default=160, help="rollouts for each number of clients")
    parser.add_argument("--workers", type=int, default=2, help="processes of the app")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "hosted_rollouts.json")
    arguments = parser.parse_args()
    result = run(arguments.rollouts, arguments.workers)
    keep(result, arguments.output)
    sys.exit(1 if result["missed"] else 0)


if __name__ == "__main__":
    main()
