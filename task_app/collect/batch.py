"""Episodes of one update → complete groups with reward vectors, and the metrics of the batch.

A group is complete or dropped, never partial: dropping single members would favour what fails less.
What was dropped is counted and named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from task_app.apps import find_apps
from task_app.collect.vectors import RewardVector, reward_vector
from task_app.core.rewards import rewards_from_events
from task_app.core.types import DecisionRewards, Episode, StepRewardFlags

__all__ = ["Batch", "BatchMetrics", "Group", "RewardedEpisode", "build_batch", "measure", "outcome_is_unique_events"]


@dataclass(frozen=True, slots=True)
class RewardedEpisode:
    """An episode with its reward vector."""

    episode: Episode
    vector: RewardVector

    @property
    def rewards(self) -> tuple[float, ...]:
        """(T,) one number per decision."""
        return self.vector.decisions


@dataclass(frozen=True, slots=True)
class Group:
    """A complete group, members in order."""

    group_id: str
    seed: int
    members: tuple[RewardedEpisode, ...]


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """What a log says of a batch of rewarded episodes.

    `by_turn[turn]` is (sum of r, ΣAchΔ, ΣUniqueΔ) of that turn. `misaligned` counts episodes whose
    outcome (final state) differs from the ΣUniqueΔ of their stored records, where the task app's outcome
    is that number at all.
    """

    mode: str
    kind: str
    indicator_lambda: float
    beta: float
    horizon: str
    episodes: int
    decisions: int
    reward_sum: float
    ach_delta_sum: int
    unique_delta_sum: int
    decisions_with_unique: int
    episodes_with_event: int
    episode_event_share: float
    has_event_reward: bool
    recomputed_episodes: int
    misaligned: int
    by_turn: Mapping[int, tuple[float, int, int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Complete groups in (update, group) order; `dropped` names every other group and says why."""

    groups: tuple[Group, ...]
    dropped: Mapping[str, str]
    metrics: BatchMetrics


def outcome_is_unique_events(app: str) -> bool:
    """Whether the outcome of the task app of this name counts its different events; False for one unknown here."""
    found = find_apps().get(app)
    return found is not None and found.app.outcome_is_unique_events


def build_batch(
    episodes: Iterable[Episode], flags: StepRewardFlags, group_size: int, *, unique_outcome: bool | None = None
) -> Batch:
    """Sort episodes into groups of `group_size` and build their reward vectors.

    `unique_outcome` says whether the outcome counts unique events; None asks the task app by its name.
    Raises ValueError for records with broken turns. Episodes without a decision have r = [].
    """
    by_group: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_group[episode.group_id].append(episode)
    groups, dropped = [], {}
    for group_id in sorted(by_group):
        members = sorted(by_group[group_id], key=lambda episode: episode.member)
        problem = _problem(members, group_size)
        if problem:
            dropped[group_id] = problem
        else:
            vectors = [RewardedEpisode(episode, reward_vector(episode, flags)) for episode in members]
            groups.append(Group(group_id, members[0].task.seed, tuple(vectors)))
    rewarded = [member for group in groups for member in group.members]
    return Batch(tuple(groups), dropped, _metrics(rewarded, flags, unique_outcome))


def measure(episodes: Iterable[Episode], flags: StepRewardFlags) -> BatchMetrics:
    """The metrics of every episode that carries a reward, whatever its group."""
    return _metrics([RewardedEpisode(e, reward_vector(e, flags)) for e in episodes if e.rewarded], flags, None)


def _problem(members: Sequence[Episode], group_size: int) -> str:
    """Why a group cannot be used; empty when it can."""
    failed = [episode for episode in members if not episode.rewarded]
    if failed:
        return f"member {failed[0].member} ended in {failed[0].status}: {failed[0].cause}"
    if [episode.member for episode in members] != list(range(group_size)):
        present = ", ".join(str(episode.member) for episode in members)
        return f"members {present} are not 0 to {group_size - 1}"
    same = {(episode.task.seed, episode.prompt_hash, episode.policy, episode.policy_version) for episode in members}
    if len(same) > 1:
        return "members differ in seed, prompt hash or policy version"
    return ""


def _metrics(members: Sequence[RewardedEpisode], flags: StepRewardFlags, unique_outcome: bool | None) -> BatchMetrics:
    by_turn: dict[int, tuple[float, int, int]] = {}
    with_unique = with_event = misaligned = 0
    for member in members:
        deltas = rewards_from_events(decision.events for decision in member.episode.decisions)
        for reward, record in zip(member.rewards, deltas, strict=True):
            before = by_turn.get(record.turn, (0.0, 0, 0))
            by_turn[record.turn] = (
                before[0] + reward,
                before[1] + record.ach_delta,
                before[2] + record.unique_delta,
            )
            with_unique += record.unique_delta > 0
        with_event += flags.mode != "off" and _has_event_reward(member.rewards, deltas)
        misaligned += flags.mode != "off" and _is_misaligned(member.episode, unique_outcome)
    return BatchMetrics(
        mode=flags.mode,
        kind=flags.kind,
        indicator_lambda=flags.indicator_lambda,
        beta=flags.beta,
        horizon=flags.horizon,
        episodes=len(members),
        decisions=sum(len(member.rewards) for member in members),
        reward_sum=fsum(member.vector.total for member in members),
        ach_delta_sum=sum(entry[1] for entry in by_turn.values()),
        unique_delta_sum=sum(entry[2] for entry in by_turn.values()),
        decisions_with_unique=with_unique,
        episodes_with_event=with_event,
        episode_event_share=with_event / len(members) if members else 0.0,
        has_event_reward=with_event > 0,
        recomputed_episodes=sum(member.vector.source == "events" for member in members),
        misaligned=misaligned,
        by_turn=dict(sorted(by_turn.items())),
    )


def _has_event_reward(rewards: Sequence[float], records: Sequence[DecisionRewards]) -> bool:
    """Whether a decision that caused an event was paid anything."""
    return any(reward and record.ach_delta for reward, record in zip(rewards, records, strict=True))


def _is_misaligned(episode: Episode, unique_outcome: bool | None) -> bool:
    """Whether two independently stored numbers disagree: the outcome (final state) and ΣUniqueΔ (records).

    Episodes without records have nothing to compare, and so have apps whose outcome is another number.
    """
    records = [decision.rewards for decision in episode.decisions if decision.rewards is not None]
    if not records or sum(record.unique_delta for record in records) == episode.outcome:
        return False
    return outcome_is_unique_events(episode.task.app) if unique_outcome is None else unique_outcome
