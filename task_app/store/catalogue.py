"""What every table, view and column of a trace database means, in a sentence each. Text only.

`traces schema` prints it, datasette shows it, docs/trace_databases.md repeats it; a test compares it with the
real schema, so that a new column cannot go without its sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["CATALOGUE", "Column", "Relation"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's meaning; `unit` is empty for names, flags and plain counts."""

    meaning: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a view: its meaning, and its columns in order."""

    kind: str
    meaning: str
    columns: Mapping[str, Column]


_EPISODE: Final = Column("the episode, by `episodes.id`")
_TURN: Final = Column("number of the decision in its episode, 1 for the first")

_EPISODES: Final = {
    "id": Column("integer key other tables use as `episode`; it orders nothing"),
    "episode_id": Column("the episode's name, unique in the file and kept when files are merged"),
    "run_id": Column("the run it belongs to"),
    "group_id": Column("the group of episodes of one task and seed it belongs to"),
    "member": Column("its place in the group, 0 for the first"),
    "app": Column("name of the task app"),
    "app_version": Column("version of the task app"),
    "options": Column("options of the task, as JSON"),
    "seed": Column("seed of the world"),
    "policy": Column("name of the policy that played"),
    "policy_version": Column("version of that policy"),
    "prompt_hash": Column("hash of everything that shapes the prompts: system prompt, tools, options, renderer"),
    "step_rewards_mode": Column("off, decision_stepwise or env_sparse"),
    "event_rewards_kind": Column("unique or absolute: which delta of a decision is paid"),
    "indicator_lambda": Column("paid in addition where unique_delta > 0", "reward"),
    "beta": Column("paid in addition per decision that remains, where unique_delta > 0", "reward per decision"),
    "horizon": Column("which number of decisions beta counts from: configured or episode"),
    "max_decisions": Column("the turn limit it was played under", "decisions"),
    "status": Column("ok, truncated, infra_error or aborted; the last two carry no reward"),
    "cause": Column("why it ended"),
    "terminated": Column("1 when the world ended it"),
    "truncated": Column("1 when a limit ended it"),
    "outcome": Column("the one number it earned, from the final state; NULL without a reward"),
    "training_update": Column("the training update it was played for, NULL outside training"),
    "superseded": Column("1 when a resumed training run replaced it; then reports leave it out"),
    "tool_set": Column("the tools that were offered, by `tool_sets.id`"),
    "started_at": Column("when it began", "seconds since 1970"),
    "finished_at": Column("when it ended", "seconds since 1970"),
    "details": Column("what else a request or the environment said, as JSON"),
    "model": Column("model of the first completion, empty for policies without one"),
    "decision_count": Column("its decisions", "decisions"),
    "step_count": Column("its environment steps", "steps"),
    "parse_failures": Column("decisions whose answer could not be parsed", "decisions"),
    "environment_return": Column("sum of the steps' own rewards", "reward"),
    "ach_delta": Column("sum over decisions of the events that happened, repeats of earlier decisions included"),
    "unique_delta": Column("different events that happened"),
    "unique_decisions": Column("decisions with an event never seen before", "decisions"),
    "unique_index_sum": Column("sum of the 0-based indexes of those decisions"),
    "prompt_tokens": Column("tokens of all prompts, NULL when no completion says", "tokens"),
    "completion_tokens": Column("tokens of all answers, NULL when no completion says", "tokens"),
    "latency_s": Column("time waited for the policy", "seconds"),
}

CATALOGUE: Final[Mapping[str, Relation]] = {
    "runs": Relation(
        "table",
        "One command's episodes, and the config it ran with.",
        {
            "run_id": Column("the run's name"),
            "command": Column("the command that made it"),
            "config": Column("the resolved config, as JSON; of a resumed run, the first"),
            "created_at": Column("when it was recorded", "seconds since 1970"),
        },
    ),
    "episodes": Relation("table", "A row per episode: what was played, how it ended, and its totals.", _EPISODES),
    "decisions": Relation(
        "table",
        "A row per decision: one policy call, what it was asked and what it said.",
        {
            "episode": _EPISODE,
            "turn": _TURN,
            "prompt": Column("the messages it was asked with, as a JSON list of `messages.id`"),
            "answer": Column("the assistant message, by `messages.id`"),
            "finish_reason": Column("why the model stopped: stop, tool_calls or length"),
            "failure_reason": Column("code of the parse failure, NULL when the answer was legal"),
            "failure_detail": Column("the parse failure in words"),
            "completion_id": Column("id of the completion at its endpoint"),
            "model": Column("the model that answered, empty for policies without one"),
            "prompt_tokens": Column("tokens of the prompt, NULL when not said", "tokens"),
            "completion_tokens": Column("tokens of the answer, NULL when not said", "tokens"),
            "latency_s": Column("time waited for the answer", "seconds"),
            "env_s": Column("time the environment took for the steps", "seconds"),
            "started_at": Column("when it began", "seconds since 1970"),
        },
    ),
    "decision_rewards": Relation(
        "table",
        "The event-level reward record of a decision; only where the mode is decision_stepwise.",
        {
            "episode": _EPISODE,
            "turn": _TURN,
            "ach_delta": Column("how many events happened in the decision"),
            "unique_delta": Column("how many of them for the first time in the episode"),
            "all_events": Column("names of the events, as a sorted JSON list"),
            "unique_events": Column("names of the new ones, as a sorted JSON list"),
        },
    ),
    "steps": Relation(
        "table",
        "A row per environment step.",
        {
            "episode": _EPISODE,
            "step": Column("index of the step in its episode, 0 for the first"),
            "turn": Column("the decision that caused it"),
            "action": Column("name of the action"),
            "reward": Column("the step's own reward, never a running total", "reward"),
            "terminated": Column("1 when the world ended the episode here"),
            "truncated": Column("1 when a limit of the world ended the episode here"),
        },
    ),
    "events": Relation(
        "table",
        "A row per named thing that happened, such as an achievement.",
        {
            "episode": _EPISODE,
            "step": Column("the step it happened in"),
            "ordinal": Column("its place among the events of the step, 0 for the first"),
            "turn": Column("the decision that caused it"),
            "name": Column("its name"),
        },
    ),
    "decision_tokens": Relation(
        "table",
        "The tokens behind a decision, as sampled; only for policies that have them.",
        {
            "episode": _EPISODE,
            "turn": _TURN,
            "prefix": Column("the first tokens of the prompt, by `token_prefixes.id`"),
            "prompt_ids": Column("the other tokens of the prompt", "int32, little-endian"),
            "completion_ids": Column("tokens of the answer, forced ones included", "int32, little-endian"),
            "logprobs": Column("log-probability of each token of the answer, 0 if forced", "float32, little-endian"),
            "mask": Column("1 where the policy had a choice, 0 where the grammar forced the token", "uint8"),
            "temperature": Column("temperature it was sampled at"),
            "grammar_hash": Column("hash of the grammar in force"),
            "renderer_hash": Column("hash of how messages become tokens"),
        },
    ),
    "advantages": Relation(
        "table",
        "What training credited a decision with; written by training alone.",
        {
            "run_id": Column("the training run"),
            "training_update": Column("the update, 0 for the first"),
            "episode": _EPISODE,
            "turn": _TURN,
            "advantage": Column("the credit"),
        },
    ),
    "messages": Relation(
        "table",
        "Chat messages, each different one once.",
        {
            "id": Column("key by which decisions refer to it"),
            "hash": Column("first 32 hexadecimal digits of the SHA-256 of `message`"),
            "role": Column("system, user, assistant or tool"),
            "message": Column("the whole message in the OpenAI form, as canonical JSON"),
        },
    ),
    "tool_sets": Relation(
        "table",
        "Lists of tools, each different one once.",
        {
            "id": Column("key by which episodes refer to it"),
            "hash": Column("first 32 hexadecimal digits of the SHA-256 of `tools`"),
            "tools": Column("the tools in the OpenAI form, as JSON with the keys in the order the policy was shown"),
        },
    ),
    "token_prefixes": Relation(
        "table",
        "Beginnings of prompts that many decisions share, as tokens.",
        {
            "id": Column("key by which decisions refer to it"),
            "hash": Column("first 32 hexadecimal digits of the SHA-256 of `ids`"),
            "ids": Column("the tokens", "int32, little-endian"),
        },
    ),
    "episode_summaries": Relation(
        "view",
        "Every column of `episodes`, and the return under the flags the episode was played with.",
        {**_EPISODES, "episode_return": Column("sum of the reward vector; NULL without a reward", "reward")},
    ),
    "event_rewards": Relation(
        "view",
        "Rewards by name: unique_achievement_delta and achievement_delta of each decision, sparse of each step, and "
        "1.0 under an event's own name where it happened for the first time.",
        {
            "episode": _EPISODE,
            "turn": _TURN,
            "step": Column("the step, NULL for rewards of a whole decision"),
            "name": Column("the reward's name"),
            "value": Column("the reward", "reward"),
        },
    ),
    "_sqlite_migrations": Relation(
        "table",
        "Which migrations of the schema were applied.",
        {
            "id": Column("their order"),
            "migration_set": Column("whose migrations: task_app"),
            "name": Column("the migration"),
            "applied_at": Column("when", "UTC, as text"),
        },
    ),
}
"""By name, tables before views."""
