"""What a training writes while it goes on, as events: lines of metrics.jsonl and lines of its log.

Each is told once. A training that resumes cuts its metrics back and makes some lines again, the same ones; the log
only grows. It reads files of the job's folder and changes none.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from task_app.jobs.process import LOG
from task_app.jobs.store import JobStore

__all__ = ["METRICS", "Follower", "last_error"]

METRICS = Path("run/metrics.jsonl")
_LONGEST = 2_000
_CHUNK = 1_000_000
_TAIL = 20_000


class Follower:
    """Of one job; `read` adds what is new to the store."""

    def __init__(self, store: JobStore, job_id: str, folder: Path) -> None:
        self._store, self._job_id, self._folder = store, job_id, folder
        self._metrics, self._log = _Tail(folder / METRICS), _Tail(folder / LOG)
        self._seen: Counter[str] = Counter()

    def read(self) -> None:
        """Once. Raises StoreError."""
        while self._read_metrics() | self._read_log():
            pass

    def _read_metrics(self) -> bool:
        lines, again = self._metrics.lines()
        if again:
            self._seen.clear()
        named = {}
        for _, line in lines:
            data = _parsed(line)
            if data is None:
                continue
            name = f"metrics/{data['kind']}/{data['update']}"
            self._seen[name] += 1
            # Of one kind there may be several after the same update: the rounds of a teacher.
            named[f"{name}/{self._seen[name]}"] = data
        if named:
            self._store.add_events(self._job_id, "metrics", named)
        return bool(lines)

    def _read_log(self) -> bool:
        lines, _ = self._log.lines()
        if lines:
            named = {f"log/{place}": {"line": line[:_LONGEST].rstrip()} for place, line in lines if line.strip()}
            self._store.add_events(self._job_id, "log", named)
        return bool(lines)


class _Tail:
    """The whole lines of a file that were not given yet, a stretch at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._place, self._file = path, 0, (0, 0)

    def lines(self) -> tuple[list[tuple[int, str]], bool]:
        """Each line's place in the file and its text, and whether the file was replaced and is read from its start."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                again = (found.st_dev, found.st_ino) != self._file or found.st_size < self._place
                if again:
                    self._place, self._file = 0, (found.st_dev, found.st_ino)
                file.seek(self._place)
                text = file.read(_CHUNK)
                if len(text) == _CHUNK and b"\n" not in text:
                    text += file.readline()
        except FileNotFoundError:
            return [], False
        lines = []
        for line in text.splitlines(keepends=True):
            if not line.endswith((b"\n", b"\r")):
                break
            lines.append((self._place, line.decode("utf-8", "replace")))
            self._place += len(line)
        return lines, again


def _parsed(line: str) -> dict[str, Any] | None:
    """A line of metrics, without what is the machine's alone; None for one that is none."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or not {"kind", "update"} <= data.keys():
        return None
    return {key: value for key, value in data.items() if key != "machine"}


def last_error(folder: Path) -> str:
    """What the training said last of why it stopped: its `error:` line, or the log's last line; empty without a log."""
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    said = [line for line in lines if line.startswith("error: ")]
    return (said or lines or [""])[-1].removeprefix("error: ")[:_LONGEST]
