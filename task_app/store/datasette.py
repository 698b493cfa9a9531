"""Metadata for looking at a trace database with datasette: what is what, and queries worth asking. Starts nothing.

Queries leave superseded episodes out, and episodes without a reward out of every mean and share.
"""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from task_app.store.catalogue import CATALOGUE, Column
from task_app.store.database import open_database
from task_app.store.files import write_whole

__all__ = ["QUERIES", "CannedQuery", "WrittenMetadata", "metadata_for", "write_metadata"]

SQL_TIME_LIMIT_MS: Final = 30_000
"""Datasette gives up a query after a second unless told otherwise; a large database needs longer."""


class CannedQuery(NamedTuple):
    """A named query; `:episode_id` in it is asked for on the page."""

    title: str
    description: str
    sql: str


QUERIES: Final[dict[str, CannedQuery]] = {
    "achievements_by_policy": CannedQuery(
        "Achievements by policy",
        "In how many of a policy's rewarded episodes each achievement happened, and how often.",
        """WITH played AS (
    SELECT id, policy, model FROM episodes WHERE NOT superseded AND outcome IS NOT NULL
), sizes AS (
    SELECT policy, model, count(*) AS of_episodes FROM played GROUP BY policy, model
)
SELECT policy, model, name AS achievement, count(DISTINCT episode) AS episodes, of_episodes,
       round(1.0 * count(DISTINCT episode) / of_episodes, 3) AS share, count(*) AS times
FROM played JOIN events ON events.episode = played.id JOIN sizes USING (policy, model)
GROUP BY policy, model, name ORDER BY policy, model, episodes DESC, name""",
    ),
    "returns_by_run": CannedQuery(
        "Returns by run",
        "Episodes of each run and policy, those with a reward, and their returns and outcomes.",
        """SELECT run_id, policy, model, count(*) AS episodes, count(outcome) AS rewarded,
       avg(episode_return) AS mean_return, min(episode_return) AS lowest, max(episode_return) AS highest,
       avg(outcome) AS mean_outcome
FROM episode_summaries WHERE NOT superseded
GROUP BY run_id, policy, model ORDER BY min(started_at) DESC""",
    ),
    "best_episodes": CannedQuery(
        "Best episodes",
        "The twenty episodes with the highest outcome.",
        """SELECT episode_id, run_id, policy, model, seed, outcome, episode_return, decision_count, status
FROM episode_summaries WHERE NOT superseded AND outcome IS NOT NULL
ORDER BY outcome DESC, episode_return DESC, episode_id LIMIT 20""",
    ),
    "decision_rewards_by_turn": CannedQuery(
        "Decision rewards by turn",
        "Sums over all stored decision records of each turn.",
        """SELECT turn, count(*) AS decisions, sum(r.ach_delta) AS ach_delta, sum(r.unique_delta) AS unique_delta
FROM decision_rewards AS r JOIN episodes ON episodes.id = r.episode
WHERE NOT superseded GROUP BY turn ORDER BY turn""",
    ),
    "parse_failures": CannedQuery(
        "Answers that could not be parsed",
        "How many of a policy's decisions, and the most frequent reason.",
        """WITH reasons AS (
    SELECT policy, e.model AS model, failure_reason AS reason, count(*) AS decisions
    FROM decisions AS d JOIN episodes AS e ON e.id = d.episode
    WHERE NOT superseded GROUP BY policy, e.model, failure_reason
)
SELECT policy, model, sum(decisions) AS decisions, sum(decisions) FILTER (WHERE reason IS NOT NULL) AS failures,
       (SELECT reason FROM reasons AS r WHERE r.policy = reasons.policy AND r.model = reasons.model
        AND reason IS NOT NULL ORDER BY r.decisions DESC, reason LIMIT 1) AS most_frequent
FROM reasons GROUP BY policy, model HAVING failures > 0 ORDER BY failures DESC, policy, model""",
    ),
    "first_unlock_turn": CannedQuery(
        "First unlock turn",
        "At which decision an achievement happens first, over the rewarded episodes where it does.",
        """WITH first AS (
    SELECT policy, model, name, episode, min(turn) AS turn
    FROM events JOIN episodes ON episodes.id = events.episode
    WHERE NOT superseded AND outcome IS NOT NULL GROUP BY episode, name
)
SELECT policy, model, name AS achievement, count(*) AS episodes, avg(turn) AS mean_turn, min(turn) AS earliest,
       max(turn) AS latest
FROM first GROUP BY policy, model, name ORDER BY policy, model, mean_turn, name""",
    ),
    "infra_errors": CannedQuery(
        "Episodes without a reward",
        "Infrastructure errors and aborted episodes by cause, most frequent first.",
        """SELECT status, cause, run_id, policy, model, count(*) AS episodes,
       datetime(max(finished_at), 'unixepoch') AS latest_utc
FROM episodes WHERE NOT superseded AND outcome IS NULL
GROUP BY status, cause, run_id, policy, model ORDER BY episodes DESC, cause, run_id""",
    ),
    "event_rewards_of_episode": CannedQuery(
        "Event rewards of an episode",
        "Every reward other than zero, by name, in order of the decisions.",
        """SELECT turn, step, name, value FROM event_rewards
WHERE episode = (SELECT id FROM episodes WHERE episode_id = :episode_id) AND value != 0
ORDER BY turn, step, name""",
    ),
    "decisions_of_episode": CannedQuery(
        "Decisions of an episode",
        "What was said, what ran, and what it earned.",
        """SELECT turn, message AS said, failure_reason,
       (SELECT group_concat(action, ' ') FROM steps AS s WHERE s.episode = d.episode AND s.turn = d.turn) AS executed,
       ach_delta, unique_delta, unique_events
FROM decisions AS d JOIN messages ON messages.id = answer LEFT JOIN decision_rewards USING (episode, turn)
WHERE episode = (SELECT id FROM episodes WHERE episode_id = :episode_id) ORDER BY turn""",
    ),
}


class WrittenMetadata(NamedTuple):
    """Where the metadata is, the command that shows the database with it, and whether datasette is installed."""

    path: Path
    command: str
    installed: bool


def write_metadata(path: Path, output: Path | None = None) -> WrittenMetadata:
    """Write the metadata of one database, to `<name>.metadata.json` beside it by default.

    Raises StoreError for a file that is no trace database, ConfigError when `output` cannot be written.
    """
    open_database(path, create=False, read_only=True).close()
    output = output or path.with_suffix(".metadata.json")
    write_whole(output, json.dumps(metadata_for(path), indent=2) + "\n")
    words = [
        "datasette",
        str(path),
        "--metadata",
        str(output),
        "--setting",
        "sql_time_limit_ms",
        str(SQL_TIME_LIMIT_MS),
    ]
    return WrittenMetadata(output, shlex.join(words), find_spec("datasette") is not None)


def metadata_for(path: Path) -> dict[str, Any]:
    """Datasette's metadata of the database in `path`: it is known there by the file's stem."""
    return {
        "title": "Trace database",
        "description": "Episodes of a task app: decisions, steps, events and the rewards of each decision.",
        "databases": {
            path.stem: {
                "tables": {name: _table(name) for name in CATALOGUE},
                "queries": {name: query._asdict() for name, query in QUERIES.items()},
            }
        },
    }


def _table(name: str) -> dict[str, Any]:
    relation = CATALOGUE[name]
    table: dict[str, Any] = {
        "description": relation.meaning,
        "columns": {column: _said(about) for column, about in relation.columns.items()},
    }
    seconds = {column: "s" for column, about in relation.columns.items() if about.unit == "seconds"}
    if seconds:  # the only unit here that datasette's own unit system knows
        table["units"] = seconds
    if name.startswith("_"):
        table["hidden"] = True
    if name == "episodes":
        table |= {"label_column": "episode_id", "sort_desc": "finished_at"}
    return table


def _said(column: Column) -> str:
    return f"{column.meaning} ({column.unit})" if column.unit else column.meaning
