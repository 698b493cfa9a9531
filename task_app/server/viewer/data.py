"""Lists for the pages, as JSON values: runs, groups, episodes, and what can be filtered by. SQL, no logic.

Everything is read from the view `episode_summaries`, whose rows hold their totals, and from `events` by
the index `events_by_name`. Superseded episodes are left out. Never reads a step or a message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from task_app.apps import find_apps
from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean
from task_app.server.viewer.queries import ChoicesQuery, EpisodesQuery, GroupsQuery, RunsQuery
from task_app.store import TraceStore

__all__ = ["choices", "episode_rows", "episodes", "groups", "runs"]

Json = dict[str, Any]

_RUNS = """
WITH told AS (
    SELECT run_id, count(*) AS episodes, sum(outcome) AS outcome_sum, count(outcome) AS rewarded,
           min(started_at) AS first
    FROM episode_summaries WHERE NOT superseded GROUP BY run_id
), grouped AS (
    SELECT run_id, count(*) AS groups
    FROM (SELECT DISTINCT run_id, training_update, group_id FROM episode_summaries WHERE NOT superseded)
    GROUP BY run_id
), named AS (
    SELECT run_id FROM runs UNION SELECT run_id FROM told
)
SELECT named.run_id AS run, coalesce(command, '') AS command, coalesce(episodes, 0) AS episodes,
       coalesce(groups, 0) AS groups, coalesce(rewarded, 0) AS rewarded, outcome_sum / rewarded AS outcome,
       coalesce(created_at, first) AS started_at
FROM named LEFT JOIN runs USING (run_id) LEFT JOIN told USING (run_id) LEFT JOIN grouped USING (run_id)
ORDER BY coalesce(created_at, first) DESC, named.run_id"""

_GROUPS = """
SELECT training_update AS "update", group_id AS "group", min(seed) AS seed, count(*) AS members,
       count(outcome) AS rewarded, avg(outcome) AS outcome, min(outcome) AS lowest, max(outcome) AS highest,
       avg(episode_return) AS "return", group_concat(DISTINCT policy) AS policies, min(started_at) AS started_at
FROM episode_summaries WHERE run_id = ? AND NOT superseded
GROUP BY training_update, group_id ORDER BY training_update, group_id LIMIT ? OFFSET ?"""

_GROUP_COUNT = """SELECT count(*) FROM (
    SELECT DISTINCT training_update, group_id FROM episode_summaries WHERE run_id = ? AND NOT superseded)"""

_EPISODE = """id, episode_id, run_id AS run, training_update AS "update", group_id AS "group", member, seed, app,
    policy, policy_version, model, status, cause, outcome, episode_return AS "return", decision_count AS decisions,
    max_decisions, step_count AS steps, parse_failures, unique_delta, started_at, finished_at"""

_COLUMNS = {"return": "episode_return", "decisions": "decision_count", "steps": "step_count"}
_ORDER = "run_id, training_update, group_id, member, id"

_EVENT_NAMES = """
WITH RECURSIVE found(name) AS (
    SELECT min(name) FROM events
    UNION ALL SELECT (SELECT min(name) FROM events WHERE name > found.name) FROM found WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL"""


def runs(store: TraceStore, query: RunsQuery) -> Json:
    """A page of runs, newest first; one without an episode yet, or without a record of its own, is there too."""
    rows = store.query(_RUNS)
    return {"runs": [dict(row) for row in rows[query.offset : query.offset + query.limit]], "total": len(rows)}


def groups(store: TraceStore, query: GroupsQuery) -> Json:
    """A page of the run's groups, with means over the members that carry a reward."""
    rows = store.query(_GROUPS, (query.run, query.limit, query.offset))
    return {"groups": [dict(row) for row in rows], "total": _count(store, _GROUP_COUNT, query.run)}


def episodes(store: TraceStore, query: EpisodesQuery) -> Json:
    """A page of the episodes that pass every filter, and how many do.

    Raises ConfigError for an achievement that neither the database nor an installed task app knows.
    """
    where, values = _where(store, query)
    order = _order(query)
    page = f"SELECT id FROM episode_summaries WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"  # sorts no whole rows
    rows = store.query(
        f"SELECT {_EPISODE} FROM episode_summaries WHERE id IN ({page}) ORDER BY {order}",
        (*values, query.limit, query.offset),
    )
    total = _count(store, f"SELECT count(*) FROM episode_summaries WHERE {where}", *values)
    return {"episodes": episode_rows(store, rows), "total": total}


def choices(store: TraceStore, query: ChoicesQuery) -> Json:
    """The values that filters can take, each with its number of episodes; and the names of events."""
    where, values = ("AND run_id = ?", (query.run,)) if query.run is not None else ("", ())
    counts: dict[str, dict[str, int]] = {"policy": defaultdict(int), "model": defaultdict(int)}
    counts["status"] = defaultdict(int)
    rows = store.query(
        f"""SELECT policy, model, status, count(*) AS count FROM episode_summaries
            WHERE NOT superseded {where} GROUP BY policy, model, status""",
        values,
    )
    for row in rows:
        for column, found in counts.items():
            if row[column]:
                found[row[column]] += row["count"]
    listed = {column: [[name, count] for name, count in sorted(found.items())] for column, found in counts.items()}
    return listed | {"achievement": _event_names(store), "episodes": sum(row["count"] for row in rows)}


def episode_rows(store: TraceStore, rows: list[Any]) -> list[Json]:
    """Rows of episodes as JSON, each with the turn at which each event happened first, as [[turn, name], …]."""
    firsts: dict[int, list[tuple[int, str]]] = defaultdict(list)
    marks = ", ".join("?" * len(rows))
    sql = f"SELECT episode, name, min(turn) AS turn FROM events WHERE episode IN ({marks}) GROUP BY episode, name"
    for row in store.query(sql, [row["id"] for row in rows]) if rows else ():
        firsts[row["episode"]].append((row["turn"], row["name"]))
    return [
        {key: row[key] for key in row.keys() if key != "id"} | {"unlocks": sorted(firsts[row["id"]])}  # noqa: SIM118
        for row in rows
    ]


def _where(store: TraceStore, query: EpisodesQuery) -> tuple[str, list[Any]]:
    given = {
        "run_id = ?": query.run,
        "group_id = ?": query.group,
        "training_update = ?": query.update,
        "policy = ?": query.policy,
        "model = ?": query.model,
        "status = ?": query.status,
        "episode_return >= ?": query.min_return,
        "episode_return <= ?": query.max_return,
    }
    clauses = {clause: value for clause, value in given.items() if value is not None}
    parts, values = ["NOT superseded", *clauses], list(clauses.values())
    for name in dict.fromkeys(query.achievement):
        _check_event(store, name)
        parts.append("id IN (SELECT episode FROM events WHERE name = ?)")  # reads the index alone, once
        values.append(name)
    return " AND ".join(parts), values


def _order(query: EpisodesQuery) -> str:
    sort = query.sort or ("newest" if query.run is None else "order")
    if sort == "order":
        return _ORDER
    if sort == "newest":
        return "id DESC"
    name, downwards = sort.removeprefix("-"), sort.startswith("-")
    return f"{_COLUMNS.get(name, name)} {'DESC' if downwards else 'ASC'} NULLS LAST, id"


def _event_names(store: TraceStore) -> list[str]:
    """The events that happened in the database, sorted."""
    return [row["name"] for row in store.query(_EVENT_NAMES)]


def _check_event(store: TraceStore, name: str) -> None:
    happened = store.query("SELECT 1 FROM events WHERE name = ? LIMIT 1", (name,))
    if happened or name in (known := _known_events(store)):
        return
    hint = did_you_mean(name, known)
    public = f"no such achievement{hint} (known: {', '.join(sorted(known))})"
    raise ConfigError(f"{name!r}: {public}", field="achievement", public=public)


def _known_events(store: TraceStore) -> set[str]:
    known = set(_event_names(store))
    for found in find_apps().values():
        known |= set(found.app.event_names)
    return known


def _count(store: TraceStore, sql: str, *values: Any) -> int:
    return int(store.query(sql, values)[0][0])
