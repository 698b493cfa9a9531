"""The whole loop once, in minutes: serve → roll out over HTTP → collect → imitate → reinforce → evaluate → report.

A script in library form: each stage calls what a user would call, with the files of `configs/basic/`. It decides
nothing about training but how much of it fits into a few minutes (IMITATION, REINFORCEMENT).
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from task_app.analyze.report import TrainingReport
from task_app.analyze.stats import Summary, summarise
from task_app.config import Config, load_config
from task_app.core.errors import ConfigError, PolicyError
from task_app.core.imports import extra_imports
from task_app.core.types import Episode
from task_app.http.ports import check_port_free
from task_app.rollout.client import HostedTaskApp
from task_app.runs import Collected, collect_database, play_hosted
from task_app.store import TraceStore
from task_app.wiring import check

__all__ = [
    "DemoConfigs",
    "DemoPaths",
    "DemoResult",
    "Stage",
    "demo_configs",
    "run_demo",
    "run_scripted_part",
    "serve_in_background",
]

Stage = Callable[[str, int], AbstractContextManager[Callable[..., None]]]
"""Opens a progress bar with a label and a total; what it yields advances the bar."""

HOST = "127.0.0.1"
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 15.0
SCRIPTED = ("random", "expert")

IMITATION = {
    "sft.teacher.episodes": 160,
    "sft.teacher.steps": 70,
    "sft.teacher.rounds": 3,
    "sft.teacher.round_episodes": 60,
    "sft.teacher.round_steps": 75,
}
"""Two fifths of what configs/basic/crafter_imitation.toml does by itself."""
REINFORCEMENT = {
    "training.updates": 8,
    "training.groups_per_update": 6,
    "training.learning_rate": 1e-4,
    "training.warmup_updates": 2,
}
"""Small steps: a rate at which fresh weights learn undoes in a few updates what was imitated."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo shows at its end; `best_episode` is the trained policy's best held-out one."""

    collected: Collected
    report: TrainingReport
    best_episode: str


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """Where the demo reads and writes, under a project folder."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "configs/basic/crafter_rl.toml"

    @property
    def imitation(self) -> Path:
        return self.root / "configs/basic/crafter_imitation.toml"

    @property
    def trace_db(self) -> Path:
        return self.root / "traces/demo.db"

    @property
    def run_dir(self) -> Path:
        return self.root / "runs/demo"

    @property
    def sft_dir(self) -> Path:
        return self.root / "runs/demo-sft"

    @property
    def vectors(self) -> Path:
        return self.run_dir / "reward_vectors.jsonl"

    @property
    def report(self) -> Path:
        return self.run_dir / "report.html"

    def clear(self) -> bool:
        """Remove what an earlier demo left; True if there was anything."""
        found = [path for path in self.trace_db.parent.glob(f"{self.trace_db.name}*") if path.is_file()]
        for path in found:
            path.unlink()
        folders = [folder for folder in (self.sft_dir, self.run_dir) if folder.exists()]
        for folder in folders:
            shutil.rmtree(folder)
        return bool(found or folders)


class DemoConfigs(NamedTuple):
    """What its two trainings run by."""

    imitation: Config
    reinforcement: Config


def demo_configs(paths: DemoPaths) -> DemoConfigs:
    """The basic configs with the demo's own database, run folders and sizes; the second begins where the first ends.

    Raises ConfigError outside a project folder, since the demo is about the files in it.
    """
    for config in (paths.config, paths.imitation):
        if not config.is_file():
            raise ConfigError(f"the demo runs in the project's folder; there is no {config}")
    shared = {"rollout.trace_db": str(paths.trace_db)}
    own = {"training.run_dir": str(paths.run_dir), "training.init_from": str(paths.sft_dir)}
    return DemoConfigs(
        load_config(paths.imitation, {**shared, **IMITATION, "sft.run_dir": str(paths.sft_dir)}),
        load_config(paths.config, {**shared, **REINFORCEMENT, **own}),
    )


@contextmanager
def serve_in_background(config: Config, port: int, log: Path) -> Iterator[str]:
    """The hosted app in a process of its own, ended by its process id; yields its address.

    Raises ConfigError when the port is taken, PolicyError when the app does not come up.
    """
    check_port_free(HOST, port)
    command = [sys.executable, "-m", "task_app", "serve", config.task.app]
    command += ["--host", HOST, "--port", str(port), "--trace-db", str(config.rollout.trace_db)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            address = f"http://{HOST}:{port}"
            _wait_until_healthy(process, address, log)
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_scripted_part(
    config: Config, paths: DemoPaths, port: int, stage: Stage
) -> tuple[dict[str, Summary], Collected]:
    """Serve, roll out the scripted policies over HTTP on the held-out worlds, collect reward vectors.

    Returns a summary per policy and what was collected.
    """
    summaries = {}
    rollout = config.rollout.model_copy(update={"seeds": config.eval.seeds, "group_size": 1})
    with serve_in_background(config, port, paths.run_dir / "server.log") as address:
        for name in SCRIPTED:
            policy = config.policy.model_copy(update={"name": name})
            one = config.model_copy(update={"rollout": rollout, "policy": policy})
            with stage(f"{name} over HTTP", len(config.eval.seeds)) as advance:

                def progress(episode: Episode, advance: Callable[..., None] = advance) -> None:
                    advance()

                episodes = play_hosted(
                    one, address, run_id=f"demo-{name}", command="demo", progress=progress, store_here=False
                )
            summaries[name] = summarise(episodes)
    return summaries, collect_database(config, run_id=None, output=paths.vectors)


View = AbstractContextManager[Callable[[dict[str, Any]], None]]
"""A view of a training; what it yields takes each line of the log."""


def run_demo(
    configs: DemoConfigs,
    paths: DemoPaths,
    port: int,
    *,
    stage: Stage,
    imitating: Callable[[], View],
    training: Callable[[int], View],
    note: Callable[[str], None],
) -> DemoResult:
    """All stages, one after another. Raises whatever a stage raises; what was recorded before it stays."""
    with extra_imports("train"):
        from task_app.train.launch import train_config
        from task_app.train.sft import run_sft

    config = configs.reinforcement
    summaries, collected = run_scripted_part(config, paths, port, stage)
    with imitating() as progress:
        run_sft(configs.imitation, check(configs.imitation), progress=progress)  # what it scores, training measures
    with training(config.training.updates) as progress:
        result, report = train_config(config, progress=progress, note=note, extra=summaries)
    with TraceStore.open(paths.trace_db, read_only=True) as store:
        sql = """SELECT episode_id FROM episodes WHERE run_id = ? AND training_update = ?
                 ORDER BY outcome DESC, seed LIMIT 1"""
        best = store.query(sql, (f"{result.run_id}-eval", result.updates))
    return DemoResult(collected, report, best[0]["episode_id"])


def _wait_until_healthy(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    with HostedTaskApp(address, timeout_s=5.0, tries=1) as app:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise PolicyError(f"the task app ended at once: {log.read_text().strip()}")
            try:
                app.health()
                return
            except PolicyError:
                time.sleep(0.1)
    raise PolicyError(f"the task app did not answer within {START_DEADLINE_S:.0f} s; its log is {log}")
