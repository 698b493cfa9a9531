"""A finished rollout as the response existing clients read. Builds plain JSON values; decides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from task_app.collect import RewardVector, reward_vector
from task_app.core.rewards import rewards_from_events
from task_app.core.types import Decision, Episode
from task_app.core.wire import episode_to_json
from task_app.server.requests import ignored_fields
from task_app.server.rollouts import FinishedRollout

__all__ = ["decision_info", "response_bytes", "rollout_response"]


def response_bytes(finished: FinishedRollout) -> bytes:
    """The whole answer as it is sent."""
    return json.dumps(rollout_response(finished), allow_nan=False, separators=(",", ":")).encode()


def rollout_response(finished: FinishedRollout) -> dict[str, Any]:
    """The whole answer. Rewards of an episode that carries none are null, never 0."""
    episode, request = finished.episode, finished.resolved.request
    rewards = reward_vector(episode, episode.flags) if episode.rewarded else None
    record = request.record
    return {
        "run_id": episode.run_id,
        "trajectories": [_trajectory(finished, rewards)] if record.trajectories else [],
        "branches": {},
        "metrics": _metrics(finished, rewards),
        "aborted": episode.status == "aborted",
        "ops_executed": 2 * len(episode.decisions),
        "trace": _trace(episode, full=record.trace_format == "full") if record.return_trace else None,
    }


def _trajectory(finished: FinishedRollout, rewards: RewardVector | None) -> dict[str, Any]:
    episode = finished.episode
    per_decision = rewards.decisions if rewards else [None] * len(episode.decisions)
    steps = [_step(finished, index, reward) for index, reward in enumerate(per_decision)]
    return {
        "env_id": f"{episode.task.app}-{episode.task.seed}",
        "policy_id": episode.policy,
        "steps": steps,
        "final": {
            "observation": steps[-1]["obs"] if steps else {},
            "reward": episode.outcome,
            "done": episode.terminated or episode.truncated,
            "truncated": episode.truncated,
            "info": {"status": episode.status, "cause": episode.cause},
        },
        "length": len(steps),
    }


def _step(finished: FinishedRollout, index: int, reward: float | None) -> dict[str, Any]:
    episode, resolved = finished.episode, finished.resolved
    decision = episode.decisions[index]
    last = index == len(episode.decisions) - 1
    last_reward = decision.steps[-1].reward if decision.steps else 0.0
    return {
        "obs": resolved.spec.app.status_fields(finished.states[index]) | {"reward_last_step": last_reward},
        "tool_calls": decision.completion.message.to_wire().get("tool_calls", []),
        "reward": reward,
        "done": last and (episode.terminated or episode.truncated),
        "truncated": last and episode.truncated,
        "info": decision_info(decision, logprobs=resolved.request.record.logprobs),
    }


def decision_info(decision: Decision, *, logprobs: bool) -> dict[str, Any]:
    """What an answer says of one decision, its decision record at `meta.decision_rewards` where there is one."""
    meta: dict[str, Any] = {"turn": decision.turn}
    if decision.rewards is not None:
        meta["decision_rewards"] = decision.rewards.to_wire()
    info: dict[str, Any] = {
        "meta": meta,
        "executed": [step.action for step in decision.steps],
        "step_rewards": [step.reward for step in decision.steps],
        "events": list(decision.events),
    }
    if decision.failure is not None:
        info["parse_failure"] = {"reason": decision.failure.reason, "detail": decision.failure.detail}
    if logprobs and decision.completion.tokens is not None:
        info["logprobs"] = list(decision.completion.tokens.logprobs)
    return info


def _metrics(finished: FinishedRollout, rewards: RewardVector | None) -> dict[str, Any]:
    episode, resolved = finished.episode, finished.resolved
    total = rewards.total if rewards else None
    return {
        "episode_returns": [total],
        "mean_return": total,
        "num_steps": len(episode.steps),
        "num_episodes": 1,
        "outcome_score": episode.outcome,
        "events_score": _events_score(episode),
        "details": {
            "episode_id": episode.episode_id,
            "group_id": episode.group_id,
            "member": episode.member,
            "status": episode.status,
            "cause": episode.cause,
            "environment_return": episode.environment_return,
            "prompt_hash": episode.prompt_hash,
            "step_rewards_mode": episode.flags.mode,
            "event_rewards_kind": episode.flags.kind,
            "step_rewards": {("step_beta" if k == "beta" else k): v for k, v in asdict(episode.flags).items()},
            "max_decisions": episode.max_decisions,
            "max_time_s": resolved.limits.max_time_s,
            "trace_file": finished.trace_file,
            "ignored": ignored_fields(resolved.request, episode),
        },
    }


def _events_score(episode: Episode) -> int | None:
    """Σ unique_delta or Σ ach_delta over decisions; None without step rewards or without any reward."""
    if not episode.rewarded or episode.flags.mode == "off":
        return None
    records = rewards_from_events(decision.events for decision in episode.decisions)
    return sum(r.unique_delta if episode.flags.kind == "unique" else r.ach_delta for r in records)


def _trace(episode: Episode, *, full: bool) -> dict[str, Any]:
    if full:
        return {"format": "full", "session_id": episode.episode_id, "episode": episode_to_json(episode)}
    trace = {
        "format": "compact",
        "session_id": episode.episode_id,
        "status": episode.status,
        "outcome": episode.outcome,
        "events": dict(sorted(episode.event_counts.items())),
    }
    if episode.flags.mode == "decision_stepwise":
        trace["decision_rewards"] = [d.rewards.to_wire() for d in episode.decisions if d.rewards is not None]
    return trace
