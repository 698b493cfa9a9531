"""A training run's report and result table, rebuilt from its record: metrics.jsonl and the trace database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from task_app.analyze.report import CurvePoint, TrainingReport, write_report
from task_app.analyze.stats import Mean, Summary, mean_interval, summarise
from task_app.store import TraceStore
from task_app.train.disk import writing
from task_app.train.evaluate import STEPS
from task_app.train.metrics import MetricsLog

__all__ = ["BEFORE", "DIFFERENCE", "ENV_STEPS", "RANDOM", "SFT", "build_report", "report_run"]

DIFFERENCE = "after − before on the same worlds, 95 %"
"""What the paired difference is called among the facts."""

ENV_STEPS = "held-out outcome when episodes end by environment steps: "
"""The name of the second evaluation's fact, before its budget."""

BEFORE, SFT = "before", "sft"
"""What the policy is called that training began with: SFT where it came from imitation."""

RANDOM = "random"
"""The label of the policy every other is compared with."""


def report_run(run_dir: Path, run_id: str, store: TraceStore, extra: Mapping[str, Summary]) -> TrainingReport:
    """Write `run_dir/report.html` and return what is in it. `extra` adds policies by label."""
    lines = MetricsLog(run_dir / "metrics.jsonl").lines()
    config = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
    report = build_report(run_id, lines, config, store, extra)
    with writing(run_dir / "report.html"):
        write_report(run_dir / "report.html", report)
    return report


def build_report(
    run_id: str,
    lines: list[dict[str, Any]],
    config: Mapping[str, Any],
    store: TraceStore,
    extra: Mapping[str, Summary],
) -> TrainingReport:
    """The report's numbers. Raises StoreError when the database cannot be read."""
    updates = [line for line in lines if line["kind"] == "update"]
    evaluated = sorted({line["update"] for line in lines if line["kind"] == "eval"})
    held_out: dict[str, Summary] = {}
    if RANDOM in extra:
        held_out[RANDOM] = extra[RANDOM]
    start = _start(lines)
    first = SFT if (start.get("init_from") or {}).get("kind") == "sft" else BEFORE
    for label, update in zip((first, "after"), (evaluated[0], evaluated[-1]), strict=True):
        held_out[label] = summarise(store.episodes(run_id=f"{run_id}-eval", update=update))
    held_out |= {label: summary for label, summary in extra.items() if label != RANDOM}
    return TrainingReport(
        title=f"{config['task']['app']}: training from event-level step rewards",
        curve=[_point(line, run_id, store) for line in updates],
        held_out=held_out,
        facts=_facts(run_id, lines, config) | _differences(run_id, lines, store),
        time_split=_time_split(lines),
        first=first,
    )


def _point(line: Mapping[str, Any], run_id: str, store: TraceStore) -> CurvePoint:
    sql = """SELECT outcome FROM episodes
             WHERE run_id = ? AND training_update = ? AND NOT superseded AND outcome IS NOT NULL"""
    outcomes = [row["outcome"] for row in store.query(sql, (run_id, line["update"]))]
    return CurvePoint(line["update"], mean_interval(outcomes), line["reward/mean_return"] or 0.0)


def _start(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return next(line for line in lines if line["kind"] == "start")


def _facts(run_id: str, lines: list[dict[str, Any]], config: Mapping[str, Any]) -> dict[str, Any]:
    start = _start(lines)
    flags, credit = start["step_rewards"], start["credit"]
    training, rollout = config["training"], config["rollout"]
    seeds = config["eval"]["seeds"]
    return {
        "run": run_id,
        **_guard_facts([line for line in lines if line["kind"] == "update"]),
        "step rewards": ", ".join(f"{name} {value}" for name, value in flags.items()),
        "credit": ", ".join(f"{name} {value}" for name, value in credit.items()),
        "updates": f"{training['updates']} × {training['groups_per_update']} worlds × {rollout['group_size']} episodes",
        "turn limit": rollout["max_decisions"],
        "task options": json.dumps(config["task"]["options"]),
        "learning rate": training["learning_rate"],
        "parameters": start["parameters"],
        "held-out worlds": f"{seeds['start']}:{seeds['stop']}",
        "seed": config["seed"],
        "prompt hash": start["prompt_hash"],
    }


def _guard_facts(updates: list[dict[str, Any]]) -> dict[str, str]:
    """Whether the run collapsed, and what else its guards found: each finding's last words and its updates."""
    found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for line in updates:
        for finding in line.get("guard/findings") or ():
            found.setdefault(finding["guard"], []).append((line["update"], finding))
    last = updates[-1] if updates else {}
    stopped = any(finding["level"] == "stop" for finding in last.get("guard/findings") or ())
    told = {
        f"guard {name}": f"in {len(seen)} updates, last {seen[-1][0]}: {seen[-1][1]['text']}"
        for name, seen in found.items()
    }
    status = {"status": f"COLLAPSED: stopped after update {last['update']}"} if stopped else {}
    return status | told


def _differences(run_id: str, lines: list[dict[str, Any]], store: TraceStore) -> dict[str, str]:
    """The paired difference of the last evaluation, and the second evaluation where one was made."""
    evaluations = [line for line in lines if line["kind"] == "eval"]
    before, after = evaluations[0], evaluations[-1]
    told = {DIFFERENCE: _difference(after["paired"])} if after["paired"] else {}
    control = after["env_steps"]
    if control:
        by_chance = summarise(store.episodes(run_id=f"{run_id}-{RANDOM}-{STEPS}")).outcome
        means = {RANDOM: by_chance, "before": _stored_mean(before["env_steps"]), "after": _stored_mean(control)}
        told[f"{ENV_STEPS}{control['budget']}"] = ", ".join(f"{label} {mean}" for label, mean in means.items()) + (
            f"; {DIFFERENCE} {_difference(control['paired'])}" if control["paired"] else ""
        )
    return told


def _difference(paired: Mapping[str, Any]) -> str:
    return f"{_stored_mean(paired)}; worlds won {paired['wins']}, lost {paired['losses']}, tied {paired['ties']}"


def _stored_mean(line: Mapping[str, Any]) -> Mean:
    return Mean(line["n"], line["mean"], line["low"], line["high"])


def _time_split(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds by part over all updates, then evaluations; parts of an update that no clock covers are `other`."""
    split: dict[str, float] = {}
    for line in lines:
        seconds = dict(line.get("machine", {}).get("seconds", {}))
        total = seconds.pop("total", 0.0)
        if line["kind"] == "eval":
            seconds = {"evaluation": total}
        elif line["kind"] == "update":
            seconds["other"] = max(0.0, total - sum(seconds.values()))
        for name, value in seconds.items():
            split[name] = split.get(name, 0.0) + value
    return split
