"""`traces export-sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from task_app.cli.common import DEFAULT_DB, Db, Json

__all__ = ["export_sft"]

Names = list[str]


def export_sft(
    output: Annotated[Path, typer.Option(help="The JSONL file to write; one that is there is replaced.")],
    db: Db = DEFAULT_DB,
    model: Annotated[Names | None, typer.Option(help="Only episodes of this model; repeatable, any of them.")] = None,
    provider: Annotated[
        Names | None, typer.Option(help="Only episodes of this provider, as their request named it; repeatable.")
    ] = None,
    policy: Annotated[Names | None, typer.Option(help="Only episodes of this policy; repeatable.")] = None,
    run_id: Annotated[Names | None, typer.Option(help="Only episodes of this run; repeatable.")] = None,
    require_achievement: Annotated[
        Names | None, typer.Option(help="Only episodes in which this event happened; repeatable, all of them.")
    ] = None,
    exclude_achievement: Annotated[
        Names | None, typer.Option(help="Not counted by --min-unique and --max-unique; repeatable.")
    ] = None,
    event_reward: Annotated[
        Names | None,
        typer.Option(
            metavar="NAME[:MIN]",
            help="Only episodes with this event reward above 0, or at least MIN: unique_achievement_delta, "
            "achievement_delta, sparse, or an event's name; repeatable, all of them.",
        ),
    ] = None,
    min_unique: Annotated[int | None, typer.Option(help="At least so many different events.")] = None,
    max_unique: Annotated[int | None, typer.Option(help="At most so many different events.")] = None,
    min_outcome_reward: Annotated[float | None, typer.Option(help="At least this outcome.")] = None,
    max_outcome_reward: Annotated[float | None, typer.Option(help="At most this outcome.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many episodes, the first in the store's order.")] = None,
    decisions: Annotated[
        str, typer.Option(metavar="all|rewarded", help="Every decision, or those with an event reward.")
    ] = "all",
    dedupe: Annotated[bool, typer.Option("--dedupe", help="Write rows with the same messages once.")] = False,
    split: Annotated[
        str | None, typer.Option(metavar="TRAIN:VALID", help="Two files by seed, in these proportions (90:10).")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="openai|trl", help="Arguments of calls as a string or an object.")
    ] = "openai",
    as_json: Json = False,
) -> None:
    """Write episodes worth imitating as SFT data: a row of JSON per decision (docs/sft_export.md)."""
    from task_app.cli.output import console, print_json, print_table, progress_bar
    from task_app.export import EpisodeFilters, SftOptions
    from task_app.export import export_sft as export

    filters = EpisodeFilters(
        model=tuple(model or ()),
        provider=tuple(provider or ()),
        policy=tuple(policy or ()),
        run_id=tuple(run_id or ()),
        require_achievement=tuple(require_achievement or ()),
        exclude_achievement=tuple(exclude_achievement or ()),
        event_reward=tuple(event_reward or ()),
        min_unique=min_unique,
        max_unique=max_unique,
        min_outcome_reward=min_outcome_reward,
        max_outcome_reward=max_outcome_reward,
        limit=limit,
    )
    options = SftOptions(form, decisions, dedupe, split)
    report = export(db, output, filters, options, progress=lambda total: progress_bar("exporting", total))
    if as_json:
        print_json(report.to_json())
        return
    print_table(f"{report.selected} of {report.episodes} episodes", ("removed by", "episodes"), report.removed)
    if report.skipped:
        print_table("left out of those", ("because", "decisions"), report.skipped)
    for path, rows, seeds in zip(report.files, report.rows, report.seeds, strict=True):
        console.print(f"{rows} rows of {seeds} seeds in {path}")
