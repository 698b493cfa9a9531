"""What a training run tells the outside while it goes on: heartbeat, trackers, and its two records in the ledger.

It watches; it changes nothing of the run and reads nothing but the run's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from task_app.codehash import code_hash
from task_app.config.models import Config
from task_app.core.errors import TrainError
from task_app.train.heartbeat import Heartbeat, Phase, RunStatus
from task_app.train.ledger import RunKind, end_record, ledger_of, run_result, start_record
from task_app.train.metrics import MetricsLog
from task_app.train.plan import config_json
from task_app.train.tracker import SafeTracker, make_trackers

__all__ = ["Journal"]

_log = logging.getLogger(__name__)


class Journal:
    """Of one run in one process. Nothing is told before `start`."""

    def __init__(self, config: Config, kind: RunKind, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._kind: RunKind = kind
        self._ledger, self._heart = ledger_of(run_dir), Heartbeat(run_dir)
        self._trackers: list[SafeTracker] = []
        self._run_id, self._update = "", 0
        self._phase: Phase = "starting"

    def start(self, run_id: str, update: int, *, resumed: bool) -> None:
        """The run begins, or goes on after `update`; its folder exists. Raises TrainError when the ledger cannot be
        written: a run without its record is not started."""
        resumed_at = update if resumed else None
        record = start_record(
            self._ledger, self._config, self._kind, self._run_dir, run_id, code=code_hash(), resumed_at=resumed_at
        )
        for sentence in record["warnings"]:
            _log.warning("%s", sentence)
        self._ledger.append(record)
        self._run_id, self._update = run_id, update
        self._trackers = make_trackers(self._config.tracking, run_id, self._run_dir)
        for tracker in self._trackers:
            tracker.start(config_json(self._config))
        self.phase("starting")

    def phase(self, phase: Phase) -> None:
        """What the run does now."""
        self._phase = phase
        self.beat()

    def beat(self) -> None:
        """The run moved."""
        if self._run_id:
            self._heart.beat(self._update, self._phase)

    def line(self, line: Mapping[str, Any]) -> None:
        """A line was added to the log."""
        self._update = int(line["update"])
        self.beat()
        for tracker in self._trackers:
            tracker.log(line)

    def finish(self, status: RunStatus, *, why: str = "", result: Mapping[str, Any] | None = None) -> None:
        """The run is over; `result` is read from its evaluations where none is given. Told once."""
        if not self._run_id:
            return
        run_id, self._run_id = self._run_id, ""
        try:
            lines = MetricsLog(self._run_dir / "metrics.jsonl").lines()
            told = run_result(lines) if result is None else result
            self._ledger.append(
                end_record(run_id, self._kind, self._run_dir, status, why=why, result=told, lines=lines)
            )
        except TrainError as error:  # the run's own end, good or bad, is what counts now
            _log.warning("the end of run %s is not in the ledger: %s", run_id, error)
        for tracker in self._trackers:
            tracker.finish(status)
        self._heart.beat(self._update, "over", status)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Tells how what happens inside ended, where it does not say so itself."""
        try:
            yield
        except Exception as error:
            self.finish("failed", why=f"{type(error).__name__}: {error}")
            raise
        except BaseException as error:
            self.finish("interrupted", why=type(error).__name__)
            raise
