"""`traces merge`, `traces prune`, `traces schema` and `traces datasette`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from task_app.cli.common import DEFAULT_DB, Db, Json

if TYPE_CHECKING:
    from task_app.store.prune import Pruned

__all__ = ["datasette", "merge", "prune", "schema"]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")]


def merge(
    inputs: Annotated[list[Path], typer.Argument(metavar="A B …", help="Databases to merge; they are not changed.")],
    output: Annotated[Path, typer.Option(help="The new database; must not exist.")],
    keep_first_run: Annotated[
        bool,
        typer.Option("--keep-first-run", help="Where two inputs know one run by different configs, keep the first."),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Put the episodes of several databases into a new one; an episode in two of them is kept once."""
    from task_app.cli.output import console, print_json, print_table
    from task_app.store.merge import merge_databases

    result = merge_databases(inputs, output, dry_run=dry_run, keep_first_run=keep_first_run)
    if as_json:
        print_json(result.to_json())
        return
    rows = [(str(one.path), one.episodes, one.decisions, one.known) for one in result.inputs]
    print_table("", ("database", "episodes", "decisions", "known already"), rows)
    where = f"in {result.output}" if result.output else f"would be in {output}; nothing was written"
    held = f"{result.runs} runs, {result.episodes} episodes, {result.decisions} decisions, {result.size_bytes:,} bytes"
    console.print(f"{held} {where}")


def prune(
    db: Db = DEFAULT_DB,
    run_id: Annotated[list[str] | None, typer.Option(help="Episodes of this run; may be given again.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Episodes that ended longer ago: 7d, 12h, 30m.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="ok | truncated | infra_error | aborted.")] = None,
    superseded: Annotated[bool, typer.Option("--superseded", help="Episodes a resumed training replaced.")] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")] = False,
    as_json: Json = False,
) -> None:
    """Delete the episodes that match ALL filters given, with all that belongs to them, and shrink the file.

    A run left without episodes goes too.
    """
    from task_app.cli.output import print_json
    from task_app.core.errors import ConfigError
    from task_app.store.prune import PruneFilter, parse_age, prune_database

    def agreed(found: Pruned) -> bool:
        if yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError(f"{_found(found)} would be deleted; without a terminal, --yes is needed", field="yes")
        return typer.confirm(f"delete {_found(found)} from {db}?", err=True)

    age_s = parse_age(older_than) if older_than is not None else None
    wanted = PruneFilter(tuple(run_id or ()), tuple(status or ()), age_s, superseded)
    pruned = prune_database(db, wanted, dry_run=dry_run, confirm=agreed)
    if as_json:
        print_json(pruned.to_json())
    else:
        _print_pruned(pruned, db)


def schema(
    db: Db = DEFAULT_DB,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Bring an older file up to date first.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is in a database: tables and views, every column in a sentence, rows, migrations, size."""
    from task_app.cli.output import console, print_json, print_table
    from task_app.store.describe import describe_database

    facts = describe_database(db, upgrade=upgrade)
    if as_json:
        print_json(facts.to_json())
        return
    console.print(facts.heading())
    for relation in facts.relations:
        rows = f", {relation.rows:,} rows" if relation.rows is not None else ""
        console.print()
        print_table(
            f"{relation.name} ({relation.kind}{rows}): {relation.meaning}",
            ("column", "unit", "meaning"),
            relation.columns,
        )


def datasette(
    db: Db = DEFAULT_DB,
    output: Annotated[
        Path | None, typer.Option(help="Metadata file to write [default: <database>.metadata.json beside it].")
    ] = None,
) -> None:
    """Write metadata and ready-made queries for datasette, and say how to start it."""
    from task_app.cli.output import console
    from task_app.store.datasette import write_metadata

    written = write_metadata(db, output)
    hint = "" if written.installed else "   (datasette is not installed; it comes with the extra 'viewer')"
    console.print(f"metadata and queries in {written.path}; look at the database with{hint}:")
    print(f"  {written.command}")  # not wrapped, so that it can be copied


def _print_pruned(pruned: Pruned, db: Path) -> None:
    from task_app.cli.output import console

    if not pruned.episodes:
        console.print(f"no episode in {db} matches; nothing was deleted")
    elif not pruned.done:
        console.print(f"{_found(pruned)} match; nothing was deleted")
    else:
        kept = "" if pruned.compacted else "; others are using the file, so it was not shrunk (its space is used again)"
        console.print(f"deleted {_found(pruned)} from {db}{kept}")


def _found(pruned: Pruned) -> str:
    size = f"{pruned.bytes:,} bytes" if pruned.done else f"about {pruned.bytes:,} bytes"
    return f"{pruned.episodes} episodes with {pruned.decisions} decisions ({size}), and {pruned.runs} whole runs"
