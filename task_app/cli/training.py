"""`train` and `demo`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task_app.cli.common import CONTEXT, ConfigFile, Json, config_from
from task_app.core.imports import extra_imports

if TYPE_CHECKING:
    from rich.console import Console

    from task_app.analyze.report import TrainingReport
    from task_app.analyze.stats import Summary
    from task_app.config import Config

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("train", context_settings=CONTEXT)(train)
    app.command("demo")(demo)


def train(
    ctx: typer.Context,
    config: ConfigFile = None,
    kind: Annotated[
        Literal["rl", "sft"],
        typer.Option(
            "--type", help="rl: GRPO from event-level step rewards; sft: imitation of exported decisions or a teacher."
        ),
    ] = "rl",
    dataset: Annotated[Path | None, typer.Option(help="sft: JSON lines from `traces export-sft`.")] = None,
    validation: Annotated[Path | None, typer.Option(help="sft: JSON lines whose loss is watched.")] = None,
    task_url: Annotated[
        str | None, typer.Option(help="rl: task app elsewhere that plays the episodes (docs/hosted_training.md).")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Run folder of which --update is made again from stored rollouts and compared.")
    ] = None,
    update: Annotated[int | None, typer.Option(min=1, help="replay: which update.")] = None,
    trace_db: Annotated[Path | None, typer.Option(help="replay: the run's database, where it was moved.")] = None,
    status: Annotated[
        Path | None, typer.Option(help="Run folder whose heartbeat is shown; exit code 0 where it runs or is done.")
    ] = None,
    ledger: Annotated[bool, typer.Option(help="Show every run recorded beside the run folder.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Folder or name of a language model; with --backend also a finished job's id.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Training service, …/api; without one, training is local.")
    ] = None,
    idempotency: Annotated[str | None, typer.Option(help="backend: the same key gives the same job.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show plan and budget, or what is sent; do nothing.")
    ] = False,
    no_poll: Annotated[bool, typer.Option("--no-poll", help="backend: leave once the job is taken.")] = False,
    poll_timeout: Annotated[float, typer.Option(min=0, help="backend: seconds; exit code 3 after these.")] = 3600.0,
    poll_interval: Annotated[float, typer.Option(min=0.1, help="backend: most seconds between two looks.")] = 5.0,
    env_file: Annotated[
        Path | None, typer.Option(help="File of variables, such as keys; none is read unasked.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a policy by a TOML file; the same command again resumes an interrupted run."""
    from task_app.cli.jobs import Backend, chosen_for_training, show_plan, train_there, use_env_file
    from task_app.train.follower import follow, must_follow

    if must_follow() and not (status or ledger or replay or update):
        follow()
        return
    looks = status is not None or ledger or replay is not None or update is not None
    config = config if looks else chosen_for_training(ctx, config, kind)
    if backend is not None and not looks:
        there = Backend(backend, idempotency, dry_run, no_poll, poll_timeout, poll_interval, env_file, as_json)
        train_there(ctx, kind, config, there, dataset, validation, model, task_url)
        return
    options = {"sft.dataset": dataset, "sft.validation": validation}
    options |= {"model.path": model, "rollout.task_url": task_url}
    settings = config_from(ctx, config, options)
    if status is not None:
        _status(status, settings.training.guards.heartbeat_max_age_s, as_json)
        return
    if ledger:
        _ledger((settings.sft if kind == "sft" else settings.training).run_dir, as_json)
        return
    if replay is not None or update is not None:
        _replay(replay, update, trace_db, as_json)
        return
    if dry_run:
        show_plan(settings, kind, as_json)
        return
    if env_file is not None:
        use_env_file(env_file)
    with extra_imports("train"):
        from task_app.train.budget import check_start
    check_start(settings, kind)
    if kind == "sft":
        _train_sft(settings, as_json)
    else:
        _train_rl(settings, as_json)


def _train_rl(settings: Config, as_json: bool) -> None:
    from task_app.cli.output import console, errors, print_json

    with extra_imports("train"):
        from task_app.train.launch import train_config

    said = errors if as_json else console
    with _training_bar(settings.training.updates, said) as progress:
        result, report = train_config(settings, progress=progress, note=said.print)
    if as_json:
        print_json(
            {
                "run_id": result.run_id,
                "run_dir": str(result.run_dir),
                "checkpoint": str(result.checkpoint),
                "before": result.before,
                "after": result.after,
            }
        )
        return
    _print_report(report.held_out)
    _print_differences(report)
    console.print(f"run {result.run_id} in {result.run_dir} · report: {result.run_dir / 'report.html'}")


def _replay(run_dir: Path | None, update: int | None, trace_db: Path | None, as_json: bool) -> None:
    from task_app.cli.output import console, print_json

    with extra_imports("train"):
        from task_app.train.replay_update import replay_recorded

    found = replay_recorded(run_dir, update, trace_db)
    if as_json:
        print_json(found.to_json())
    else:
        for line in found.sentences():
            console.print(line)
    if not found.equal:
        sys.exit(1)


def _train_sft(settings: Config, as_json: bool) -> None:
    from task_app.cli.output import console, errors, print_json

    with extra_imports("train"):
        from task_app.train.launch import train_sft

    with _imitation_bar(errors if as_json else console) as progress:
        outcome = train_sft(settings, progress=progress)
    if as_json:
        print_json(outcome.to_json())
        return
    result = outcome.result
    _print_report(outcome.held_out)
    console.print(f"run {result.run_id} in {result.run_dir} · entropy at the end {result.entropy:.2f} nats a choice")


def demo(port: Annotated[int, typer.Option(help="Port the task app is served on.")] = 8010) -> None:
    """Everything once, in a few minutes: serve, roll out over HTTP, collect, imitate, reinforce, report."""
    from task_app.cli.output import console, print_table, progress_bar
    from task_app.demo import DemoPaths, demo_configs, run_demo

    paths = DemoPaths(Path())
    configs = demo_configs(paths)
    if paths.clear():
        console.print(f"replacing the last demo ({paths.run_dir}, {paths.trace_db})")
    demo = run_demo(
        configs,
        paths,
        port,
        stage=progress_bar,
        imitating=_imitation_bar,
        training=_training_bar,
        note=console.print,
    )
    console.print(f"{demo.collected.rows} reward vectors from {paths.trace_db} in {paths.vectors}")
    print_table("reward by turn", ("turn", "sum of r", "ΣAchΔ", "ΣUniqueΔ"), demo.collected.by_turn())
    _print_report(demo.report.held_out)
    _print_differences(demo.report)
    _print_time_split(demo.report)
    console.print(
        f"\nreport: {paths.report}   (open it in a browser)\n\n"
        f"what to type next:\n"
        f"  .venv/bin/task-app traces show {demo.best_episode[:8]} --db {paths.trace_db}\n"
        f"  .venv/bin/task-app eval --policy embedded --checkpoint {paths.run_dir} "
        f"--config configs/basic/crafter_eval.toml\n"
        f"  .venv/bin/task-app train --type rl --config {paths.config} --training.updates=40\n"
        f"  .venv/bin/task-app serve crafter --port {port}"
    )


def _status(run_dir: Path, max_age_s: float, as_json: bool) -> None:
    from dataclasses import asdict

    from task_app.cli.output import console, print_json
    from task_app.train.heartbeat import read_heartbeat

    pulse = read_heartbeat(run_dir)
    if as_json:
        print_json(asdict(pulse) | {"dead": pulse.is_dead(max_age_s)})
    else:
        console.print(pulse.describe(max_age_s))
    if not pulse.is_well(max_age_s):
        raise typer.Exit(1)


def _ledger(run_dir: Path, as_json: bool) -> None:
    from task_app.cli.output import print_json, print_table
    from task_app.train.ledger import COLUMNS, ledger_of, ledger_rows

    book = ledger_of(run_dir)
    records = book.records()
    if as_json:
        print_json(records)
    else:
        print_table(str(book.path), COLUMNS, ledger_rows(records))


@contextmanager
def _imitation_bar(said: Console | None = None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar of optimiser steps; what validation and a teacher's rounds give is told by `said`."""
    from task_app.cli.output import console, progress_bar

    said = said or console
    with progress_bar("imitating", 0) as advance:

        def progress(line: dict[str, Any]) -> None:
            if line["kind"] == "start":
                advance(total=line["steps"])
            elif line["kind"] == "step":
                advance(f"loss {line['loss']:.3f}")
            elif line["kind"] == "round" and line["outcome"] is not None:
                who = "the policy's play, corrected" if line["round"] else "the teacher's own play"
                said.print(f"round {line['round']}: {line['episodes']} episodes of {who}: {line['outcome']:.2f}")
            elif line["kind"] == "validation" and line["loss"] is not None:
                said.print(f"validation after {line['update']} steps: loss {line['loss']:.3f}")

        yield progress


@contextmanager
def _training_bar(updates: int, said: Console | None = None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The live view on a terminal; elsewhere a bar with the last update's numbers, and evaluations told by `said`."""
    from task_app.cli.live import live_view
    from task_app.cli.output import console, progress_bar

    said = said or console
    if said is console and console.is_terminal:
        with live_view(updates) as show:
            yield show
        return
    with progress_bar("training", updates) as advance:

        def progress(line: dict[str, Any]) -> None:
            if line["kind"] == "start":
                flags = line["step_rewards"]
                said.print("step rewards: " + ", ".join(f"{name} {value}" for name, value in flags.items()))
            elif line["kind"] == "update":
                advance(f"outcome {line['outcome/mean']:.2f} · Σr {line['reward/sum']:.0f}")
            elif line["kind"] == "eval" and line["mean"] is not None:
                said.print(f"held-out after {line['update']} updates: {line['mean']:.2f} (n={line['n']})")

        yield progress


def _print_report(held_out: Mapping[str, Summary]) -> None:
    from task_app.cli.output import print_table

    rows = [
        (label, s.outcome.n, s.outcome.mean, s.outcome.low, s.outcome.high, s.unique_delta_sum)
        for label, s in held_out.items()
    ]
    columns = ("policy", "episodes", "mean achievements", "95 % low", "high", "ΣUniqueΔ")
    print_table("held-out worlds, one episode each", columns, rows)


def _print_differences(report: TrainingReport) -> None:
    from task_app.cli.output import console
    from task_app.train.report import DIFFERENCE, ENV_STEPS

    for name, value in report.facts.items():
        if name.startswith((DIFFERENCE, ENV_STEPS)):
            console.print(f"{name.removesuffix(': ')}: {value}")


def _print_time_split(report: TrainingReport) -> None:
    from task_app.cli.output import print_table

    total = sum(report.time_split.values()) or 1.0
    rows = [(name, seconds, f"{seconds / total:.0%}") for name, seconds in report.time_split.items()]
    print_table("where training's time went", ("part", "seconds", "share"), rows)
