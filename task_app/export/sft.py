"""A database's episodes → SFT files: select, make rows, write. The row itself is defined in rows.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean
from task_app.export.files import ExportError, check_output, replacing
from task_app.export.filters import EpisodeFilters, Selection, select_episodes
from task_app.export.rows import RowForm, RowMaker
from task_app.export.split import SIDES, Split
from task_app.export.stored import StoredFacts
from task_app.store import TraceStore
from task_app.store.traces import Rows

__all__ = ["Decisions", "ExportReport", "Progress", "SftOptions", "export_sft"]

Decisions = Literal["all", "rewarded"]
Progress = Callable[[int], AbstractContextManager[Callable[[], object]]]


@dataclass(frozen=True, slots=True)
class SftOptions:
    """How the selected episodes are written.

    form       "openai" or "trl" (rows.py)
    decisions  "all", or "rewarded": those with unique_delta > 0 (event_rewards_kind absolute: ach_delta > 0)
    dedupe     rows with the same messages (ids of tool calls aside) are written once, the first
    split      "train:valid" as two numbers, such as "90:10": two files by seed instead of one
    """

    form: str = "openai"
    decisions: str = "all"
    dedupe: bool = False
    split: str | None = None


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export did.

    episodes     in the database; `selected` passed every filter, `removed` did not, by filter in order
    skipped      decisions of selected episodes left out, by reason
    files, rows, seeds   per file written
    """

    episodes: int
    selected: int
    removed: tuple[tuple[str, int], ...]
    skipped: tuple[tuple[str, int], ...]
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    seeds: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "episodes": self.episodes,
            "selected": self.selected,
            "removed": [{"filter": label, "episodes": count} for label, count in self.removed],
            "skipped": [{"reason": reason, "decisions": count} for reason, count in self.skipped],
            "files": [
                {"path": str(path), "rows": rows, "seeds": seeds}
                for path, rows, seeds in zip(self.files, self.rows, self.seeds, strict=True)
            ],
        }


def export_sft(
    database: Path,
    output: Path,
    filters: EpisodeFilters = EpisodeFilters(),
    options: SftOptions = SftOptions(),
    *,
    progress: Progress = lambda total: nullcontext(lambda: None),
) -> ExportReport:
    """Write the SFT rows of the episodes that pass, in the store's order.

    `progress` is told how many episodes those are, and gives what is called after each.

    Raises ConfigError for a filter, an option or an output that cannot be meant or written, StoreError for
    the database, ExportError when nothing is left to write. What was at `output` before stays then.
    """
    form = _one_of(options.form, get_args(RowForm), "format")
    rewarded_only = _one_of(options.decisions, get_args(Decisions), "decisions") == "rewarded"
    split = None if options.split is None else Split.parse(options.split)
    paths = [output] if split is None else split.paths(output)
    for path in paths:
        check_output(path, database)
    maker = RowMaker(form, rewarded_only=rewarded_only, dedupe=options.dedupe)
    with TraceStore.open(database, create=False, read_only=True) as store, store.snapshot() as read:
        selection = select_episodes(read, filters)
        if not selection.keys:
            raise ExportError(_nothing(database, selection, maker.skipped))
        with replacing(paths) as files:
            with progress(len(selection.keys)) as advance:
                counts = _write(read, selection.keys, maker, files, split, advance)
            if not any(counts.rows):
                raise ExportError(_nothing(database, selection, maker.skipped))
            counts.check_sides(split)
    return ExportReport(
        episodes=selection.total,
        selected=len(selection.keys),
        removed=selection.removed,
        skipped=tuple(maker.skipped.items()),
        files=tuple(paths),
        rows=tuple(counts.rows),
        seeds=tuple(len(seeds) for seeds in counts.seeds),
    )


class _Counts:
    """Rows and seeds per file."""

    def __init__(self, files: int) -> None:
        self.rows = [0] * files
        self.seeds: list[set[tuple[str, int]]] = [set() for _ in range(files)]

    def check_sides(self, split: Split | None) -> None:
        """Raise ExportError when a split leaves one of its files empty."""
        if split is not None and not all(self.rows):
            empty, full = (0, 1) if not self.rows[0] else (1, 0)
            raise ExportError(
                f"nothing was written: --split puts all {len(self.seeds[full])} seeds into {SIDES[full]} and none "
                f"into {SIDES[empty]}; export more seeds or split otherwise"
            )


def _write(
    read: Rows,
    keys: Iterable[int],
    maker: RowMaker,
    files: list[BinaryIO],
    split: Split | None,
    advance: Callable[[], object],
) -> _Counts:
    counts, stored = _Counts(len(files)), StoredFacts(read)
    for key in keys:
        episode = stored.episode(key)
        rows = list(maker.rows(episode, stored.decisions(key)))
        if rows:
            side = 0 if split is None else split.side(episode.app, episode.seed)
            files[side].write("".join(_lines(rows)).encode())
            counts.rows[side] += len(rows)
            counts.seeds[side].add((episode.app, episode.seed))
        advance()
    return counts


def _lines(rows: Iterable[str]) -> Iterator[str]:
    for row in rows:
        yield row
        yield "\n"


def _nothing(database: Path, selection: Selection, skipped: Counter[str]) -> str:
    """Why no row is left: what each filter removed, in order, then what was left out of the rest."""
    steps = [f"{label}: {count}" for label, count in selection.removed]
    steps += [f"decisions of the {len(selection.keys)} left, {reason}: {count}" for reason, count in skipped.items()]
    removed = "; ".join(steps)
    return f"nothing matched and nothing was written; {selection.total} episodes in {database}, removed by {removed}"


def _one_of(value: str, allowed: tuple[Any, ...], flag: str) -> Any:
    if value not in allowed:
        raise ConfigError(
            f"--{flag} {value!r}: must be one of {', '.join(allowed)}{did_you_mean(value, allowed)}", field=flag
        )
    return value
