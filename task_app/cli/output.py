"""Tables and progress bars on the terminal; JSON on request. Prints; computes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["Bar", "console", "errors", "print_json", "print_table", "progress_bar"]

_PIPE_WIDTH = 160
"""Columns where standard output is no terminal, so that tables keep one line a row."""

# Texts are printed as they are: what a model or an endpoint said is never taken for markup.
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
errors = Console(stderr=True, highlight=False, markup=False)


class Bar(Protocol):
    """Advances a progress bar by one and says something beside it; with a `total`, only says how much there is."""

    def __call__(self, text: str = "", *, total: int | None = None) -> None: ...


def print_json(value: Any) -> None:
    """One strict-JSON document."""
    print(json.dumps(value, allow_nan=False, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table; numbers are right-aligned, None is shown as –."""
    every = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", show_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(every) and all(isinstance(row[index], int | float | None) for row in every)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in every:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Bar]:
    """A bar on standard error, so that output can be piped."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=errors, transient=not errors.is_terminal) as progress:
        task = progress.add_task(label, total=total, text="")

        def advance(text: str = "", *, total: int | None = None) -> None:
            progress.update(task, advance=0 if total else 1, text=text, total=total)

        yield advance
