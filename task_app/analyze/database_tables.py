"""A database report as tables, the same for the terminal and for the page. Formats; computes and prints nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from task_app.analyze.cautions import Caution
from task_app.analyze.compare import Comparison
from task_app.analyze.costs import Cost
from task_app.analyze.database import DatabaseReport
from task_app.analyze.players import PlayerReport
from task_app.analyze.stats import Mean, Spread

__all__ = ["Bar", "Table", "caution_lines", "heading", "report_tables"]

MOST_TURNS = 40
MOST_SEEDS = 20
BAR_WIDTH = 16
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class Bar:
    """A share between 0 and 1, drawn; as text, in blocks."""

    share: float

    def __str__(self) -> str:
        eighths = round(self.share * BAR_WIDTH * 8)
        return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells: numbers, texts, bars, None for what is not known. `note` says how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""


def heading(report: DatabaseReport) -> str:
    """One line on how much there is."""
    runs = f"{len(report.runs)} run{'s' if len(report.runs) != 1 else ''}"
    return f"{report.database}: {runs}, {report.episodes} episodes, {report.decisions} decisions, {report.steps} steps"


def caution_lines(cautions: Iterable[Caution]) -> list[str]:
    """Each warning or note as one line with its examples."""
    return [
        f"{c.level}: {c.text}: {c.count} ({', '.join(c.examples)}{', …' * (c.count > len(c.examples))})"
        for c in cautions
    ]


def report_tables(report: DatabaseReport) -> list[Table]:
    """Every table that has something to say, in reading order."""
    tables = [_players(report), _scores(report), _endings(report)]
    tables += [_events(player) for player in report.players if player.events]
    tables += [_turns(player) for player in report.players if player.turns]
    if any(player.cost for player in report.players):
        tables.append(_costs(report))
    if report.comparison:
        tables += [_comparison(report.comparison), *_seeds(report.comparison)]
    return tables


def _players(report: DatabaseReport) -> Table:
    columns = (
        "player", "versions", "episodes", "rewarded", "decisions", "calls", "tokens in", "tokens out",
        "s/call", "median", "p95",
    )  # fmt: skip
    rows = [
        (
            p.label, p.versions, p.episodes, p.rewarded, p.decisions, p.calls, p.prompt_tokens, p.completion_tokens,
            p.latency_s.mean, p.latency_s.median, p.latency_s.p95,
        )
        for p in report.players
    ]  # fmt: skip
    note = "A player is a policy with a model. Rewarded episodes ended by themselves or at a limit."
    return Table("players", columns, rows, note)


def _scores(report: DatabaseReport) -> Table:
    rows = [
        (player.label, name, spread.n, spread.mean, spread.median, _interval(spread))
        for player in report.players
        for name, spread in (
            ("outcome", player.outcome),
            ("episode return", player.episode_return),
            ("environment return", player.environment_return),
        )
    ]
    note = "The episode return is Σ r under the flags each episode was played with."
    return Table("outcomes and returns", ("player", "", "n", "mean", "median", "95 %"), rows, note)


def _interval(mean: Mean | Spread) -> str:
    return f"{mean.low:.2f} to {mean.high:.2f}" if mean.low is not None else "–"


def _endings(report: DatabaseReport) -> Table:
    statuses = ("ok", "truncated", "infra_error", "aborted")
    rows = [
        (
            player.label,
            *(player.statuses.get(status, 0) for status in statuses),
            player.parse_failures,
            _percent(player.parse_failure_share),
            "; ".join(f"{count} × {cause}" for cause, count in player.infra_causes.items()),
        )
        for player in report.players
    ]
    columns = ("player", *statuses, "parse failures", "of decisions", "causes of infra_error")
    return Table("how episodes ended", columns, rows)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _events(player: PlayerReport) -> Table:
    rows: list[tuple[Any, ...]] = [
        (
            row.name, Bar(row.share), _percent(row.share), row.episodes, row.times,
            row.first_turn_mean, row.first_turn_median, row.first_turn_earliest,
        )
        for row in player.events
    ]  # fmt: skip
    columns = ("achievement", "", "share", "episodes", "times", "first turn, mean", "median", "earliest")
    note = f"In {player.rewarded} rewarded episodes. The first turn is that of the first unlock in an episode."
    return Table(f"achievements · {player.label}", columns, rows, note)


def _turns(player: PlayerReport) -> Table:
    best = max(row.unique_delta_mean for row in player.turns)
    rows: list[tuple[Any, ...]] = [
        (
            row.turn, row.decisions, row.ach_delta, row.unique_delta, row.ach_delta_mean, row.unique_delta_mean,
            Bar(row.unique_delta_mean / best if best else 0.0),
        )
        for row in player.turns[:MOST_TURNS]
    ]  # fmt: skip
    columns = ("turn", "decisions", "ΣAchΔ", "ΣUniqueΔ", "mean AchΔ", "mean UniqueΔ", "")
    totals = f"ΣAchΔ {player.ach_delta_sum}, ΣUniqueΔ {player.unique_delta_sum}"
    note = "Means are over the rewarded episodes that reached the turn."
    if len(player.turns) > MOST_TURNS:
        note += f" Turns {MOST_TURNS + 1} to {len(player.turns)} are in --json."
    return Table(f"decision rewards by turn · {player.label} · {totals}", columns, rows, note)


def _costs(report: DatabaseReport) -> Table:
    priced = [(player, player.cost) for player in report.players if player.cost]
    columns = ("player", "total", "tokens", "GPU", "per episode", "per achievement")
    rows = [(player.label, *map(_money, _parts(cost))) for player, cost in priced]
    note = "In the currency of the prices. An achievement is one of the ΣUniqueΔ of rewarded episodes."
    return Table("costs", columns, rows, note)


def _parts(cost: Cost) -> tuple[float | None, ...]:
    return cost.total, cost.tokens, cost.gpu, cost.per_episode, cost.per_achievement


def _money(amount: float | None) -> str:
    """Two decimals, or three digits where the amount is small."""
    return "–" if amount is None else f"{amount:,.2f}" if amount >= 100 else f"{Decimal(f'{amount:.3g}'):f}"


def _comparison(found: Comparison) -> Table:
    rows: list[tuple[Any, ...]] = [
        (side.label, wins, side.mean.mean, _interval(side.mean), side.unshared, side.versions)
        for side, wins in ((found.first, found.wins), (found.second, found.losses))
    ]
    difference = found.difference
    rows.append(("difference", f"{found.ties} ties", difference.mean, _interval(difference), None, None))
    columns = ("player", "worlds won", "mean outcome", "95 %", "worlds of its own", "versions")
    note = (
        f"On the {difference.n} worlds both played (same app, options, turn limit and seed); the difference is paired."
    )
    if not difference.n:
        note = "The two share no world (same app, options, turn limit and seed), so there is nothing to compare."
    for side in (found.first, found.second):
        if side.versions > 1:
            note += f" {side.versions} versions of {side.label} are averaged; --compare {side.label}@VERSION takes one."
    return Table(f"{found.first.label} against {found.second.label}", columns, rows, note)


def _seeds(found: Comparison) -> list[Table]:
    """The worlds in which the two differ most."""
    if not found.seeds:
        return []
    ordered = sorted(found.seeds, key=lambda row: (-abs(row.first_mean - row.second_mean), row.seed))
    rows: list[tuple[Any, ...]] = [
        (r.seed, r.first_mean, r.first_episodes, r.second_mean, r.second_episodes, r.first_mean - r.second_mean)
        for r in ordered[:MOST_SEEDS]
    ]
    columns = ("seed", found.first.label, "episodes", found.second.label, "episodes", "difference")
    note = "Mean outcome of each world, the largest difference first."
    if len(ordered) > MOST_SEEDS:
        note += f" All {len(ordered)} are in --json."
    return [Table("worlds", columns, rows, note)]
