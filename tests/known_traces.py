"""A small trace database whose contents are known by heart, for counting by hand what tools say of it.

Eight episodes of Crafter under a turn limit of 4, written through the real writer (made by hand: they cannot
be replayed). Turns are separated by `|`, `–` is a decision without an event, `✗` an unreadable answer.

    id        run    group  # seed policy  model           status       outcome  events by turn
    night-1a  night  s1     0  1   chat    gpt-4o-mini     truncated    2        wood | – | wood, place_table
    night-1b  night  s1     1  1   chat    gpt-4o-mini     truncated    1        – | drink
    night-2a  night  s2     0  2   chat    gpt-4o-mini     ok (died)    3        sapling | place_plant | wake_up | –
    night-2b  night  s2     1  2   chat    gpt-4o-mini     infra_error  none     wood
    day-1     day    s1     0  1   chat    qwen/qwen3-32b  truncated    1        ✗ | wood
    day-2     day    s2     0  2   chat    qwen/qwen3-32b  truncated    2        drink | eat_cow | drink
    base-1    base   s1     0  1   random  (none)          truncated    0        – | –
    base-2    base   s2     0  2   random  (none)          truncated    1        – | wood

(wood, drink, sapling stand for collect_wood, collect_drink, collect_sapling.) Every decision that ran has two
steps, `noop` and `do`; its events happen in the second. A step that unlocks something for the first time
has reward 1.0, the last step of night-2a −0.1, every other 0.0. All flags are the default ones (decision_stepwise,
unique), except those of base-2: mode `off`, so it has no decision records. Answers of chat episodes carry the text
`I look around.` beside the call; each costs 100 prompt tokens and 10 completion tokens and took .5 s
(gpt-4o-mini) or .25 s (qwen); random has no tokens and took no time. Provider (details): openai, groq.
Episode n (0-based, in the order above) starts at 1,000,000 + 100·n s and lasts 10 s. The run `night` was an
update of training: night-1a has the advantages 0.5, −0.25, 1.0 (update 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from task_app.apps import get_app
from task_app.core.rewards import rewards_from_events
from task_app.core.task import TaskSpec
from task_app.core.types import (
    AssistantMessage,
    Completion,
    Decision,
    Episode,
    ParseFailure,
    StepRecord,
    StepRewardFlags,
    ToolCall,
)
from task_app.store import TraceStore

__all__ = ["MODELS", "known_episodes", "write_known"]

MODELS = {"night": ("gpt-4o-mini", "openai", 0.5), "day": ("qwen/qwen3-32b", "groq", 0.25)}
UNREADABLE = "?"
"""Stands for a decision whose answer did not parse."""

_TABLE: tuple[tuple[str, str, int, int, float | None, tuple[str, ...]], ...] = (
    ("night-1a", "night", 0, 1, 2, ("collect_wood", "", "collect_wood place_table")),
    ("night-1b", "night", 1, 1, 1, ("", "collect_drink")),
    ("night-2a", "night", 0, 2, 3, ("collect_sapling", "place_plant", "wake_up", "")),
    ("night-2b", "night", 1, 2, None, ("collect_wood",)),
    ("day-1", "day", 0, 1, 1, (UNREADABLE, "collect_wood")),
    ("day-2", "day", 0, 2, 2, ("collect_drink", "eat_cow", "collect_drink")),
    ("base-1", "base", 0, 1, 0, ("", "")),
    ("base-2", "base", 0, 2, 1, ("", "collect_wood")),
)


@cache
def _spec() -> TaskSpec:
    app = get_app("crafter")
    return TaskSpec(app, app.options_model())


def known_episodes() -> list[Episode]:
    """The episodes of the table above, in its order."""
    return [_episode(index, *row) for index, row in enumerate(_TABLE)]


def write_known(store: TraceStore) -> None:
    """Write the runs, the episodes and the advantages."""
    for run in ("night", "day", "base"):
        store.write_run(run, "rollout", {"note": f"the {run} run"})
    for episode in known_episodes():
        store.write_episode(episode)
    store.write_advantages("night", 0, {"night-1a": (0.5, -0.25, 1.0)})


def _episode(
    index: int, episode_id: str, run: str, member: int, seed: int, outcome: float | None, turns: Sequence[str]
) -> Episode:
    spec = _spec()
    flags = StepRewardFlags("off") if episode_id == "base-2" else StepRewardFlags()
    names = [tuple(turn.split()) if turn != UNREADABLE else None for turn in turns]
    died = episode_id == "night-2a"
    return Episode(
        episode_id=episode_id,
        run_id=run,
        group_id=f"s{seed}",
        member=member,
        task=spec.ref(seed),
        policy="chat" if run in MODELS else "random",
        policy_version="1",
        prompt_hash=spec.prompt_hash,
        flags=flags,
        max_decisions=4,
        status="infra_error" if outcome is None else "ok" if died else "truncated",
        cause="endpoint gone" if outcome is None else "terminated" if died else "max_decisions",
        terminated=died,
        truncated=outcome is not None and not died,
        outcome=outcome,
        decisions=_decisions(run, episode_id, names, flags, died),
        tools=spec.app.tools(spec.options),
        update=0 if run == "night" else None,
        started_at=1_000_000.0 + 100 * index,
        finished_at=1_000_010.0 + 100 * index,
        details={"provider": MODELS[run][1]} if run in MODELS else {},
    )


def _decisions(
    run: str, episode_id: str, turns: Sequence[tuple[str, ...] | None], flags: StepRewardFlags, died: bool
) -> tuple[Decision, ...]:
    records = rewards_from_events(names or () for names in turns)
    system = {"role": "system", "content": _spec().app.system_prompt(_spec().options)}
    decisions, step = [], 0
    for record, names in zip(records, turns, strict=True):
        last = record.turn == len(turns)
        steps: tuple[StepRecord, ...] = ()
        if names is not None:
            ends = died and last
            reward = 1.0 if record.unique else -0.1 if ends else 0.0
            steps = (
                StepRecord(step, "noop", 0.0, False, False),
                StepRecord(step + 1, "do", reward, ends, False, names),
            )
            step += 2
        decisions.append(
            Decision(
                turn=record.turn,
                messages=(system, {"role": "user", "content": f"{episode_id}, turn {record.turn}: you see grass."}),
                completion=_completion(run, episode_id, record.turn, readable=names is not None),
                failure=None if names is not None else ParseFailure("no_call", "the answer holds no call"),
                steps=steps,
                rewards=record if flags.mode == "decision_stepwise" else None,
                started_at=0.0,
                env_s=0.001,
            )
        )
    return tuple(decisions)


def _completion(run: str, episode_id: str, turn: int, *, readable: bool) -> Completion:
    calls = (ToolCall("interact_many", '{"actions": ["noop", "do"]}', f"call_{turn}"),) if readable else ()
    said = AssistantMessage("I look around." if run in MODELS else None, calls, "tool_calls" if calls else "stop")
    numbers: dict[str, Any] = {}
    if run in MODELS:
        model, _, latency_s = MODELS[run]
        numbers = {"model": model, "prompt_tokens": 100, "completion_tokens": 10, "latency_s": latency_s}
    return Completion(said, f"{episode_id}-{turn}", **numbers)
