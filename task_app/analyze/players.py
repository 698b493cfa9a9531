"""One player's numbers: who decided, how much, what it earned and when, at what cost.

A player is a policy with a model; its versions are counted together. Computes from columns; reads no database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from task_app.analyze.columns import Columns, EventTimes
from task_app.analyze.costs import Cost, cost_of
from task_app.analyze.stats import Spread, spread
from task_app.config.models import PriceSection

__all__ = ["EventRow", "Latency", "Player", "PlayerReport", "TurnRow", "players_of", "report_player"]

MOST_CAUSES = 5
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Player:
    """Who decided. `episodes` are the indexes of its episodes, `versions` how many each version played;
    `version` is the one version it was narrowed to, if it was."""

    policy: str
    model: str
    episodes: Array
    versions: Mapping[str, int]
    version: str | None = None

    @property
    def label(self) -> str:
        """`policy:model`, or the policy alone where no model is known; `@version` of one version."""
        label = f"{self.policy}:{self.model}" if self.model else self.policy
        return label if self.version is None else f"{label}@{self.version}"


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds per call; p95 between two values is interpolated. None without calls."""

    mean: float | None
    median: float | None
    p95: float | None
    total: float


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in the rewarded episodes: in how many it happened and in which share of them, how often in
    all, and the turn it was first seen at (1-based)."""

    name: str
    episodes: int
    share: float
    times: int
    first_turn_mean: float
    first_turn_median: float
    first_turn_earliest: int


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn of the rewarded episodes: how many reached it, how many of those decisions have a stored record,
    the sums of their deltas, and the means over the episodes that reached it."""

    turn: int
    decisions: int
    records: int
    ach_delta: int
    unique_delta: int
    ach_delta_mean: float
    unique_delta_mean: float


@dataclass(frozen=True, slots=True)
class PlayerReport:
    """All that is said of a player. Outcomes, returns, deltas, events and turns are of rewarded episodes;
    counts of episodes, decisions, calls, tokens and failures are of all.

    calls                 completions stored; `calls_without_tokens` of them lack a token count
    prompt_tokens, completion_tokens  None where no completion says
    records               decision records stored (rewarded episodes or not)
    infra_causes          the most frequent causes of `infra_error`, by how often
    """

    label: str
    policy: str
    model: str
    versions: int
    episodes: int
    rewarded: int
    decisions: int
    steps: int
    calls: int
    calls_without_tokens: int
    prompt_tokens: int | None
    completion_tokens: int | None
    latency_s: Latency
    statuses: Mapping[str, int]
    infra_causes: Mapping[str, int]
    parse_failures: int
    parse_failure_share: float | None
    outcome: Spread
    episode_return: Spread
    environment_return: Spread
    ach_delta_sum: int
    unique_delta_sum: int
    records: int
    events: tuple[EventRow, ...]
    turns: tuple[TurnRow, ...]
    cost: Cost | None


def players_of(columns: Columns) -> list[Player]:
    """Every player, in order of policy and model."""
    policy, model, version = (columns.texts[name] for name in ("policy", "model", "policy_version"))
    pairs = policy.codes * max(1, len(model.names)) + model.codes
    players = []
    for pair in np.unique(pairs):
        episodes = np.flatnonzero(pairs == pair)
        versions = Counter(version.codes[episodes].tolist())
        counted = {version.names[code]: n for code, n in versions.items()}
        players.append(Player(policy.of(episodes[0]), model.of(episodes[0]), episodes, counted))
    return sorted(players, key=lambda player: (player.policy, player.model))


def report_player(player: Player, columns: Columns, prices: Mapping[str, PriceSection]) -> PlayerReport:
    """Count and average what one player did."""
    mine = np.zeros(len(columns), dtype=bool)
    mine[player.episodes] = True
    rewarded = mine & columns.rewarded
    calls = columns.calls[mine[columns.calls["episode"]]]
    decisions, failures = _sum(columns, "decision_count", mine), _sum(columns, "parse_failures", mine)
    tokens = [_known_sum(columns.numbers[name][mine]) for name in ("prompt_tokens", "completion_tokens")]
    report = PlayerReport(
        label=player.label,
        policy=player.policy,
        model=player.model,
        versions=len(player.versions),
        episodes=len(player.episodes),
        rewarded=int(rewarded.sum()),
        decisions=decisions,
        steps=_sum(columns, "step_count", mine),
        calls=len(calls),
        calls_without_tokens=int(calls["unknown"].sum()),
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
        latency_s=_latency(calls["latency_s"]),
        statuses=dict(sorted(_counts(columns, "status", mine).items())),
        infra_causes=_causes(columns, mine),
        parse_failures=failures,
        parse_failure_share=failures / decisions if decisions else None,
        outcome=_spread(columns, "outcome", rewarded),
        episode_return=_spread(columns, "episode_return", rewarded),
        environment_return=_spread(columns, "environment_return", rewarded),
        ach_delta_sum=_sum(columns, "ach_delta", rewarded),
        unique_delta_sum=_sum(columns, "unique_delta", rewarded),
        records=int(columns.records[mine].sum()),
        events=_events(columns, rewarded),
        turns=_turns(columns, rewarded),
        cost=None,
    )
    price = prices.get(player.model)
    return report if price is None else replace(report, cost=_cost(price, report))


def _cost(price: PriceSection, report: PlayerReport) -> Cost:
    return cost_of(
        price,
        prompt_tokens=report.prompt_tokens,
        completion_tokens=report.completion_tokens,
        latency_s=report.latency_s.total,
        episodes=report.episodes,
        unlocks=report.unique_delta_sum,
    )


def _sum(columns: Columns, name: str, chosen: Array) -> int:
    return int(columns.numbers[name][chosen].sum())


def _known_sum(values: Array) -> int | None:
    known = values[~np.isnan(values)]
    return int(known.sum()) if len(known) else None


def _spread(columns: Columns, name: str, chosen: Array) -> Spread:
    values = columns.numbers[name][chosen]
    return spread(values[~np.isnan(values)].tolist())


def _counts(columns: Columns, name: str, chosen: Array) -> dict[str, int]:
    text = columns.texts[name]
    codes, counts = np.unique(text.codes[chosen], return_counts=True)
    return {text.names[code]: int(n) for code, n in zip(codes, counts, strict=True)}


def _causes(columns: Columns, mine: Array) -> dict[str, int]:
    status = columns.texts["status"]
    failed = mine & np.isin(status.codes, [c for c, name in enumerate(status.names) if name == "infra_error"])
    causes = _counts(columns, "cause", failed)
    return dict(sorted(causes.items(), key=lambda item: (-item[1], item[0]))[:MOST_CAUSES])


def _latency(seconds: Array) -> Latency:
    if not len(seconds):
        return Latency(None, None, None, 0.0)
    median, p95 = np.quantile(seconds, (0.5, 0.95)).tolist()
    return Latency(float(seconds.mean()), median, p95, float(seconds.sum()))


def _events(columns: Columns, rewarded: Array) -> tuple[EventRow, ...]:
    """A row per event that happened, the most frequent first."""
    total, rows = int(rewarded.sum()), []
    for name, times in columns.events.items():
        chosen = rewarded[times.episodes]
        episodes, first = np.unique(times.episodes[chosen], return_index=True)
        if not len(episodes):
            continue
        turns = times.turns[chosen][first]
        row = EventRow(
            name=name,
            episodes=len(episodes),
            share=len(episodes) / total,
            times=int(times.times[chosen].sum()),
            first_turn_mean=float(turns.mean()),
            first_turn_median=float(np.median(turns)),
            first_turn_earliest=int(turns.min()),
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: (-row.episodes, row.name)))


def _turns(columns: Columns, rewarded: Array) -> tuple[TurnRow, ...]:
    """A row per turn: deltas from the records, and from the events of episodes that have none."""
    recorded = columns.records > 0
    lengths = columns.numbers["decision_count"].astype(np.int64)
    longest = int(lengths[rewarded].max()) if rewarded.any() else 0
    ach, unique = np.zeros(longest + 1, dtype=np.int64), np.zeros(longest + 1, dtype=np.int64)
    deltas = columns.deltas[rewarded[columns.deltas["episode"]]]
    deltas = deltas[(deltas["turn"] >= 1) & (deltas["turn"] <= longest)]  # strays are told as broken records
    np.add.at(ach, deltas["turn"], deltas["ach_delta"])
    np.add.at(unique, deltas["turn"], deltas["unique_delta"])
    for times in columns.events.values():
        _add_event(times, rewarded & ~recorded, ach, unique)
    reached, with_record = (_reached(lengths[chosen], longest) for chosen in (rewarded, rewarded & recorded))
    sums = zip(reached.tolist(), with_record.tolist(), ach.tolist(), unique.tolist(), strict=True)
    rows: Sequence[tuple[int, ...]] = list(sums)[1:]
    return tuple(TurnRow(turn, *row, row[2] / row[0], row[3] / row[0]) for turn, row in enumerate(rows, start=1))


def _add_event(times: EventTimes, chosen: Array, ach: Array, unique: Array) -> None:
    mask = chosen[times.episodes]
    episodes, turns = times.episodes[mask], times.turns[mask]
    np.add.at(ach, turns, 1)
    np.add.at(unique, turns[np.unique(episodes, return_index=True)[1]], 1)


def _reached(lengths: Array, longest: int) -> Array:
    """(longest + 1,) how many of the lengths are at least t, for t = 0, 1, …"""
    ended = np.bincount(lengths, minlength=longest + 1)
    return ended[::-1].cumsum()[::-1]
