"""Where a run's numbers go besides metrics.jsonl: Weights & Biases and Trackio, behind one small protocol.

metrics.jsonl is always written and holds everything; a tracker gets the numbers of each line. Nothing here is imported
before it is asked for, nothing leaves the machine unless `wandb_mode = "online"` says so, and a tracker that fails is
warned of once, gets nothing more, and never stops training.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from task_app.config.training import TrackingSection
from task_app.core.errors import ConfigError
from task_app.train.heartbeat import RunStatus

__all__ = ["SafeTracker", "Tracker", "TrackioTracker", "WandbTracker", "check_tracking", "make_trackers", "numbers"]

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Follows one run. May raise anything: it is called through `SafeTracker`."""

    name: str

    def start(self, config: Mapping[str, Any]) -> None:
        """The run begins, or goes on after an interruption; `config` is its resolved config as JSON values."""
        ...

    def log(self, line: Mapping[str, Any]) -> None:
        """A line was added to metrics.jsonl."""
        ...

    def finish(self, status: RunStatus) -> None:
        """The run is over."""
        ...


def check_tracking(settings: TrackingSection) -> None:
    """Refuse a tracker whose package is not installed. Raises ConfigError naming the key; imports nothing."""
    for name in ("wandb", "trackio"):
        if getattr(settings, name) and find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name} is true, but the package {name!r} is not installed; install the extra "
                f"crafter-task-app[{name}] or set it to false",
                field=f"tracking.{name}",
            )


def make_trackers(settings: TrackingSection, run_id: str, run_dir: Path) -> list[SafeTracker]:
    """The trackers that are asked for."""
    trackers: list[Tracker] = []
    if settings.wandb:
        trackers.append(WandbTracker(settings.project, run_id, run_dir, mode=settings.wandb_mode))
    if settings.trackio:
        trackers.append(TrackioTracker(settings.project, run_id))
    return [SafeTracker(tracker) for tracker in trackers]


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a metrics line, nested sections as `section/key`; texts, lists and what is missing are left to
    metrics.jsonl. Lines other than updates get their kind in front, as `eval/mean`."""
    prefix = "" if line.get("kind") == "update" else f"{line.get('kind')}/"
    found: dict[str, float] = {}
    _collect(found, {key: value for key, value in line.items() if key not in ("kind", "update")}, prefix)
    return found


def _collect(found: dict[str, float], values: Mapping[str, Any], prefix: str) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _collect(found, value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            found[f"{prefix}{key}"] = float(value)


class SafeTracker:
    """Calls a tracker; after its first failure it is warned of and left alone."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self._failed = tracker, False

    def start(self, config: Mapping[str, Any]) -> None:
        """Passed on."""
        self._call(lambda: self._tracker.start(config))

    def log(self, line: Mapping[str, Any]) -> None:
        """Passed on."""
        self._call(lambda: self._tracker.log(line))

    def finish(self, status: RunStatus) -> None:
        """Passed on."""
        self._call(lambda: self._tracker.finish(status))

    def _call(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            with redirect_stdout(sys.stderr):  # they print where they are; what this program prints may be JSON
                call()
        except Exception as error:
            self._failed = True
            sentence = "%s failed (%s: %s) and gets nothing more of this run; metrics.jsonl has everything"
            _log.warning(sentence, self._tracker.name, type(error).__name__, error)


class WandbTracker:
    """Weights & Biases. The horizontal axis is the update, so that a resumed run may log an update again."""

    name = "wandb"

    def __init__(self, project: str, run_id: str, run_dir: Path, *, mode: str) -> None:
        self._project, self._run_id, self._run_dir, self._mode = project, run_id, run_dir, mode
        self._run: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        """`wandb.init`, with files in the run folder."""
        self._run = import_module("wandb").init(
            project=self._project,
            id=self._run_id,
            name=self._run_id,
            dir=str(self._run_dir),
            config=dict(config),
            mode=self._mode,
            # A run that is kept on this machine cannot look for its earlier part; `wandb sync` puts them together.
            resume="allow" if self._mode == "online" else None,
        )
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def log(self, line: Mapping[str, Any]) -> None:
        """`run.log`."""
        self._run.log({"update": line["update"], **numbers(line)})

    def finish(self, status: RunStatus) -> None:
        """`run.finish`."""
        self._run.finish(exit_code=0 if status == "done" else 1)


class TrackioTracker:
    """Trackio: a project in a database of this machine."""

    name = "trackio"

    def __init__(self, project: str, run_id: str) -> None:
        self._project, self._run_id = project, run_id
        self._trackio: Any = None

    def start(self, config: Mapping[str, Any]) -> None:
        """`trackio.init`."""
        trackio = import_module("trackio")
        trackio.init(project=self._project, name=self._run_id, config=dict(config), resume="allow")
        self._trackio = trackio

    def log(self, line: Mapping[str, Any]) -> None:
        """`trackio.log`."""
        values = numbers(line)
        if values:
            self._trackio.log(values, step=line["update"])

    def finish(self, status: RunStatus) -> None:
        """`trackio.finish`; it knows no status."""
        self._trackio.finish()
