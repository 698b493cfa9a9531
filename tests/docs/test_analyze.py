"""docs/analyze.md against the code: its flags and its kinds of warnings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import typer

from task_app.analyze.cautions import Kind
from task_app.cli.traces.analyze import analyze

DOC = (Path(__file__).parents[2] / "docs/analyze.md").read_text(encoding="utf-8")


def first_cells(header: str) -> list[str]:
    """The first cell of each row of the table with this header, without backticks and what follows them."""
    table = re.search(rf"^\| {header} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert table
    return [line.split("`")[1] for line in table[1].splitlines()]


def test_every_flag_is_explained():
    app = typer.Typer()
    app.command()(analyze)
    flags = [flag for parameter in typer.main.get_command(app).params for flag in parameter.opts if flag != "--help"]
    documented = [cell.split()[0] for cell in first_cells("flag")]
    assert sorted(documented) == sorted(flag for flag in flags if "completion" not in flag)


def test_every_kind_of_warning_is_explained():
    assert sorted(first_cells("kind")) == sorted(get_args(Kind))
