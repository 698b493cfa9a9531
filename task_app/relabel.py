"""`rollout --relabel` and `traces relabel`: episodes, new or stored, to a file of rows to imitate.

Rows stand in the order of the episodes (run, update, group, member) and turns; the file is written whole or not at
all. It never changes an episode.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task_app.config import Config
from task_app.core.errors import ConfigError, EnvError, StoreError
from task_app.core.policy import Policy
from task_app.core.task import TaskSpec
from task_app.core.types import Episode
from task_app.rollout.relabel import Relabelling, make_teacher, relabel_episode
from task_app.runs import play_config
from task_app.store import TraceStore
from task_app.store.files import write_whole
from task_app.wiring import EmbeddedFactory, check, make_spec

__all__ = ["Relabelled", "check_relabel", "play_relabelled", "relabel_database"]


@dataclass(frozen=True, slots=True)
class Relabelled:
    """What was written: rows, from how many episodes, and in how many of them the teacher would have done the same."""

    output: str
    teacher: str
    episodes: int
    rows: int
    agreed: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def play_relabelled(
    config: Config,
    teacher: str,
    output: Path,
    *,
    run_id: str,
    progress: Callable[[Episode], None],
    embedded: EmbeddedFactory | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[list[Episode], Relabelled]:
    """`play_config`, the teacher asked in every state that is reached. Raises ConfigError before any I/O,
    StoreError."""
    _check_output(output)
    make_teacher(check(config), teacher)
    listening: list[Relabelling] = []

    def wrap(policy: Policy, spec: TaskSpec) -> Policy:
        listening.append(Relabelling(policy, spec, make_teacher(spec, teacher)))
        return listening[0]

    episodes = play_config(
        config, run_id=run_id, command="rollout", progress=progress, embedded=embedded, environ=environ, wrap=wrap
    )
    rows = [row for episode in episodes for row in listening[0].take(episode)]
    return episodes, _write(output, teacher, len(episodes), rows)


def relabel_database(database: Path, teacher: str, output: Path, *, run_id: str | None = None) -> Relabelled:
    """The same for episodes a database holds, superseded ones left out; their worlds are made again.

    Raises ConfigError for an unknown teacher, a bad output or when nothing is there to relabel, StoreError for a
    database that cannot be read or holds episodes that no longer play as they did.
    """
    _check_output(output)
    with TraceStore.open(database, create=False, read_only=True) as store:
        episodes = list(store.episodes(run_id=run_id))
    rows = []
    for episode in episodes:
        spec = make_spec(episode.task.app, episode.task.options)
        try:
            rows += relabel_episode(episode, spec, make_teacher(spec, teacher))
        except EnvError as error:
            raise StoreError(f"{database}: {error}; it was made by another version or with other options") from error
    if not rows:
        where = f"run {run_id!r} in {database}" if run_id else str(database)
        raise ConfigError(f"{where} holds no decision to relabel", field="run_id" if run_id else "db")
    return _write(output, teacher, len(episodes), rows)


def check_relabel(teacher: str | None, output: Path | None, base_url: str | None) -> None:
    """Refuse half of what relabelling a rollout needs. Raises ConfigError."""
    if (teacher is None) != (output is None):
        missing = "relabel_output" if output is None else "relabel"
        raise ConfigError("relabelling needs both --relabel TEACHER and --relabel-output F.jsonl", field=missing)
    if teacher is not None and base_url:
        raise ConfigError(
            "--relabel needs the world in this process, --base-url plays elsewhere; relabel that server's database "
            "with `task-app traces relabel`",
            field="relabel",
        )


def _check_output(output: Path) -> None:
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; name a file in it", field="output")


def _write(output: Path, teacher: str, episodes: int, rows: Iterable[dict[str, Any]]) -> Relabelled:
    every = list(rows)
    write_whole(output, "".join(f"{json.dumps(row, allow_nan=False, sort_keys=True)}\n" for row in every))
    return Relabelled(str(output), teacher, episodes, len(every), sum(row["metadata"]["agreed"] for row in every))
