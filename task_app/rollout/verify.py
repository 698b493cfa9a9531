"""Whether a stored episode is what its seed and actions make: replayed, and compared fact by fact.

Each kind of difference has a fixed code, and the first one found, in the order of play, names the
episode's verdict. Reads no database (`task_app/verify.py` does) and repairs nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from task_app.core.errors import EnvError
from task_app.core.rewards import decision_rewards
from task_app.core.task import TaskSpec
from task_app.core.types import (
    Decision,
    DecisionRewards,
    Episode,
    EventRewardsKind,
    Horizon,
    Message,
    ParseFailure,
    StepRecord,
    StepRewardsMode,
)
from task_app.rollout.replay import ReplayedDecision, replay

__all__ = ["KINDS", "Kind", "Verdict", "shown", "verify_episode"]

Kind = Literal[
    "ok",
    "ok, texts not compared",
    "action",
    "reward",
    "event",
    "end",
    "decision_rewards",
    "observation",
    "totals",
    "damaged",
    "unverifiable",
]

KINDS: dict[Kind, str] = {
    "ok": "the replay makes exactly what is stored",
    "ok, texts not compared": "the same, but prompts were made by other texts or options (prompt hash)",
    "action": "the executed actions are not those the stored answer asks for",
    "reward": "a step's own reward is another",
    "event": "a step's events are others",
    "end": "the episode ends otherwise: flags, status, cause or outcome",
    "decision_rewards": "a decision's reward record is another, missing or too many",
    "observation": "a prompt or the tools are not what the policy was shown",
    "totals": "the totals beside the episode do not add up",
    "damaged": "the record cannot be read, or parts of it are missing",
    "unverifiable": "it cannot be replayed here: unknown app, other version, refused options",
}
"""Every kind of verdict in the order it is listed, and what it says of an episode."""

_LONGEST = 100
"""Characters of a value that are shown in a sentence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of one episode. `turn` and `step` say where, as far as one place is to blame."""

    kind: Kind
    sentence: str = ""
    turn: int | None = None
    step: int | None = None

    @property
    def passed(self) -> bool:
        """Whether everything that could be compared is equal."""
        return self.kind in ("ok", "ok, texts not compared")


def verify_episode(spec: TaskSpec, episode: Episode) -> Verdict:
    """Replay the episode under `spec` (the task it names) and compare; the first difference decides.

    Rewards are compared as exact floats. Prompts are compared when the episode's prompt hash is the
    task's own; an episode without a reward (infra_error, aborted) up to where it stopped.
    """
    task, app = episode.task, spec.app
    if (task.app, task.version) != (app.name, app.version):
        made_by = f"made by {task.app} version {shown(task.version)}"
        return Verdict("unverifiable", f"{made_by}; {app.name} version {app.version!r} is installed")
    texts = episode.prompt_hash == spec.prompt_hash
    passed = Verdict("ok") if texts else Verdict("ok, texts not compared")
    try:
        return next(_differences(spec, episode, texts), passed)
    except EnvError as error:
        return Verdict("unverifiable", str(error))
    except Exception as error:  # a record too strange for its own app must not end the check of the others
        return Verdict("unverifiable", f"comparing it raised {type(error).__name__}: {error}")


def _differences(spec: TaskSpec, episode: Episode, texts: bool) -> Iterator[Verdict]:
    """Everything that departs, in order of play; nobody asks for more than the first."""
    yield from _numbering(episode)
    if not episode.decisions:  # no world was ever shown, and perhaps none could be made
        yield from _end(spec, episode, None)
        return
    if texts:
        yield from _tools(spec, episode)
    counts: Counter[str] = Counter()
    replayed = None
    for decision, replayed in zip(episode.decisions, replay(spec, episode, texts=texts), strict=False):
        if texts:
            yield from _prompt(decision, replayed)
        yield from _answer(spec, decision, _is_spent(episode, decision))
        yield from _steps(decision, replayed)
        before, counts = counts, counts + Counter(decision.events)
        yield from _record(episode, decision, decision_rewards(decision.turn, before, counts))
        if replayed.ended and decision is not episode.decisions[-1]:
            yield _over_too_soon(decision.turn + 1, decision.steps[-1])
            return
    yield from _end(spec, episode, replayed)


# -- before anything is played -----------------------------------------------------------------


def _numbering(episode: Episode) -> Iterator[Verdict]:
    flags = episode.flags
    for name, value, known in (
        ("mode", flags.mode, get_args(StepRewardsMode)),
        ("kind", flags.kind, get_args(EventRewardsKind)),
        ("horizon", flags.horizon, get_args(Horizon)),
    ):
        if value not in known:
            yield Verdict("damaged", f"step-reward {name} {shown(value)} is unknown (allowed: {', '.join(known)})")
    for turn, decision in enumerate(episode.decisions, start=1):
        if decision.turn != turn:
            yield Verdict("damaged", f"turn {turn} is missing, turn {decision.turn} stands in its place", turn)
    for index, step in enumerate(episode.steps):
        if step.step != index:
            yield Verdict("damaged", f"step {index} is missing, step {step.step} stands in its place", step=index)


def _tools(spec: TaskSpec, episode: Episode) -> Iterator[Verdict]:
    tools = spec.app.tools(spec.options)
    if episode.tools != tools and _plain(episode.tools) != _plain(tools):
        yield Verdict("observation", _unlike("the tools", json.dumps(episode.tools), json.dumps(tools)))


# -- one decision ------------------------------------------------------------------------------


def _prompt(decision: Decision, replayed: ReplayedDecision) -> Iterator[Verdict]:
    stored, made = decision.messages, replayed.messages
    if stored != made and _plain(stored) != _plain(made):
        sentence = _unlike(f"turn {decision.turn}: the prompt", _text(stored), _text(made))
        yield Verdict("observation", sentence, decision.turn)


def _answer(spec: TaskSpec, decision: Decision, spent: bool) -> Iterator[Verdict]:
    """The executed actions are what the stored answer asks for, or, where the world ended, its beginning."""
    parsed = spec.app.parse(decision.completion.message, spec.options)
    asked = () if isinstance(parsed, ParseFailure) else tuple(parsed)
    reason = parsed.reason if isinstance(parsed, ParseFailure) else None
    stored_reason = decision.failure.reason if decision.failure else None
    executed = tuple(step.action for step in decision.steps)
    where = f"turn {decision.turn}"
    if stored_reason != reason:
        yield Verdict(
            "action",
            f"{where}: parse failure {shown(stored_reason)} stored, the answer's is {shown(reason)}",
            decision.turn,
        )
    for step, action in zip(decision.steps, asked, strict=False):
        if step.action != action:
            sentence = f"{where}, step {step.step}: action {shown(step.action)} stored, the answer asks for {action!r}"
            yield Verdict("action", sentence, decision.turn, step.step)
    if len(executed) > len(asked):
        surplus = decision.steps[len(asked)]
        sentence = f"{where}, step {surplus.step}: action {shown(surplus.action)} stored, the answer asks for no more"
        yield Verdict("action", sentence, decision.turn, surplus.step)
    if len(executed) < len(asked) and not spent and not _ends(decision.steps):
        sentence = (
            f"{where}: {len(executed)} actions stored, the answer asks for {len(asked)} and the world had not ended"
        )
        yield Verdict("action", sentence, decision.turn)


def _steps(decision: Decision, replayed: ReplayedDecision) -> Iterator[Verdict]:
    turn = decision.turn
    for stored, made in zip(decision.steps, replayed.steps, strict=False):
        where = f"turn {turn}, step {stored.step}"
        if stored.reward != made.reward:
            sentence = f"{where}: reward {shown(stored.reward)} stored, {made.reward!r} replayed"
            yield Verdict("reward", sentence, turn, stored.step)
        if stored.events != made.events:
            sentence = f"{where}: events {_names(stored.events)} stored, {_names(made.events)} replayed"
            yield Verdict("event", sentence, turn, stored.step)
        for flag in ("terminated", "truncated"):
            was, is_now = getattr(stored, flag), getattr(made, flag)
            if was != is_now:
                yield Verdict("end", f"{where}: {flag} {was} stored, {is_now} replayed", turn, stored.step)
    if len(replayed.steps) < len(decision.steps):
        next_step = decision.steps[len(replayed.steps)]
        if replayed.fault:
            place = f"turn {turn}, step {next_step.step} ({next_step.action})"
            yield Verdict("unverifiable", f"{place}: the world raised {replayed.fault}", turn, next_step.step)
        else:
            yield _over_too_soon(turn, replayed.steps[-1])


def _over_too_soon(turn: int, last: StepRecord) -> Verdict:
    sentence = f"turn {turn}: the record goes on, but the world was over after step {last.step}"
    return Verdict("end", sentence, turn, last.step + 1)


def _record(episode: Episode, decision: Decision, made: DecisionRewards) -> Iterator[Verdict]:
    stored, turn = decision.rewards, decision.turn
    recorded = episode.flags.mode == "decision_stepwise"
    if stored is None:
        if recorded:
            yield Verdict(
                "decision_rewards", f"turn {turn}: no decision record stored, mode is decision_stepwise", turn
            )
        return
    if not recorded:
        sentence = f"turn {turn}: a decision record stored, mode {episode.flags.mode} has none"
        yield Verdict("decision_rewards", sentence, turn)
    for name in ("turn", "ach_delta", "unique_delta", "all", "unique"):
        was, is_now = getattr(stored, name), getattr(made, name)
        if was != is_now:
            said = (_names(was), _names(is_now)) if isinstance(is_now, tuple) else (shown(was), shown(is_now))
            yield Verdict("decision_rewards", f"turn {turn}: {name} {said[0]} stored, {said[1]} replayed", turn)


# -- how it ended --------------------------------------------------------------------------------


def _end(spec: TaskSpec, episode: Episode, last: ReplayedDecision | None) -> Iterator[Verdict]:
    if len(episode.decisions) > episode.max_decisions:
        yield Verdict("end", f"{len(episode.decisions)} decisions stored, the limit is {episode.max_decisions}")
    expected = _expected_end(episode)
    stored = (episode.status, episode.cause, episode.terminated, episode.truncated)
    names = ("status", "cause", "terminated", "truncated")
    if not episode.rewarded:
        yield from _unrewarded_end(episode, expected)
        return
    if not expected:
        after = f"after {len(episode.decisions)} of {episode.max_decisions} decisions"
        yield Verdict("end", f"{episode.status} ({episode.cause}) stored {after}, but nothing had ended it")
    if stored not in expected:
        near = max(expected, key=lambda end: sum(a == b for a, b in zip(end, stored, strict=True)))
        name, was, is_now = next((name, a, b) for name, a, b in zip(names, stored, near, strict=True) if a != b)
        yield Verdict("end", f"{name} {shown(was)} stored, {shown(is_now)} replayed")
    outcome = spec.app.outcome(last.observation) if last else None
    if episode.outcome != outcome:
        yield Verdict("end", f"outcome {shown(episode.outcome)} stored, {shown(outcome)} replayed")


_End = tuple[str, str, bool, bool]


def _expected_end(episode: Episode) -> list[_End]:
    """The ends that the (already compared) decisions allow: status, cause, terminated, truncated."""
    decisions = episode.decisions
    last = decisions[-1] if decisions else None
    if last and last.steps and last.steps[-1].terminated:
        return [("ok", "terminated", True, False)]
    if last and last.steps and last.steps[-1].truncated:
        return [("truncated", "max_steps", False, True)]
    if last and _is_spent(episode, last):
        return [("truncated", "max_env_steps", False, True)]
    ends: list[_End] = []
    # What fits its context, and when it says no more, is the policy's to say.
    if episode.cause in ("context", "stopped"):
        ends.append(("truncated", episode.cause, False, True))
    if len(decisions) == episode.max_decisions:
        ends.append(("truncated", "max_decisions", False, True))
    if _failed_more_than_before(decisions):
        ends.append(("truncated", "max_parse_failures", False, True))
    return ends


def _failed_more_than_before(decisions: tuple[Decision, ...]) -> bool:
    """Whether the failures in a row at the end are more than any before: only then can their limit be reached."""
    run, longest = 0, 0
    for decision in decisions:
        if decision.failure:
            run += 1
        else:
            run, longest = 0, max(longest, run)
    return run > longest


def _unrewarded_end(episode: Episode, expected: list[_End]) -> Iterator[Verdict]:
    """An infrastructure error ended it before it could end; a person may abort it at any time, even at its end."""
    if episode.outcome is not None:
        yield Verdict("end", f"outcome {shown(episode.outcome)} stored, status {episode.status} carries none")
    if episode.truncated:
        yield Verdict("end", f"truncated True stored, status {episode.status} is not truncated")
    world_over = any(end[2] for end in expected)
    if episode.terminated and (episode.status == "infra_error" or not world_over):
        yield Verdict("end", f"terminated True stored with status {episode.status}, the replayed world goes on")
    if episode.status == "infra_error" and any(end[1] != "max_parse_failures" for end in expected):
        yield Verdict("end", f"status infra_error stored, but it had ended before: {expected[0][1]}")


def _is_spent(episode: Episode, decision: Decision) -> bool:
    """Whether the decision used up the episode's budget of environment steps, which cuts it short."""
    budget = episode.details.get("max_env_steps")
    return bool(decision.steps) and decision.steps[-1].step + 1 == budget


def _ends(steps: tuple[StepRecord, ...]) -> bool:
    return bool(steps) and (steps[-1].terminated or steps[-1].truncated)


# -- words ---------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value in a sentence, cut when it is long."""
    text = "none" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _names(names: Any) -> str:
    return shown(", ".join(map(str, names))) if names else "none"


def _plain(value: Any) -> Any:
    """The value as JSON gives it back, tuples as lists."""
    return json.loads(json.dumps(value))


def _text(messages: tuple[Any, ...]) -> str:
    """Messages as lines, a role before each, for finding where two prompts part."""
    return "\n".join(map(_lines, messages))


def _lines(message: Message) -> str:
    plain = set(message) == {"role", "content"} and isinstance(message["content"], str)
    return f"{message['role']}: {message['content']}" if plain else json.dumps(message, sort_keys=True)


def _unlike(what: str, stored: str, made: str) -> str:
    """Where two texts part: the first line that differs."""
    ours, theirs = stored.split("\n"), made.split("\n")
    line = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    was = ours[line] if line < len(ours) else None
    is_now = theirs[line] if line < len(theirs) else None
    return f"{what} differs in line {line + 1}: {_from(was, is_now)} stored, {_from(is_now, was)} replayed"


def _from(line: str | None, other: str | None) -> str:
    """A line, from a little before it departs from the other."""
    if line is None:
        return "no such line"
    start = next((i for i, (a, b) in enumerate(zip(line, other or "", strict=False)) if a != b), 0)
    cut = line.rfind(" ", 0, max(0, start - 20)) + 1
    return shown(("…" if cut else "") + line[cut:])
