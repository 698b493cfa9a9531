"""One self-contained HTML file about a trace database: plots, and the tables the terminal shows.

Built from a `DatabaseReport` alone; the same report gives the same bytes. Fetches nothing and runs no script.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from task_app.analyze.database import DatabaseReport
from task_app.analyze.database_tables import caution_lines, heading, report_tables
from task_app.analyze.players import PlayerReport
from task_app.core.errors import ConfigError, TaskAppError
from task_app.store.files import write_whole

__all__ = ["write_database_report"]

NEEDED = ("jinja2", "matplotlib")


def write_database_report(path: Path, report: DatabaseReport) -> None:
    """Write the page to `path`, whole or not at all.

    Raises TaskAppError when what draws it is not installed, ConfigError when `path` cannot be written or is
    the database itself.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise TaskAppError(
            f"the page needs {' and '.join(missing)}, which the extra `train` installs: "
            "pip install 'crafter-task-app[train]'"
        )
    if path.resolve() == Path(report.database).resolve():
        raise ConfigError(f"{path} is the database; the page must be another file", field="html")
    write_whole(path, _page(report))


def _page(report: DatabaseReport) -> str:
    from jinja2 import Environment, PackageLoader

    templates = Environment(loader=PackageLoader("task_app.analyze"), autoescape=True, trim_blocks=True)
    templates.filters["cell"] = _cell
    return templates.get_template("database.html").render(
        report=report,
        name=Path(report.database).name,
        heading=heading(report),
        warnings=caution_lines(report.warnings),
        notes=caution_lines(report.notes),
        tables=report_tables(report),
        achievements=_achievements(report),
        by_turn=_by_turn(report),
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _label(player: PlayerReport) -> str:
    """The player's label as the plots take it: no mathematics, and no name that a legend would hide."""
    text = player.label.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _achievements(report: DatabaseReport) -> str:
    """Shares of rewarded episodes as bars; `random` is the mark over them where there is someone else."""
    from task_app.analyze.plots import bar_plot

    shares = {p.label: {row.name: 100 * row.share for row in p.events} for p in report.players if p.rewarded}
    best: dict[str, float] = {}
    for player in shares.values():
        for name, share in player.items():
            best[name] = max(share, best.get(name, 0.0))
    names = sorted(best, key=lambda name: (-best[name], name))
    if not names:
        return ""
    heights = {_label(p): [shares[p.label].get(n, 0.0) for n in names] for p in report.players if p.label in shares}
    random = heights.pop("random", None) if len(heights) > 1 else None
    reference = ("random", random) if random is not None else None
    labels = [name.replace("$", r"\$") for name in names]
    return bar_plot(labels, heights, x_label="", y_label="% of rewarded episodes", reference=reference)


def _by_turn(report: DatabaseReport) -> str:
    from task_app.analyze.plots import Series, line_plot

    series = [
        Series(_label(p), [row.turn for row in p.turns], [row.unique_delta_mean for row in p.turns])
        for p in report.players
        if p.turns
    ]
    return line_plot(series, x_label="decision (turn)", y_label="mean UniqueΔ") if series else ""
