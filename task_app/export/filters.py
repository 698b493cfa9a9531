"""Which episodes are exported: each filter one SQL condition, applied and counted in a fixed order. Only reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from task_app.apps import get_app
from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean
from task_app.store.traces import Rows

__all__ = ["EVENT_REWARDS", "EpisodeFilters", "Selection", "select_episodes"]

EVENT_REWARDS = {
    "unique_achievement_delta": "unique_delta",
    "achievement_delta": "ach_delta",
    "sparse": "environment_return",
}
"""Event rewards that every task app has, and the column of `episodes` with their sum over the episode."""


@dataclass(frozen=True, slots=True)
class EpisodeFilters:
    """What an episode must be to be exported; all that is given must hold. Empty and None: not given.

    model, provider, policy, run_id   the episode has one of these
    require_achievement   every one of these events happened
    exclude_achievement   not counted for `min_unique` and `max_unique`; removes nothing by itself
    event_reward          `NAME` (its sum over the episode is above 0) or `NAME:MIN` (at least MIN), every one
    min_unique, max_unique   bounds of the number of different events, both allowed
    min_outcome_reward, max_outcome_reward   bounds of the outcome, both allowed
    limit                 at most so many episodes, the first in the store's order of those that pass
    """

    model: tuple[str, ...] = ()
    provider: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    run_id: tuple[str, ...] = ()
    require_achievement: tuple[str, ...] = ()
    exclude_achievement: tuple[str, ...] = ()
    event_reward: tuple[str, ...] = ()
    min_unique: int | None = None
    max_unique: int | None = None
    min_outcome_reward: float | None = None
    max_outcome_reward: float | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """`keys` of `episodes`, in the store's order; `removed` says what each condition took, in order.

    total = len(keys) + Σ removed.
    """

    keys: tuple[int, ...]
    total: int
    removed: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Condition:
    label: str
    sql: str
    parameters: tuple[Any, ...] = ()


_ALWAYS = (
    _Condition("superseded by a resumed run", "NOT superseded"),
    _Condition("without a reward (infra_error, aborted)", "outcome IS NOT NULL"),
)
_HAPPENED = "EXISTS (SELECT 1 FROM events WHERE name = ? AND episode = episodes.id)"
_ORDER = "run_id, training_update, group_id, member, episode_id"


def select_episodes(rows: Rows, filters: EpisodeFilters) -> Selection:
    """The episodes that pass, read through `rows`, a snapshot of a database.

    Raises ConfigError for unknown event names and for limits that cannot be met.
    """
    _check_limits(filters)
    conditions = [*_ALWAYS, *_conditions(rows, filters)]
    parameters = [value for condition in conditions for value in condition.parameters]
    stages = " ".join(f"WHEN NOT coalesce(({c.sql}), 0) THEN {index}" for index, c in enumerate(conditions))
    counts: dict[int, int] = dict(
        rows(f"SELECT CASE {stages} ELSE -1 END AS stage, count(*) FROM episodes GROUP BY stage", parameters)
    )
    where = " AND ".join(f"({condition.sql})" for condition in conditions)
    limit = -1 if filters.limit is None else filters.limit
    sql = f"SELECT id FROM episodes WHERE {where} ORDER BY {_ORDER} LIMIT {limit:d}"
    keys = tuple(key for (key,) in rows(sql, parameters))
    removed = [(condition.label, counts.get(index, 0)) for index, condition in enumerate(conditions)]
    if filters.limit is not None:
        removed.append((f"--limit {filters.limit}", counts.get(-1, 0) - len(keys)))
    return Selection(keys, sum(counts.values()), tuple(removed))


def _conditions(rows: Rows, filters: EpisodeFilters) -> Iterator[_Condition]:
    yield from _one_of(rows, "model", "model", filters.model)
    yield from _one_of(rows, "provider", "json_extract(details, '$.provider')", filters.provider)
    yield from _one_of(rows, "policy", "policy", filters.policy)
    yield from _one_of(rows, "run-id", "run_id", filters.run_id)
    known = _Events(rows)
    for name in filters.require_achievement:
        known.check(name, "require-achievement")
        yield _Condition(f"--require-achievement {name}", _HAPPENED, (name,))
    for text in filters.event_reward:
        yield _event_reward(text, known)
    yield from _unique_bounds(filters, known)
    for flag, sign, bound in (
        ("min-outcome-reward", ">=", filters.min_outcome_reward),
        ("max-outcome-reward", "<=", filters.max_outcome_reward),
    ):
        if bound is not None:
            yield _Condition(f"--{flag} {bound:g}", f"outcome {sign} ?", (bound,))


def _one_of(rows: Rows, flag: str, column: str, values: Sequence[str]) -> Iterator[_Condition]:
    """One condition for all values; those that no episode has are named in its label."""
    if not values:
        return
    known = {value for (value,) in rows(f"SELECT DISTINCT {column} FROM episodes")}
    parts = []
    for value in values:
        hint = "" if value in known else f" (no episode has it{did_you_mean(value, (k for k in known if k))})"
        parts.append(f"--{flag} {value}{hint}")
    yield _Condition(" ".join(parts), f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def _unique_bounds(filters: EpisodeFilters, known: _Events) -> Iterator[_Condition]:
    excluded = tuple(dict.fromkeys(filters.exclude_achievement))
    for name in excluded:
        known.check(name, "exclude-achievement")
    count = " - ".join(["unique_delta", *[_HAPPENED] * len(excluded)])
    for flag, sign, bound in (("min-unique", ">=", filters.min_unique), ("max-unique", "<=", filters.max_unique)):
        if bound is not None:
            without = f" without {', '.join(excluded)}" if excluded else ""
            yield _Condition(f"--{flag} {bound}{without}", f"{count} {sign} ?", (*excluded, bound))


def _event_reward(text: str, known: _Events) -> _Condition:
    name, least = text, None
    if not known.has(text) and ":" in text:
        name, _, number = text.rpartition(":")
        least = _number(number, text)
    known.check(name, "event-reward", also=EVENT_REWARDS)
    label = f"--event-reward {text}"
    value = EVENT_REWARDS.get(name, f"1.0 * {_HAPPENED}")
    parameters: tuple[Any, ...] = () if name in EVENT_REWARDS else (name,)
    if least is None:
        return _Condition(label, f"{value} > 0", parameters)
    return _Condition(label, f"{value} >= ?", (*parameters, least))


def _number(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(
            f"--event-reward {text!r}: after the colon stands the least sum, a finite number, got {number!r}",
            field="event_reward",
        )
    return value


class _Events:
    """The event names that exist: those of the database's task apps and those stored; looked up when first needed."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._names: set[str] = set()

    def has(self, name: str) -> bool:
        return name in EVENT_REWARDS or name in self._known()

    def check(self, name: str, flag: str, *, also: Iterable[str] = ()) -> None:
        """Raise ConfigError unless `name` is an event or one of `also`."""
        known = self._known() | set(also)
        if name not in known:
            hint = did_you_mean(name, sorted(known)) or f" (known: {', '.join(sorted(known))})"
            raise ConfigError(
                f"--{flag} {name!r}: no task app of this database has this event{hint}", field=flag.replace("-", "_")
            )

    def _known(self) -> set[str]:
        if not self._names:
            self._names = {name for (name,) in self._rows("SELECT DISTINCT name FROM events")}
            for (app,) in self._rows("SELECT DISTINCT app FROM episodes"):
                try:
                    self._names |= set(get_app(app).event_names)
                except ConfigError:  # an app that is not installed here: what is stored of it has to do
                    continue
        return self._names


def _check_limits(filters: EpisodeFilters) -> None:
    """Raise ConfigError for bounds that are no numbers, out of range, or leave nothing between them."""
    for name in ("min_outcome_reward", "max_outcome_reward"):
        bound = getattr(filters, name)
        if bound is not None and not math.isfinite(bound):
            raise ConfigError(f"--{name.replace('_', '-')} {bound}: must be a finite number", field=name)
    for name, least in (("min_unique", 0), ("max_unique", 0), ("limit", 1)):
        bound = getattr(filters, name)
        if bound is not None and bound < least:
            raise ConfigError(f"--{name.replace('_', '-')} {bound}: must be at least {least}", field=name)
    for kind in ("unique", "outcome_reward"):
        low, high = getattr(filters, f"min_{kind}"), getattr(filters, f"max_{kind}")
        if low is not None and high is not None and low > high:
            flag = kind.replace("_", "-")
            raise ConfigError(
                f"--min-{flag} {low:g} is above --max-{flag} {high:g}; no episode can be both", field=f"min_{kind}"
            )
