"""Tables of a trace database, as migrations in SQL. A released migration is never edited; a new one is added.
`migrations.py` applies them.

One column per number, so that every aggregate is plain SQL. Long texts are stored once: `messages` by
content hash, `tool_sets` alike, `token_prefixes` for the prompt tokens a whole run shares.
Token ids are int32, log-probabilities float32, masks uint8, all little-endian.

Views are the names others query by: `episode_summaries` (an episode's row with its return under the flags
it was played with) and `event_rewards` (`unique_achievement_delta`, `achievement_delta`, `sparse`, and one
marker of 1.0 per unlock, under the event's name).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["APPLICATION_ID", "STATEMENTS"]

APPLICATION_ID: Final = 0x43545331
"""SQLite's application_id of our files ("CTS1"), by which a foreign database is told."""

_FIRST = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, command TEXT NOT NULL, config TEXT NOT NULL, created_at REAL NOT NULL
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, message TEXT NOT NULL
    )""",
    "CREATE TABLE tool_sets (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, tools TEXT NOT NULL)",
    "CREATE TABLE token_prefixes (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, ids BLOB NOT NULL)",
    """CREATE TABLE episodes (
        id INTEGER PRIMARY KEY,
        episode_id TEXT NOT NULL UNIQUE,
        run_id TEXT NOT NULL,
        group_id TEXT NOT NULL,
        member INTEGER NOT NULL,
        app TEXT NOT NULL,
        app_version TEXT NOT NULL,
        options TEXT NOT NULL,
        seed INTEGER NOT NULL,
        policy TEXT NOT NULL,
        policy_version TEXT NOT NULL,
        prompt_hash TEXT NOT NULL,
        step_rewards_mode TEXT NOT NULL,
        event_rewards_kind TEXT NOT NULL,
        indicator_lambda REAL NOT NULL,
        beta REAL NOT NULL,
        horizon TEXT NOT NULL,
        max_decisions INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('ok', 'truncated', 'infra_error', 'aborted')),
        cause TEXT NOT NULL,
        terminated INTEGER NOT NULL,
        truncated INTEGER NOT NULL,
        outcome REAL,
        training_update INTEGER,
        superseded INTEGER NOT NULL DEFAULT 0,
        tool_set INTEGER NOT NULL REFERENCES tool_sets(id),
        started_at REAL NOT NULL,
        finished_at REAL NOT NULL,
        details TEXT NOT NULL
    )""",
    "CREATE INDEX episodes_by_run ON episodes (run_id, training_update, group_id, member)",
    """CREATE TABLE decisions (
        episode INTEGER NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        answer INTEGER NOT NULL REFERENCES messages(id),
        finish_reason TEXT NOT NULL,
        failure_reason TEXT,
        failure_detail TEXT,
        completion_id TEXT NOT NULL,
        model TEXT NOT NULL,
        prompt_tokens INTEGER,
        completion_tokens INTEGER,
        latency_s REAL NOT NULL,
        env_s REAL NOT NULL,
        started_at REAL NOT NULL,
        PRIMARY KEY (episode, turn)
    ) WITHOUT ROWID""",
    """CREATE TABLE decision_rewards (
        episode INTEGER NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        ach_delta INTEGER NOT NULL,
        unique_delta INTEGER NOT NULL,
        all_events TEXT NOT NULL,
        unique_events TEXT NOT NULL,
        PRIMARY KEY (episode, turn)
    ) WITHOUT ROWID""",
    """CREATE TABLE steps (
        episode INTEGER NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
        step INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        action TEXT NOT NULL,
        reward REAL NOT NULL,
        terminated INTEGER NOT NULL,
        truncated INTEGER NOT NULL,
        PRIMARY KEY (episode, step)
    ) WITHOUT ROWID""",
    """CREATE TABLE events (
        episode INTEGER NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
        step INTEGER NOT NULL,
        ordinal INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        name TEXT NOT NULL,
        PRIMARY KEY (episode, step, ordinal)
    ) WITHOUT ROWID""",
    """CREATE TABLE decision_tokens (
        episode INTEGER NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        prefix INTEGER NOT NULL REFERENCES token_prefixes(id),
        prompt_ids BLOB NOT NULL,
        completion_ids BLOB NOT NULL,
        logprobs BLOB NOT NULL,
        mask BLOB NOT NULL,
        temperature REAL NOT NULL,
        grammar_hash TEXT NOT NULL,
        renderer_hash TEXT NOT NULL,
        PRIMARY KEY (episode, turn)
    ) WITHOUT ROWID""",
    """CREATE TABLE advantages (
        run_id TEXT NOT NULL,
        training_update INTEGER NOT NULL,
        episode INTEGER NOT NULL REFERENCES episodes(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        advantage REAL NOT NULL,
        PRIMARY KEY (run_id, training_update, episode, turn)
    ) WITHOUT ROWID""",
)

_TOTALS = (
    "model TEXT NOT NULL DEFAULT ''",
    "decision_count INTEGER NOT NULL DEFAULT 0",
    "step_count INTEGER NOT NULL DEFAULT 0",
    "parse_failures INTEGER NOT NULL DEFAULT 0",
    "environment_return REAL NOT NULL DEFAULT 0",
    "ach_delta INTEGER NOT NULL DEFAULT 0",
    "unique_delta INTEGER NOT NULL DEFAULT 0",
    "unique_decisions INTEGER NOT NULL DEFAULT 0",
    "unique_index_sum INTEGER NOT NULL DEFAULT 0",
    "prompt_tokens INTEGER",
    "completion_tokens INTEGER",
    "latency_s REAL NOT NULL DEFAULT 0",
)

_FILL_TOTALS = """
WITH d AS (
    SELECT episode, count(*) AS decisions, count(failure_reason) AS failures, sum(prompt_tokens) AS prompt,
           sum(completion_tokens) AS completion, sum(latency_s) AS latency
    FROM decisions GROUP BY episode
), s AS (
    SELECT episode, count(*) AS steps, sum(reward) AS reward FROM steps GROUP BY episode
), a AS (
    SELECT episode, count(DISTINCT turn || ' ' || name) AS ach FROM events GROUP BY episode
), first AS (
    SELECT episode, name, min(turn) AS turn FROM events GROUP BY episode, name
), u AS (
    SELECT episode, sum(names) AS names, count(*) AS flips, sum(turn - 1) AS indexes
    FROM (SELECT episode, turn, count(*) AS names FROM first GROUP BY episode, turn) GROUP BY episode
)
UPDATE episodes SET
    model = coalesce((SELECT model FROM decisions WHERE episode = episodes.id AND turn = 1), ''),
    decision_count = coalesce((SELECT decisions FROM d WHERE episode = episodes.id), 0),
    step_count = coalesce((SELECT steps FROM s WHERE episode = episodes.id), 0),
    parse_failures = coalesce((SELECT failures FROM d WHERE episode = episodes.id), 0),
    environment_return = coalesce((SELECT reward FROM s WHERE episode = episodes.id), 0),
    ach_delta = coalesce((SELECT ach FROM a WHERE episode = episodes.id), 0),
    unique_delta = coalesce((SELECT names FROM u WHERE episode = episodes.id), 0),
    unique_decisions = coalesce((SELECT flips FROM u WHERE episode = episodes.id), 0),
    unique_index_sum = coalesce((SELECT indexes FROM u WHERE episode = episodes.id), 0),
    prompt_tokens = (SELECT prompt FROM d WHERE episode = episodes.id),
    completion_tokens = (SELECT completion FROM d WHERE episode = episodes.id),
    latency_s = coalesce((SELECT latency FROM d WHERE episode = episodes.id), 0)
"""

_VIEWS = (
    """CREATE VIEW episode_summaries AS
    SELECT *, CASE
        WHEN outcome IS NULL THEN NULL
        WHEN decision_count = 0 THEN 0.0
        WHEN step_rewards_mode = 'off' THEN outcome
        WHEN step_rewards_mode = 'env_sparse' THEN environment_return
        ELSE (CASE event_rewards_kind WHEN 'unique' THEN unique_delta ELSE ach_delta END)
             + unique_decisions * indicator_lambda
             + beta * (unique_decisions * (CASE horizon WHEN 'configured' THEN max_decisions ELSE decision_count END)
                       - unique_index_sum)
        END AS episode_return
    FROM episodes""",
    """CREATE VIEW event_rewards AS
    SELECT episode, turn, NULL AS step, 'unique_achievement_delta' AS name, 1.0 * unique_delta AS value
    FROM decision_rewards
    UNION ALL
    SELECT episode, turn, NULL, 'achievement_delta', 1.0 * ach_delta FROM decision_rewards
    UNION ALL
    SELECT episode, turn, step, 'sparse', reward FROM steps
    UNION ALL
    SELECT episode, turn, min(step), name, 1.0 FROM events GROUP BY episode, name""",
)

_INDEXES = (
    "CREATE INDEX events_by_name ON events (name, episode, turn)",
    """CREATE INDEX episodes_listed ON episodes
       (run_id, training_update, group_id, member, outcome, policy, model, status, started_at)
       WHERE NOT superseded""",
)

STATEMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "0001_first": (*_FIRST, f"PRAGMA application_id = {APPLICATION_ID}"),
    # Totals beside each episode, indexes for finding an event's episodes and for listing many, the views.
    "0002_totals": (
        *(f"ALTER TABLE episodes ADD COLUMN {column}" for column in _TOTALS),
        _FILL_TOTALS,
        *_INDEXES,
        *_VIEWS,
    ),
}
"""Every migration by name, in the order they are applied."""
