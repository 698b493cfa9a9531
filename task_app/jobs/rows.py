"""What the service keeps of jobs, files and events, as values. Reads and writes nothing."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["OVER", "Event", "EventName", "Job", "JobKind", "JobStatus", "TrainingFile"]

JobKind = Literal["rl", "sft"]
JobStatus = Literal["created", "queued", "running", "succeeded", "failed", "cancelled"]
EventName = Literal["status", "metrics", "log"]

OVER: tuple[JobStatus, ...] = ("succeeded", "failed", "cancelled")
"""Statuses that nothing follows."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training asked for. Times are seconds since 1970; `request` is the body as it was sent.

    reason    why the status is what it is, in words; empty where there is nothing to say
    attempts  processes started for it; deaths  how many of these were killed since its last line of metrics
    ignored   dotted names of what was sent and has no effect
    """

    id: str
    kind: JobKind
    status: JobStatus
    reason: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempts: int
    deaths: int
    cancelled_at: float | None
    request: dict[str, Any]
    command: list[str]
    ignored: list[str]
    body_hash: str

    @property
    def over(self) -> bool:
        """Whether its status is final."""
        return self.status in OVER

    @classmethod
    def of(cls, row: sqlite3.Row) -> Job:
        """From a row of the table."""
        values = {name: row[name] for name in cls.__slots__}
        for name in ("request", "command", "ignored"):
            values[name] = json.loads(values[name])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job; ids rise, over all jobs."""

    id: int
    event: EventName
    data: dict[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class TrainingFile:
    """An uploaded file; `prompt_hashes` are the prompt forms its lines were made with."""

    id: str
    sha256: str
    bytes: int
    lines: int
    prompt_hashes: list[str]
    filename: str
    purpose: str
    created_at: float
