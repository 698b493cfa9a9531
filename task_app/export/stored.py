"""Facts of stored episodes, read straight from the tables without building `Episode`s. Only reads.

Equal to `facts_of` of the episode that was written, text for text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable

from task_app.core.types import StepRewardFlags
from task_app.export.rows import DecisionFacts, EpisodeFacts
from task_app.store.traces import Rows

__all__ = ["StoredFacts"]

_MOST_TEXTS = 20_000
"""Message texts kept in memory; the system prompt and common answers are fetched once."""

_EPISODE = """SELECT episode_id, run_id, app, app_version, seed, policy, policy_version, prompt_hash,
    max_decisions, outcome, environment_return,
    step_rewards_mode, event_rewards_kind, indicator_lambda, beta, horizon, tool_set FROM episodes WHERE id = ?"""
_DECISIONS = """SELECT turn, prompt, answer, failure_reason IS NULL, model FROM decisions
    WHERE episode = ? ORDER BY turn"""
_EVENTS = "SELECT turn, name FROM events WHERE episode = ? ORDER BY step, ordinal"
_TEXTS = "SELECT id, message FROM messages WHERE id IN (SELECT value FROM json_each(?))"


class StoredFacts:
    """Reads the facts of one episode after another, through a snapshot of a database."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._texts: dict[int, str] = {}
        self._tools: dict[int, str] = {}

    def episode(self, key: int) -> EpisodeFacts:
        """The facts that the rows of the episode with this key of `episodes` share. It carries a reward."""
        ((*facts, mode, kind, indicator_lambda, beta, horizon, tool_set),) = self._rows(_EPISODE, (key,))
        flags = StepRewardFlags(mode, kind, indicator_lambda, beta, horizon)
        return EpisodeFacts(*facts, flags=flags, tools=self._tools_of(tool_set))

    def decisions(self, key: int) -> list[DecisionFacts]:
        """All decisions of the episode, in order. Raises ValueError when a message is missing."""
        events: dict[int, list[str]] = defaultdict(list)
        for turn, name in self._rows(_EVENTS, (key,)):
            events[turn].append(name)
        rows = [
            (turn, _ids(prompt), answer, bool(parsed), model)
            for turn, prompt, answer, parsed, model in self._rows(_DECISIONS, (key,))
        ]
        texts = self._texts_of({message for _, prompt, answer, _, _ in rows for message in (*prompt, answer)})
        return [
            DecisionFacts(
                turn, tuple([texts[message] for message in prompt]), texts[answer], parsed, model, events.get(turn, ())
            )
            for turn, prompt, answer, parsed, model in rows
        ]

    def _tools_of(self, tool_set: int) -> str:
        if tool_set not in self._tools:
            ((self._tools[tool_set],),) = self._rows("SELECT tools FROM tool_sets WHERE id = ?", (tool_set,))
        return self._tools[tool_set]

    def _texts_of(self, wanted: Iterable[int]) -> dict[int, str]:
        """A mapping that holds at least the wanted messages."""
        if len(self._texts) > _MOST_TEXTS:
            self._texts.clear()
        new = [message for message in wanted if message not in self._texts]
        self._texts.update(self._rows(_TEXTS, (json.dumps(new),)))
        missing = [message for message in new if message not in self._texts]
        if missing:
            raise ValueError(f"message {missing[0]} is missing")
        return self._texts


def _ids(prompt: str) -> list[int]:
    """`[1,5]` → the ids; a list of numbers needs no JSON reader."""
    return [int(number) for number in prompt[1:-1].split(",")] if prompt != "[]" else []
