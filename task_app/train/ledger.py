"""runs/ledger.jsonl: what was run, with what, to find out what, and what came of it. It holds one strict-JSON record at
the start and one at the end of each run, and is only ever added to.

A record is one write to a file opened for appending and held by the system's lock meanwhile, then fsync, so runs that
end at once lose nothing of each other.
A run that was killed has no end record; its start record stays.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from task_app.analyze.stats import Mean
from task_app.config.models import Config
from task_app.core.errors import TrainError
from task_app.train.heartbeat import RunStatus, read_heartbeat
from task_app.train.metrics import strict
from task_app.train.paired import by_world, paired_interval
from task_app.train.plan import config_json, flat

__all__ = [
    "COLUMNS", "FILE", "Ledger", "RunKind", "changes", "config_hash", "end_record", "ledger_of", "ledger_rows",
    "reward_keys", "run_config", "run_cost", "run_result", "start_record",
]  # fmt: skip

FILE = "ledger.jsonl"

LOCK_S = 30.0
"""Seconds to wait for another process to finish its record, which takes milliseconds."""

RunKind = Literal["rl", "sft"]

_log = logging.getLogger(__name__)

_SECTIONS: dict[RunKind, tuple[str, ...]] = {
    "rl": ("seed", "task", "model", "policy", "rollout", "training", "eval"),
    "sft": ("seed", "task", "model", "sft", "eval"),
}
"""What of a config a run of each kind depends on."""

_POLICY_KEYS = frozenset({"policy.temperature", "policy.top_p"})
"""The rest of [policy] is for policies that are not trained."""

_NAMES = frozenset(
    {
        "training.run_dir", "sft.run_dir", "rollout.trace_db",
        "training.hypothesis", "training.expectation", "training.note",
    }
)  # fmt: skip
"""Keys that name a run or say why it is made; they are no difference between two."""

_REWARD_PREFIXES = ("step_rewards.", "task.", "training.credit.")
_REWARD_KEYS = frozenset({"rollout.max_decisions", "rollout.max_parse_failures"})


def ledger_of(run_dir: Path) -> Ledger:
    """The ledger beside a run folder."""
    return Ledger(run_dir.parent / FILE)


class Ledger:
    """One ledger file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record and wait until it is on the disk. Raises TrainError when the disk refuses."""
        line = (json.dumps(strict(record), allow_nan=False) + "\n").encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _lock(descriptor)
                line = self._line_break(descriptor) + line
                written = os.write(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise TrainError(f"{self.path} could not be written: {error}") from error
        if written < len(line):
            raise TrainError(f"{self.path} could not be written whole: the disk took {written} of {len(line)} bytes")

    @staticmethod
    def _line_break(descriptor: int) -> bytes:
        """What has to stand before a record where a machine that went down left half of one."""
        size = os.fstat(descriptor).st_size
        return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""

    def records(self) -> list[dict[str, Any]]:
        """All records in order. A line that is none is left out with a warning that names it. Raises TrainError."""
        records = []
        for number, text in enumerate(self._lines(), start=1):
            try:
                record = json.loads(text)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not {"run_id", "event", "kind"} <= record.keys():
                _log.warning("%s line %d is no record and is left out", self.path, number)
                continue
            records.append(record)
        return records

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise TrainError(f"{self.path} cannot be read: {error}") from error


def _lock(descriptor: int) -> None:
    """Wait for the file to be ours; closing it lets go. Raises OSError when another process keeps it."""
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


# -- what a record holds -------------------------------------------------------------------------------


def run_config(config: Config, kind: RunKind) -> dict[str, Any]:
    """Dotted keys of what a run of this kind depends on; the step-reward flags as they are in force, for `rl`."""
    whole = config_json(config)
    values = flat({name: whole[name] for name in _SECTIONS[kind]})
    values = {key: value for key, value in values.items() if not key.startswith("policy.") or key in _POLICY_KEYS}
    if kind == "sft":
        values |= {f"training.{name}": whole["training"][name] for name in ("init_from", "max_grad_norm")}
    flags = {key for key in values if key.split(".")[-1].startswith(("step_rewards_", "event_rewards_"))}
    kept = {key: value for key, value in values.items() if key not in _NAMES and key not in flags}
    resolved = flat({"step_rewards": _plain(config.step_rewards)}) if kind == "rl" else {}
    return dict(sorted((kept | resolved).items()))


def _plain(flags: Any) -> dict[str, Any]:
    return {name: getattr(flags, name) for name in flags.__dataclass_fields__}


def config_hash(values: Mapping[str, Any]) -> str:
    """SHA-256 of `run_config`: equal for two runs that differ in name and purpose alone."""
    return hashlib.sha256(json.dumps(strict(values), sort_keys=True).encode()).hexdigest()


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Keys that differ → [old, new]; a key that one side lacks is None there."""
    now = strict(now)
    keys = sorted(before.keys() | now.keys())
    return {key: [before.get(key), now.get(key)] for key in keys if before.get(key) != now.get(key)}


def reward_keys(keys: Iterable[str]) -> list[str]:
    """Those of `keys` that change what an episode earns or what a decision is credited with."""
    return [key for key in keys if key.startswith(_REWARD_PREFIXES) or key in _REWARD_KEYS]


def start_record(
    ledger: Ledger, config: Config, kind: RunKind, run_dir: Path, run_id: str, *, code: str, resumed_at: int | None
) -> dict[str, Any]:
    """The record of a run that starts, or goes on after update `resumed_at`.

    It is compared with the last run in a folder of the same name, else with the last of its kind. `warnings` names the
    reward settings that differ where more than one does and the config has no `training.note`.
    """
    values = run_config(config, kind)
    previous = _previous(ledger.records(), kind, run_dir)
    differing = changes(previous["config"], values) if previous else {}
    rewards = reward_keys(differing)
    training = config.training
    warnings = []
    if len(rewards) > 1 and not training.note:
        warnings.append(
            f"{len(rewards)} settings that affect rewards differ from run {previous['run_id'] if previous else ''}: "
            f"{', '.join(rewards)}; whatever comes of this run has more than one cause: say why in training.note"
        )
    return {
        "event": "start", "status": "running", "at": _now(), "run_id": run_id, "kind": kind, "run_dir": str(run_dir),
        "pid": os.getpid(), "resumed_at": resumed_at, "config_hash": config_hash(values), "code_hash": code,
        "compared_with": previous["run_id"] if previous else None, "changes": differing, "reward_changes": rewards,
        "note": training.note, "hypothesis": training.hypothesis, "expectation": training.expectation,
        "warnings": warnings, "config": values,
    }  # fmt: skip


def _previous(records: Sequence[Mapping[str, Any]], kind: RunKind, run_dir: Path) -> Mapping[str, Any] | None:
    starts = [record for record in records if record["event"] == "start" and record["kind"] == kind]
    same_name = [record for record in starts if Path(record["run_dir"]).name == run_dir.name]
    return (same_name or starts or [None])[-1]


def end_record(
    run_id: str, kind: RunKind, run_dir: Path, status: RunStatus, *, why: str, result: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """The record of a run that is over. `why` says what ended it where that was not its last update."""
    return {
        "event": "end", "status": status, "at": _now(), "run_id": run_id, "kind": kind, "run_dir": str(run_dir),
        "pid": os.getpid(), "update": max((line["update"] for line in lines), default=0), "result": dict(result),
        "why": why, "cost": run_cost(lines),
    }  # fmt: skip


def run_result(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """First and last held-out evaluation, and their mean difference world by world with its 95 % interval.

    Values are None where an evaluation is missing, or there are too few worlds that both scored.
    """
    evaluations = [line for line in lines if line["kind"] == "eval"]
    first, last = (evaluations[0], evaluations[-1]) if evaluations else ({}, {})
    gain = paired_interval(by_world(first), by_world(last)) if len(evaluations) > 1 else Mean(0, None, None, None)
    return {
        "before": first.get("mean"), "before_interval": [first.get("low"), first.get("high")],
        "after": last.get("mean"), "after_interval": [last.get("low"), last.get("high")],
        "worlds": last.get("n"), "gain": gain.mean, "gain_interval": [gain.low, gain.high],
    }  # fmt: skip


def run_cost(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the whole run as its log has it, work before an interruption included, work that was redone not.

    seconds of updates and evaluations · decisions played and tokens trained on in updates · most memory, in MB
    """
    machine = [line.get("machine", {}) for line in lines]
    return {
        "seconds": sum(_seconds(entry.get("seconds")) for entry in machine),
        "decisions": sum(int(line.get("decisions") or 0) for line in lines),
        "tokens": int(sum(line.get("train/tokens") or 0 for line in lines)),
        "peak_rss_mb": max((entry["peak_rss_mb"] for entry in machine if "peak_rss_mb" in entry), default=None),
    }


def _seconds(told: Any) -> float:
    """Supervised lines hold one number, others a total among the parts."""
    return float(told.get("total", 0.0)) if isinstance(told, Mapping) else float(told or 0.0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# -- reading it ----------------------------------------------------------------------------------------

COLUMNS = (
    "started", "run", "kind", "folder", "status", "updates", "before", "after", "gain", "95 %", "seconds", "changed",
    "hypothesis",
)  # fmt: skip


def ledger_rows(records: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """One row of COLUMNS per start, with what its end record says; one without an end is running or was killed."""
    rows = []
    for index, start in enumerate(records):
        if start["event"] != "start":
            continue
        end = _end_of(start, records[index + 1 :])
        result = end.get("result", {})
        low, high = result.get("gain_interval") or (None, None)
        rows.append(
            (
                start["at"][:19].replace("T", " "), start["run_id"], start["kind"], Path(start["run_dir"]).name,
                end.get("status") or _status_without_end(start), end.get("update"), result.get("before"),
                result.get("after"), result.get("gain"), None if low is None else f"{low:.2f} to {high:.2f}",
                end.get("cost", {}).get("seconds"), _told(start["changes"]), start["hypothesis"],
            )
        )  # fmt: skip
    return rows


def _end_of(start: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The end record that follows before the same run starts again."""
    for record in later:
        if record["run_id"] == start["run_id"]:
            return record if record["event"] == "end" else {"status": "interrupted"}
    return {}


def _status_without_end(start: Mapping[str, Any]) -> RunStatus:
    try:
        pulse = read_heartbeat(Path(start["run_dir"]))
    except TrainError:
        return "interrupted"
    return "interrupted" if pulse.pid != start["pid"] or pulse.process_gone else "running"


def _told(differing: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(f"{key.split('.')[-1]} {old} → {new}" for key, (old, new) in differing.items())
