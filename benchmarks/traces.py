"""Speed and size of trace databases: writer, analyze, export, verify, viewer.

    python benchmarks/traces.py                   everything on 100,000 episodes × 20 decisions (about 20 minutes)
    python benchmarks/traces.py --episodes 2000   the same on a smaller database; then nothing is written unless --out

The database is synthetic: facts of 100 real episodes of the random player (20 decisions × 5 actions) written again
and again through the real writer under new ids and seeds, every observation text made different, so that nothing
but the system prompt and the answers is shared. Commands run as processes of their own, as a user runs them; peak
memory is the kernel's figure for that process. `verify` is compared with stock `crafter` playing the same actions
(its own step, picture included, as it is installed, without numba) in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"  # where numba is installed, opensimplex would use it
sys.path.insert(0, str(Path(__file__).parents[1]))

import crafter
import httpx
from targets import misses, print_figures

from task_app.apps import get_app
from task_app.apps.crafter.engine.rules import ACTIONS
from task_app.cli.output import progress_bar
from task_app.core.task import TaskSpec
from task_app.core.types import Episode, StepRewardFlags
from task_app.http.ports import listen
from task_app.policies import ScriptedPolicy
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore

RESULT = Path(__file__).parent / "results" / "traces.json"
EPISODES, DECISIONS, ACTIONS_A_DECISION = 100_000, 20, 5
EXPORTED = 20_000
"""Episodes exported of the database: all of them would be a file of 6 GB."""
MODELS = 100
"""Real episodes the synthetic ones repeat."""
STOCK_EPISODES = 8
"""Episodes stock plays; its second a piece is the same for all of them."""
WRITERS, EPISODES_A_WRITER = 4, 250
TARGETS = {
    "writer, decisions/s": (">=", 5_000.0),
    "lost by 4 writers at once, episodes": ("<=", 0.0),
    "bytes per decision": ("<=", 1_536.0),
    "analyze, s": ("<=", 10.0),
    "analyze, peak MB": ("<=", 500.0),
    "export, rows/s": (">=", 20_000.0),
    "verify against stock, times faster": (">=", 50.0),
    "episode page, ms": ("<=", 300.0),
    "frame, ms": ("<=", 20.0),
}


def real_episodes(count: int) -> list[Episode]:
    """`count` episodes of the random player, one a world."""
    app = get_app("crafter")
    spec = TaskSpec(app, app.options_model.model_validate({"min_actions_per_decision": ACTIONS_A_DECISION}))
    policy = ScriptedPolicy(app, "random", app.baselines(spec.options)["random"])
    plans = plan_groups(range(count), 1, run_id="real")
    return play(plans, spec, policy, Limits(DECISIONS), StepRewardFlags(), lambda episode: None, concurrency=1)


def synthetic(models: Sequence[Episode], count: int, prefix: str = "e") -> Iterator[Episode]:
    """`count` episodes in groups of 8, of two players: the models' facts, every observation text another."""
    for number in range(count):
        model = models[number % len(models)]
        mark = f"{prefix}{number}"
        decisions = tuple(
            replace(
                decision,
                messages=(decision.messages[0], _marked(decision.messages[1], mark)),
                completion=replace(
                    decision.completion, model="stub", prompt_tokens=900, completion_tokens=30, latency_s=0.5
                ),
            )
            for decision in model.decisions
        )
        yield replace(
            model,
            episode_id=f"{mark}-{model.episode_id}",
            run_id=f"run-{number * 10 // count}",
            group_id=f"s{number // 8:07d}",
            member=number % 8,
            task=replace(model.task, seed=number // 8),
            policy=("chat", "random")[number // 8 % 2],
            decisions=decisions,
        )


def _marked(message: dict[str, Any], mark: str) -> dict[str, Any]:
    return {**message, "content": f"{message['content']} {mark}"}


def write(path: Path, models: Sequence[Episode], count: int) -> float:
    """Write the synthetic database; decisions per second of writing alone (making them up is not counted)."""
    decisions, seconds = 0, 0.0
    with TraceStore.open(path) as store, progress_bar("writing", count // 100) as advance:
        for number, episode in enumerate(synthetic(models, count), start=1):
            begin = time.perf_counter()
            store.write_episode(episode)
            seconds += time.perf_counter() - begin
            decisions += len(episode.decisions)
            if number % 100 == 0:
                advance()
    return decisions / seconds


def write_share(path: Path, index: int, count: int) -> None:
    """What one of several writers does."""
    models = real_episodes(4)
    with TraceStore.open(path) as store:
        for episode in synthetic(models, count, prefix=f"w{index}-"):
            store.write_episode(episode)


def lost_by_concurrent_writers(folder: Path) -> int:
    """Episodes missing after `WRITERS` processes wrote at once."""
    path = folder / "concurrent.db"
    with ProcessPoolExecutor(WRITERS) as pool:
        list(pool.map(write_share, [path] * WRITERS, range(WRITERS), [EPISODES_A_WRITER] * WRITERS))
    with TraceStore.open(path, read_only=True) as store:
        rows = store.query("SELECT episode_id, decision_count FROM episodes")
        counts = {row["episode_id"]: row["decision_count"] for row in rows}
        whole = sum(len(episode.decisions) == counts[episode.episode_id] for episode in store.episodes())
    return WRITERS * EPISODES_A_WRITER - whole


def run(*arguments: str | Path) -> tuple[float, float, str]:
    """Seconds, peak MB and standard output of a `task-app` command in a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "task_app", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output, errors = process.communicate()
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors}")
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, output


def measure_analyze(db: Path, repeats: int) -> tuple[float, float]:
    """Median seconds and peak MB. The peak is the largest of any child so far, so this runs first."""
    runs = [run("traces", "analyze", "--db", db, "--json") for _ in range(repeats)]
    return median(seconds for seconds, _, _ in runs), max(peak for _, peak, _ in runs)


def measure_export(db: Path, folder: Path, limit: int) -> float:
    """Rows per second of a whole export command, start-up included."""
    output = folder / "sft.jsonl"
    seconds, _, _ = run("traces", "export-sft", "--db", db, "--output", output, "--limit", str(limit))
    with output.open("rb") as file:
        rows = sum(1 for _ in file)
    output.unlink()
    return rows / seconds


def stock_seconds(episodes: Sequence[Episode]) -> float:
    """Median seconds in which stock plays one of these episodes."""
    taken = []
    for episode in episodes:
        begin = time.perf_counter()
        env = crafter.Env(seed=episode.task.seed)
        env.reset()
        for step in episode.steps:
            env.step(ACTIONS.index(step.action))
        taken.append(time.perf_counter() - begin)
    return median(taken)


def measure_verify(folder: Path, models: Sequence[Episode]) -> dict[str, float]:
    """Milliseconds per episode of `verify_database` in one process, and how much faster than stock that is."""
    from task_app.verify import verify_database

    db = folder / "real.db"
    with TraceStore.open(db) as store:
        for episode in models:
            store.write_episode(episode)
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        report = verify_database(db)
        taken.append((time.perf_counter() - begin) / len(models))
        if not report.passed:
            raise SystemExit(f"verify finds fault with the benchmark's own episodes: {report}")
    stock = stock_seconds(models[:STOCK_EPISODES])
    return {
        "verify, ms per episode": 1_000 * median(taken),
        "stock, ms per episode": 1_000 * stock,
        "verify against stock, times faster": stock / median(taken),
    }


def measure_viewer(db: Path, real: Path, frames: int) -> dict[str, float]:
    """Milliseconds of an episode's data in the large database, of its page, and of a picture at a random step."""
    pages = _served(db, lambda http, ids: [_ms(http, "/viewer/api/episode", id=one) for one in ids], 30)
    draw = random.Random(0)

    def pictures(http: httpx.Client, ids: Mapping[str, int]) -> list[float]:
        looks = [draw.choice(list(ids.items())) for _ in range(frames)]
        return [_ms(http, "/viewer/api/frame", id=one, step=draw.randrange(steps + 1)) for one, steps in looks]

    drawn = _served(real, pictures, 10)
    return {"episode page, ms": median(pages), "frame, ms": median(drawn), "slowest frame, ms": max(drawn)}


def _served(db: Path, use: Any, count: int) -> list[float]:
    """What `use(client, {episode id: steps})` measures on a viewer of `db` that is ended afterwards."""
    with TraceStore.open(db, read_only=True) as store:
        sql = "SELECT episode_id, step_count FROM episodes ORDER BY random() LIMIT ?"
        ids = {row["episode_id"]: row["step_count"] for row in store.query(sql, (count,))}
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "task_app", "traces", "view", "--db", str(db), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # it prints its address once it answers
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            _ms(http, "/viewer")
            return use(http, ids)
    finally:
        server.terminate()
        server.wait(timeout=20)


def _ms(http: httpx.Client, path: str, **query: Any) -> float:
    begin = time.perf_counter()
    http.get(path, params=query).raise_for_status()
    return 1_000 * (time.perf_counter() - begin)


def measure(folder: Path, count: int) -> dict[str, float]:
    """Every figure by name."""
    models = real_episodes(MODELS)
    db = folder / "synthetic.db"
    figures = {"episodes": float(count), "writer, decisions/s": write(db, models, count)}
    decisions = count * DECISIONS
    figures["bytes per decision"] = db.stat().st_size / decisions
    seconds, peak = measure_analyze(db, 3)
    figures |= {"analyze, s": seconds, "analyze, peak MB": peak}
    figures["export, rows/s"] = measure_export(db, folder, min(count, EXPORTED))
    figures |= measure_verify(folder, models)
    figures |= measure_viewer(db, folder / "real.db", 200)
    figures["lost by 4 writers at once, episodes"] = float(lost_by_concurrent_writers(folder))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--folder", type=Path, help="where the databases go [default: a temporary folder]")
    parser.add_argument("--out", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = measure(Path(folder), arguments.episodes)
    missed = misses(figures, TARGETS)
    print_figures("trace databases", figures, TARGETS, missed)
    out = arguments.out or (RESULT if arguments.episodes == EPISODES else None)
    if out:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": load}
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        out.write_text(json.dumps({"at": stamp, "machine": machine, "figures": figures, "missed": missed}, indent=2))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
