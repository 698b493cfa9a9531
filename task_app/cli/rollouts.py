"""`rollout`, `eval` and `collect`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task_app.cli.common import CONTEXT, ConfigFile, Json, config_from
from task_app.core.imports import extra_imports

if TYPE_CHECKING:
    from task_app.core.types import Episode

__all__ = ["add_to"]

AppName = Annotated[str | None, typer.Option("--app", help="The task app, by name or alias [default: crafter].")]
PolicyName = Annotated[str | None, typer.Option("--policy", help="random | expert | replay | chat | embedded.")]
Seeds = Annotated[str | None, typer.Option("--seeds", help="World seeds A:B, B left out.")]
MaxDecisions = Annotated[int | None, typer.Option("--max-decisions", help="The turn limit [default: 20].")]
Checkpoint = Annotated[Path | None, typer.Option("--checkpoint", help="embedded: checkpoint folder.")]
Model = Annotated[str | None, typer.Option("--model", help="chat: the model's name at its endpoint.")]
InferenceUrl = Annotated[str | None, typer.Option("--inference-url", help="chat: the model endpoint's base URL.")]
TraceDb = Annotated[Path | None, typer.Option("--trace-db", help="Database for the episodes.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("rollout", context_settings=CONTEXT)(rollout)
    app.command("eval", context_settings=CONTEXT)(evaluate)
    app.command("collect", context_settings=CONTEXT)(collect)


def rollout(
    ctx: typer.Context,
    app: AppName = None,
    policy: PolicyName = None,
    seeds: Seeds = None,
    group_size: Annotated[int | None, typer.Option(help="Episodes per seed [default: 8].")] = None,
    max_decisions: MaxDecisions = None,
    checkpoint: Checkpoint = None,
    replay_db: Annotated[Path | None, typer.Option(help="replay: the database whose answers are said again.")] = None,
    model: Model = None,
    inference_url: InferenceUrl = None,
    base_url: Annotated[str | None, typer.Option(help="Play on the task app served there.")] = None,
    trace_db: TraceDb = None,
    executor: Annotated[
        str | None, typer.Option(help="inprocess | ray | modal: where groups are played [default: inprocess].")
    ] = None,
    run_id: Annotated[str | None, typer.Option(help="Name of the run [default: a fresh one].")] = None,
    relabel: Annotated[
        str | None, typer.Option(help="Ask this scripted player what it would do in each state.")
    ] = None,
    relabel_output: Annotated[Path | None, typer.Option(help="relabel: JSONL file for its answers.")] = None,
    as_json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Play episodes and store them: a row per episode, then the totals."""
    options = {
        "task.app": app,
        "policy.name": policy,
        "policy.checkpoint": checkpoint,
        "policy.replay_db": replay_db,
        "policy.model": model,
        "policy.inference_url": inference_url,
        "rollout.seeds": seeds,
        "rollout.group_size": group_size,
        "rollout.max_decisions": max_decisions,
        "rollout.trace_db": trace_db,
        "scale.executor": executor,
    }
    settings = config_from(ctx, config, options)
    from task_app.cli.output import console, progress_bar
    from task_app.relabel import check_relabel, play_relabelled
    from task_app.runs import new_run_id, play_config, play_hosted
    from task_app.scale import check_scalable, play_scaled

    check_relabel(relabel, relabel_output, base_url)
    check_scalable(settings, base_url=base_url, relabel=relabel)
    run_id = run_id or new_run_id("rollout")
    relabelled = None
    total = len(settings.rollout.seeds) * settings.rollout.group_size
    with progress_bar("rollouts", total) as advance:

        def progress(episode: Episode) -> None:
            advance(f"{episode.group_id}/{episode.member} {episode.status}")

        if base_url:
            stored = trace_db is not None
            episodes = play_hosted(
                settings, base_url, run_id=run_id, command="rollout", progress=progress, store_here=stored
            )
        elif relabel and relabel_output:
            episodes, relabelled = play_relabelled(
                settings, relabel, relabel_output, run_id=run_id, progress=progress, embedded=_embedded(settings)
            )
        elif settings.scale.executor != "inprocess":
            from task_app.deploy.rollouts import executor_of

            with executor_of(settings) as workers:
                episodes = play_scaled(settings, workers, run_id=run_id, command="rollout", progress=progress)
        else:
            episodes = play_config(
                settings, run_id=run_id, command="rollout", progress=progress, embedded=_embedded(settings)
            )
    _print_episodes(run_id, episodes, as_json)
    if relabelled and not as_json:
        console.print(f"{relabelled.rows} rows in {relabelled.output}; {relabel} agreed in {relabelled.agreed}")
    if any(not episode.rewarded for episode in episodes):
        sys.exit(1)


def evaluate(
    ctx: typer.Context,
    app: AppName = None,
    policy: PolicyName = None,
    seeds: Seeds = None,
    max_decisions: MaxDecisions = None,
    checkpoint: Checkpoint = None,
    model: Model = None,
    inference_url: InferenceUrl = None,
    trace_db: TraceDb = None,
    as_json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Score a policy on held-out worlds, one episode each, beside the random policy on the same worlds."""
    options = {
        "task.app": app,
        "policy.name": policy,
        "policy.checkpoint": checkpoint,
        "policy.model": model,
        "policy.inference_url": inference_url,
        "eval.seeds": seeds,
        "rollout.max_decisions": max_decisions,
        "rollout.trace_db": trace_db,
    }
    settings = config_from(ctx, config, options)
    from task_app.cli.output import print_json, print_table, progress_bar
    from task_app.runs import evaluate_beside_random, for_evaluation

    settings = for_evaluation(settings)
    total = (4 if settings.eval.env_steps else 2) * len(settings.eval.seeds)
    with progress_bar("evaluation", total) as advance:
        scores = evaluate_beside_random(settings, progress=lambda episode: advance(), embedded=_embedded(settings))
    if as_json:
        print_json([score.to_json() for score in scores])
    else:
        rows = [
            (s.policy, s.budget, s.outcome.n, s.outcome.mean, s.outcome.low, s.outcome.high, s.failed) for s in scores
        ]
        columns = ("policy", "budget", "n", "mean outcome", "95 % low", "high", "failed")
        print_table(f"held-out seeds {settings.eval.seeds}", columns, rows)
    if any(score.failed for score in scores):
        sys.exit(1)


def collect(
    ctx: typer.Context,
    db: Annotated[Path | None, typer.Option(help="Trace database to read [default: traces/task_app.db].")] = None,
    output: Annotated[Path | None, typer.Option(help="JSONL file to write; without one, standard output.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Only this run's episodes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    config: ConfigFile = None,
) -> None:
    """Turn stored episodes into reward vectors under the config's step-reward flags."""
    settings = config_from(ctx, config, {"rollout.trace_db": db})
    from task_app.cli.output import print_json, print_table
    from task_app.runs import collect_database

    collected = collect_database(settings, run_id=run_id, output=output)
    if output is None:
        print(collected.text, end="")
        return
    if as_json:
        print_json(collected.to_json())
        return
    print_table(f"{collected.rows} reward vectors in {output}", ("metric", "value"), collected.totals())
    print_table("by turn", ("turn", "sum of r", "ΣAchΔ", "ΣUniqueΔ"), collected.by_turn())


def _embedded(settings: Any) -> Any:
    """The embedded policy's factory; torch is imported only when a config asks for it."""
    if settings.policy.name != "embedded":
        return None
    with extra_imports("train"):
        from task_app.train.launch import embedded_factory

    return embedded_factory(settings)


def _print_episodes(run_id: str, episodes: list[Episode], as_json: bool) -> None:
    from task_app.analyze.rows import episode_row, episode_table
    from task_app.analyze.stats import summarise
    from task_app.cli.output import console, print_json, print_table

    if as_json:
        print_json({"run_id": run_id, "episodes": [episode_row(episode) for episode in episodes]})
        return
    summary = summarise(episodes)
    print_table(f"run {run_id}", *episode_table(episodes))
    console.print(
        f"{summary.episodes} episodes, {summary.decisions} decisions · outcome {summary.outcome} (n={summary.outcome.n}"
        f", 95 %) · ΣAchΔ {summary.ach_delta_sum} · ΣUniqueΔ {summary.unique_delta_sum} · "
        f"unreadable answers {summary.parse_failures} · " + ", ".join(f"{k} {v}" for k, v in summary.statuses.items())
    )
    shares = [(name, f"{share:.0%}") for name, share in summary.event_shares.items()]
    print_table("achievements", ("event", "share of episodes"), shares)
    deltas = [(turn, ach, unique) for turn, (ach, unique) in summary.by_turn.items()]
    print_table("by turn, mean per episode", ("turn", "AchΔ", "UniqueΔ"), deltas)
