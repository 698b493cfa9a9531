"""A whole trace database in numbers: players, achievements, rewards by turn, costs, a comparison, warnings.

Everything is of one snapshot, from SQL and arrays; no `Episode` is built, nothing is printed or written.
Superseded episodes are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from task_app.analyze.cautions import Caution, find_cautions
from task_app.analyze.columns import Columns, read_columns
from task_app.analyze.compare import Comparison, compare_players, find_player
from task_app.analyze.players import Player, PlayerReport, players_of, report_player
from task_app.config.models import PriceSection
from task_app.core.errors import ConfigError, StoreError
from task_app.core.names import did_you_mean
from task_app.store import TraceStore

__all__ = ["DatabaseReport", "analyze_database"]


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """What `traces analyze` says. `players` are in order of policy and model; `warnings` and `notes` hold
    only what is true; `comparison` is None unless two players were compared."""

    database: str
    runs: tuple[str, ...]
    episodes: int
    decisions: int
    steps: int
    players: tuple[PlayerReport, ...]
    comparison: Comparison | None
    warnings: tuple[Caution, ...]
    notes: tuple[Caution, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)


def analyze_database(
    store: TraceStore,
    *,
    run_ids: Sequence[str] | None = None,
    prices: Mapping[str, PriceSection] = {},
    compare: tuple[str, str] | None = None,
) -> DatabaseReport:
    """Analyse every episode that is not superseded, or those of some runs.

    `prices` are by model name. `compare` names two players by label (`policy:model`), policy or model, with
    `@version` for one version; without it two players are compared where there are exactly two.
    Raises StoreError for a database without episodes or one that cannot be read, ConfigError for an
    unknown run or player.
    """
    columns = read_columns(store, run_ids)
    _check_runs(store, columns, run_ids)
    players = players_of(columns)
    reports = tuple(report_player(player, columns, prices) for player in players)
    cautions = find_cautions(columns, players, prices)
    return DatabaseReport(
        database=str(store.path),
        runs=tuple(sorted(columns.texts["run_id"].names)),
        episodes=len(columns),
        decisions=sum(report.decisions for report in reports),
        steps=sum(report.steps for report in reports),
        players=reports,
        comparison=_comparison(players, compare, columns),
        warnings=tuple(caution for caution in cautions if caution.level == "warning"),
        notes=tuple(caution for caution in cautions if caution.level == "note"),
    )


def _check_runs(store: TraceStore, columns: Columns, run_ids: Sequence[str] | None) -> None:
    """Refuse what would be an empty report, or a run that is not there."""
    missing = [run for run in run_ids or () if run not in columns.texts["run_id"].names]
    if not missing and len(columns):
        return
    known = [row[0] for row in store.query("SELECT DISTINCT run_id FROM episodes WHERE NOT superseded")]
    if not known:
        raise StoreError(f"{store.path} holds no episodes yet")
    if not missing:
        raise ConfigError("no run was named", field="run_id")
    hint = did_you_mean(missing[0], known) or f" (runs: {', '.join(sorted(known)[:20])})"
    raise ConfigError(f"no run {missing[0]!r} in {store.path}{hint}", field="run_id")


def _comparison(players: list[Player], names: tuple[str, str] | None, columns: Columns) -> Comparison | None:
    if names is None:
        if len(players) != 2:
            return None
        return compare_players(players[0], players[1], columns)
    first, second = (find_player(name, players, columns) for name in names)
    if (first.policy, first.model, first.versions) == (second.policy, second.model, second.versions):
        raise ConfigError(f"{names[0]!r} and {names[1]!r} are the same player", field="compare")
    return compare_players(first, second, columns)
