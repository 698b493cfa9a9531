"""One decision as one SFT row: the only definition of a row, for databases and for episodes just played.

    {"messages": [system, user, …, assistant], "tools": [tool, …], "metadata": {…}}

Rows are put together from JSON texts as the store keeps them. Reads no file and no database. What a model
said is never repaired: a decision whose answer cannot be imitated is skipped and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum
from typing import Any, Literal

from task_app.collect.vectors import stepwise_rewards
from task_app.core.rewards import rewards_from_events
from task_app.core.types import DecisionRewards, Episode, StepRewardFlags
from task_app.store.writer import canonical_json, json_as_given

__all__ = [
    "DUPLICATE",
    "NOT_REWARDED",
    "NO_ARGUMENTS",
    "SCHEMA",
    "UNPARSED",
    "DecisionFacts",
    "EpisodeFacts",
    "RowForm",
    "RowMaker",
    "facts_of",
]

RowForm = Literal["openai", "trl"]
"""openai: arguments are a string, everything is as it was said. trl: arguments are an object, contents strings."""

SCHEMA = 1
"""Version of the row form, `metadata.schema`; it rises when a key changes its meaning."""

UNPARSED = "the answer did not parse"
NO_ARGUMENTS = "the arguments of a call are no JSON object"
NOT_REWARDED = "the decision earned no event reward"
DUPLICATE = "the same messages as an earlier row"

_CACHED_TEXTS = 8192
_CALLS = '"tool_calls":'
"""What JSON text of a message holds if it has tool calls; inside a string the quotes would be escaped."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What the rows of one episode share. `tools` is a JSON list as stored; the rest as in `Episode`."""

    episode_id: str
    run_id: str
    app: str
    app_version: str
    seed: int
    policy: str
    policy_version: str
    prompt_hash: str
    max_decisions: int
    outcome: float
    environment_return: float
    flags: StepRewardFlags
    tools: str


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """One decision. `prompt` and `answer` are messages as stored JSON; `events` may repeat names."""

    turn: int
    prompt: tuple[str, ...]
    answer: str
    parsed: bool
    model: str
    events: Sequence[str]


def facts_of(episode: Episode) -> tuple[EpisodeFacts, list[DecisionFacts]]:
    """The facts of an episode that carries a reward, the same as a database gives after it was stored.

    Raises ValueError for an episode without a reward.
    """
    if episode.outcome is None:
        raise ValueError(f"episode {episode.episode_id} has status {episode.status} and carries no reward")
    shared = EpisodeFacts(
        episode_id=episode.episode_id,
        run_id=episode.run_id,
        app=episode.task.app,
        app_version=episode.task.version,
        seed=episode.task.seed,
        policy=episode.policy,
        policy_version=episode.policy_version,
        prompt_hash=episode.prompt_hash,
        flags=episode.flags,
        max_decisions=episode.max_decisions,
        outcome=float(episode.outcome),
        environment_return=float(episode.environment_return),
        tools=json_as_given(list(episode.tools)),
    )
    decisions = [
        DecisionFacts(
            turn=decision.turn,
            prompt=tuple(canonical_json(message) for message in decision.messages),
            answer=canonical_json(decision.completion.message.to_wire()),
            parsed=decision.failure is None,
            model=decision.completion.model,
            events=decision.events,
        )
        for decision in episode.decisions
    ]
    return shared, decisions


class RowMaker:
    """Makes rows, and remembers what it skipped and (for `dedupe`) which messages it has seen.

    `rewarded_only` keeps decisions with unique_delta > 0 (event_rewards_kind absolute: ach_delta > 0).
    `skipped` counts decisions left out, by reason, each under the first that applies.
    """

    def __init__(self, form: RowForm = "openai", *, rewarded_only: bool = False, dedupe: bool = False) -> None:
        self.skipped: Counter[str] = Counter()
        self._trl = form == "trl"
        self._rewarded_only = rewarded_only
        self._seen: set[bytes] | None = set() if dedupe else None

    def rows(self, episode: EpisodeFacts, decisions: Sequence[DecisionFacts]) -> Iterator[str]:
        """The rows of one episode in order of turn, each one line of JSON without its end of line.

        `decisions` are all of the episode's: what a decision earned depends on those before it.
        """
        records = rewards_from_events(decision.events for decision in decisions)
        tail = _tail(episode, _episode_return(episode, records))
        for decision, record in zip(decisions, records, strict=True):
            reason = self._reason_to_skip(episode, decision, record)
            if reason:
                self.skipped[reason] += 1
            else:
                yield self._row(tail, decision, record)

    def _reason_to_skip(self, episode: EpisodeFacts, decision: DecisionFacts, record: DecisionRewards) -> str:
        if not decision.parsed:
            return UNPARSED
        if not all(_calls_are_sound(text) for text in (*decision.prompt, decision.answer) if _CALLS in text):
            return NO_ARGUMENTS
        earned = record.ach_delta if episode.flags.kind == "absolute" else record.unique_delta
        if self._rewarded_only and not earned:
            return NOT_REWARDED
        if self._seen is not None:
            digest = _digest((*decision.prompt, decision.answer))
            if digest in self._seen:
                return DUPLICATE
            self._seen.add(digest)
        return ""

    def _row(self, tail: str, decision: DecisionFacts, record: DecisionRewards) -> str:
        messages: Iterable[str] = (*decision.prompt, decision.answer)
        if self._trl:
            messages = map(_for_trl, messages)
        return (
            f'{{"messages":[{",".join(messages)}],{tail},"turn":{decision.turn},"model":{_quoted(decision.model)},'
            f'"unique_delta":{record.unique_delta},"ach_delta":{record.ach_delta}}}}}'
        )


def _tail(episode: EpisodeFacts, total: float) -> str:
    """What follows the messages in every row of an episode, up to the decision's own metadata."""
    metadata = {
        "schema": SCHEMA,
        "app": episode.app,
        "app_version": episode.app_version,
        "seed": episode.seed,
        "run_id": episode.run_id,
        "episode_id": episode.episode_id,
        "policy": episode.policy,
        "policy_version": episode.policy_version,
        "prompt_hash": episode.prompt_hash,
        "outcome": episode.outcome,
        "episode_return": total,
    }
    return f'"tools":{episode.tools},"metadata":{json_as_given(metadata)[:-1]}'


@lru_cache(maxsize=64)
def _quoted(text: str) -> str:
    return json_as_given(text)


def _episode_return(episode: EpisodeFacts, records: Sequence[DecisionRewards]) -> float:
    """Σ r under the flags the episode was played with, by the collector's own rule."""
    match episode.flags.mode:
        case "off":
            return episode.outcome if records else 0.0
        case "env_sparse":
            return episode.environment_return
        case _:
            return fsum(stepwise_rewards(records, len(records), episode.max_decisions, episode.flags))


def _loads(text: str) -> Any:
    """Strict JSON. Raises ValueError for NaN and infinity too, which other readers refuse."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


@lru_cache(maxsize=_CACHED_TEXTS)
def _calls_are_sound(message: str) -> bool:
    """Whether the arguments of every tool call are a JSON object that can be written again."""
    try:
        for call in json.loads(message).get("tool_calls") or ():
            arguments = _loads(call["function"]["arguments"])
            if not isinstance(arguments, dict):
                return False
            json_as_given(arguments)  # refuses 1e999, which reads as infinity
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return True


def _for_trl(text: str) -> str:
    """A message as chat templates read it: contents are strings, arguments are objects."""
    if text.startswith('{"content":"') and _CALLS not in text:
        return text  # most messages; canonical JSON has content first
    return _converted(text)


@lru_cache(maxsize=_CACHED_TEXTS)
def _converted(text: str) -> str:
    message = json.loads(text)
    content = message.get("content")
    if content is None:
        message["content"] = ""
    elif isinstance(content, list) and all(part.get("type") == "text" for part in content):
        message["content"] = "\n".join(part["text"] for part in content)
    for call in message.get("tool_calls") or ():
        call["function"]["arguments"] = _loads(call["function"]["arguments"])
    return json_as_given(message)  # keys of arguments stay in the order the model said them


def _digest(messages: Iterable[str]) -> bytes:
    text = "\n".join(map(_without_ids, messages))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _without_ids(text: str) -> str:
    """The message without the ids of its tool calls, which endpoints draw anew for each answer."""
    return _stripped(text) if '"tool_call' in text else text


@lru_cache(maxsize=_CACHED_TEXTS)
def _stripped(text: str) -> str:
    message = json.loads(text)
    message.pop("tool_call_id", None)
    for call in message.get("tool_calls") or ():
        call.pop("id", None)
    return canonical_json(message)
