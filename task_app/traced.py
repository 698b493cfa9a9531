"""Rollouts on a task app served elsewhere, looked at one by one: what the rollout scripts do.

Asks for an episode, sums up its answer, keeps its trace, and compares the numbers of the answer with each other.
Stores nothing in a database; prints nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from math import fsum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from task_app.analyze.stats import Mean, mean_interval
from task_app.collect import reward_vector
from task_app.collect.vectors import stepwise_rewards
from task_app.config.step_rewards import StepRewardSettings, from_request, resolve
from task_app.core.errors import ConfigError, PolicyError
from task_app.core.rewards import rewards_from_events
from task_app.core.types import DecisionRewards, StepRewardFlags
from task_app.core.wire import episode_from_json
from task_app.rollout.client import HostedTaskApp
from task_app.runs import new_run_id
from task_app.store.files import made_beside

__all__ = ["Broken", "RolloutSummary", "TurnRow", "Wanted", "line_up", "outcomes", "play_traced", "summarise_answer"]

SEEDS_AT_ONCE = 4
"""Rollouts in flight, where several seeds are asked for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One command's request. None is left to the server; a model or an endpoint alone means the policy `chat`."""

    base_url: str
    api_key: str = ""
    seeds: tuple[int, ...] = (0,)
    run_id: str | None = None
    policy: str | None = None
    model: str | None = None
    inference_url: str | None = None
    max_llm_calls: int | None = None
    trace_format: str = "compact"


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One decision as a table shows it; `reward` and `total` are None in an episode without a reward."""

    turn: int
    executed: str
    ach_delta: int
    unique_delta: int
    unique: str
    reward: float | None
    total: float | None


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """What one answer says, and what in it does not line up."""

    seed: int
    run_id: str
    episode_id: str
    status: str
    cause: str
    episode_return: float | None
    outcome: float | None
    turns: tuple[TurnRow, ...]
    achievements: Mapping[str, int]
    warnings: tuple[str, ...]

    @property
    def ach_delta(self) -> int:
        """ΣAchΔ over the decisions."""
        return sum(row.ach_delta for row in self.turns)

    @property
    def unique_delta(self) -> int:
        """ΣUniqueΔ over the decisions."""
        return sum(row.unique_delta for row in self.turns)

    def rows(self) -> list[tuple[Any, ...]]:
        """A row per decision: turn, executed, ΔAch, ΔUnique, what was new, reward, running total."""
        return [astuple(row) for row in self.turns]

    def heading(self) -> str:
        """One line: which episode, and its numbers."""
        return (
            f"run {self.run_id} · seed {self.seed} · episode {self.episode_id} · {self.status} ({self.cause}) · "
            f"return {_shown(self.episode_return)} · outcome {_shown(self.outcome)} · "
            f"ΣAchΔ {self.ach_delta} · ΣUniqueΔ {self.unique_delta}"
        )


@dataclass(frozen=True, slots=True)
class Broken:
    """A seed whose rollout gave no answer, and why."""

    seed: int
    cause: str


def play_traced(
    wanted: Wanted, *, trace_path: Path | None = None, progress: Callable[[], None] = lambda: None
) -> list[RolloutSummary | Broken]:
    """Play every seed there, in order of the seeds. `trace_path` gets the trace as JSON; with several seeds, a list.

    The file is made beside and renamed at the end, so that a place that cannot be written is found before anything
    is played. Raises ConfigError for such a place or a wrong `base_url`, PolicyError when no rollout gave an answer.
    """
    run_id = wanted.run_id or new_run_id("traced")
    with (
        made_beside(trace_path, replace=True) if trace_path else nullcontext() as beside,
        HostedTaskApp(wanted.base_url, api_key=wanted.api_key) as app,
    ):

        def one(seed: int) -> tuple[RolloutSummary | Broken, Any]:
            try:
                answer = app.rollout(_body(wanted, run_id, seed))
                return summarise_answer(answer, seed), answer.get("trace")
            except PolicyError as error:
                return Broken(seed, str(error)), None
            finally:
                progress()

        with ThreadPoolExecutor(min(SEEDS_AT_ONCE, len(wanted.seeds))) as pool:
            played = list(pool.map(one, wanted.seeds))
        first = played[0][0]
        if isinstance(first, Broken) and all(isinstance(one, Broken) for one, _ in played):
            raise PolicyError(first.cause, retryable=False)
        if beside is not None:
            traces = [trace for one, trace in played if isinstance(one, RolloutSummary)]
            text = json.dumps(traces[0] if len(wanted.seeds) == 1 else traces, allow_nan=False, indent=2)
            beside.write_text(f"{text}\n", encoding="utf-8")
    return [summary for summary, _ in played]


def _body(wanted: Wanted, run_id: str, seed: int) -> dict[str, Any]:
    config = {"model": wanted.model, "inference_url": wanted.inference_url, "max_llm_calls": wanted.max_llm_calls}
    name = wanted.policy or ("chat" if wanted.model or wanted.inference_url else None)
    policy: dict[str, Any] = {"policy_name": name} if name else {}
    return {
        "run_id": run_id,
        "env": {"seed": seed},
        "policy": policy | {"config": {key: value for key, value in config.items() if value is not None}},
        "record": {"trajectories": True, "return_trace": True, "trace_format": wanted.trace_format},
    }


def summarise_answer(answer: Mapping[str, Any], seed: int) -> RolloutSummary:
    """The summary of one `/rollout` answer. Raises PolicyError when it is not of the known form."""
    try:
        metrics, steps = answer["metrics"], answer["trajectories"][0]["steps"]
        details = metrics["details"]
        records = _records(steps)
        names = Counter(name for step in steps for name in step["info"]["events"])
        return RolloutSummary(
            seed=seed,
            run_id=answer["run_id"],
            episode_id=details["episode_id"],
            status=details["status"],
            cause=details["cause"],
            episode_return=metrics["episode_returns"][0],
            outcome=metrics["outcome_score"],
            turns=tuple(_turns(steps, records)),
            achievements=dict(sorted(names.items())),
            warnings=line_up(answer),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise PolicyError(
            f"the answer is not a rollout's ({type(error).__name__}: {error})", retryable=False
        ) from error


def _turns(steps: Sequence[Mapping[str, Any]], records: Sequence[DecisionRewards]) -> Iterator[TurnRow]:
    total: float | None = 0.0
    for step, record in zip(steps, records, strict=True):
        reward = step["reward"]
        total = total + reward if total is not None and reward is not None else None
        executed = " ".join(step["info"]["executed"])
        yield TurnRow(
            record.turn, executed, record.ach_delta, record.unique_delta, ", ".join(record.unique), reward, total
        )


def _records(steps: Sequence[Mapping[str, Any]]) -> list[DecisionRewards]:
    """The decision records of a trajectory; where the mode has none, the same from its events."""
    told = [step["info"]["meta"].get("decision_rewards") for step in steps]
    if any(record is None for record in told):
        return rewards_from_events(step["info"]["events"] for step in steps)
    return [_record(record) for record in told]


def _record(told: Mapping[str, Any]) -> DecisionRewards:
    names, new = tuple(told["all"]), tuple(told["unique"])
    return DecisionRewards(told["turn"], told["ach_delta"], told["unique_delta"], names, new)


# -- does it line up -----------------------------------------------------------------------------


def line_up(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each number of the answer that its parts do not add up to; empty when all is well.

    The return is summed anew from what was returned of each decision, under the returned flags, and the outcome
    is compared with ΣUniqueΔ: once from the trajectory and once from the trace, never from both together. An episode
    without a reward has nothing to line up.
    """
    metrics = answer["metrics"]
    claimed, outcome = metrics["episode_returns"][0], metrics["outcome_score"]
    if claimed is None and outcome is None:
        return ()
    found = []
    rewards = [step["reward"] for step in answer["trajectories"][0]["steps"]]
    if None in rewards or not _same(fsum(rewards), claimed):
        found.append(f"the return is {_shown(claimed)}, but the rewards of the steps do not add up to it")
    for source, total, unique in _sums(answer):
        if isinstance(total, str):
            found.append(f"the {source} cannot be summed: {total}")
        elif total is not None and not _same(total, claimed):
            found.append(f"the return is {_shown(claimed)}, but the rewards of the {source} add up to {total:g}")
        if not _same(unique, outcome):
            found.append(f"the outcome is {_shown(outcome)}, but ΣUniqueΔ of the {source} is {unique}")
    return tuple(found)


def _sums(answer: Mapping[str, Any]) -> Iterator[tuple[str, float | str | None, int]]:
    """(source, Σ r or why there is none, ΣUniqueΔ) of each place that tells of decisions.

    Σ r is None where the answer does not say under which flags it was played.
    """
    flags = _flags(answer["metrics"]["details"].get("step_rewards"))
    trajectory = answer["trajectories"][0]
    records = _records(trajectory["steps"])
    yield "trajectory", _total(answer, trajectory, records, flags), sum(r.unique_delta for r in records)
    trace = answer.get("trace") or {}
    if trace.get("format") == "full":
        yield from _sums_of_record(trace["episode"])
    elif "decision_rewards" in trace:
        told = [_record(record) for record in trace["decision_rewards"]]
        yield "trace", _total(answer, trajectory, told, flags), sum(record.unique_delta for record in told)


def _sums_of_record(record: Mapping[str, Any]) -> Iterator[tuple[str, float | str | None, int]]:
    """The same from a full trace: the whole episode record, with flags of its own."""
    try:
        episode = episode_from_json(dict(record))
    except ValidationError as error:
        raise PolicyError("the answer's trace holds no episode record", retryable=False) from error
    stored = [decision.rewards for decision in episode.decisions if decision.rewards is not None]
    records = stored or rewards_from_events(decision.events for decision in episode.decisions)
    try:
        total: float | str = reward_vector(episode, episode.flags).total
    except ValueError as error:
        total = str(error)
    yield "trace", total, sum(one.unique_delta for one in records)


def _total(
    answer: Mapping[str, Any],
    trajectory: Mapping[str, Any],
    records: Sequence[DecisionRewards],
    flags: StepRewardFlags | None,
) -> float | str | None:
    steps = trajectory["steps"]
    if flags is None:
        return None
    if flags.mode == "off":
        return trajectory["final"]["reward"] if steps else 0.0
    if flags.mode == "env_sparse":
        return fsum(reward for step in steps for reward in step["info"]["step_rewards"])
    try:
        limit = answer["metrics"]["details"]["max_decisions"]
        return fsum(stepwise_rewards(records, len(steps), limit, flags))
    except ValueError as error:
        return str(error)


def _flags(told: Mapping[str, Any] | None) -> StepRewardFlags | None:
    if told is None:
        return None
    try:
        return resolve(StepRewardSettings.model_validate(from_request(told)).written())
    except (ConfigError, ValidationError):
        return None


def _same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-9)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


# -- several ---------------------------------------------------------------------------------------


def outcomes(played: Sequence[RolloutSummary | Broken]) -> tuple[dict[str, Any], dict[str, float], bool]:
    """Several rollouts as (numbers by name, share of episodes by achievement, whether all carry a reward)."""
    answers = [one for one in played if isinstance(one, RolloutSummary)]
    rewarded = [one for one in answers if one.outcome is not None]
    returns = mean_interval([one.episode_return for one in rewarded if one.episode_return is not None])
    numbers: dict[str, Any] = {
        "rollouts": len(played),
        "with a reward": len(rewarded),
        "mean return": _mean(returns),
        "mean outcome": _mean(mean_interval([one.outcome for one in rewarded if one.outcome is not None])),
        "ΣAchΔ": sum(one.ach_delta for one in rewarded),
        "ΣUniqueΔ": sum(one.unique_delta for one in rewarded),
    }
    having = Counter(name for one in rewarded for name in one.achievements)
    shares = {name: count / len(rewarded) for name, count in sorted(having.items(), key=lambda i: (-i[1], i[0]))}
    return numbers, shares, len(rewarded) == len(played)


def _mean(mean: Mean) -> str:
    return f"{mean} (n={mean.n}, 95 %)"
