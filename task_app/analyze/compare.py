"""Two players on the worlds both played: means of each world, who won how many, and the paired difference.

Worlds are shared when app, app version, options, turn limit and seed are the same; every other episode is left
out and counted. Computes from columns; reads no database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from task_app.analyze.columns import Columns
from task_app.analyze.players import Player
from task_app.analyze.stats import Mean, mean_interval
from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean

__all__ = ["Comparison", "SeedRow", "Side", "compare_players", "find_player"]

Array = np.ndarray
MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its mean over shared worlds, and how many worlds it played that the other did not."""

    label: str
    versions: int
    mean: Mean
    unshared: int


@dataclass(frozen=True, slots=True)
class SeedRow:
    """A world both played: how many rewarded episodes each has of it, and their mean outcomes."""

    seed: int
    first_episodes: int
    first_mean: float
    second_episodes: int
    second_mean: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first player against the second.

    wins, losses, ties  worlds whose mean outcome is higher, lower, equal for the first
    difference          mean of first − second over the worlds (n of them), with its paired 95 % interval
    seeds               the worlds in order of their seed; a seed played under two settings has two rows
    """

    first: Side
    second: Side
    wins: int
    losses: int
    ties: int
    difference: Mean
    seeds: tuple[SeedRow, ...]


def find_player(name: str, players: Sequence[Player], columns: Columns) -> Player:
    """The player called `name`: its label, or its policy or model where that is one player's alone.

    `name@version` is that version of it. Raises ConfigError naming the nearest, or those it could mean.
    """
    named = _named(name, players)
    if not named and "@" in name:
        label, _, version = name.rpartition("@")
        named = [_version(player, version, columns) for player in _named(label, players)]
    if len(named) == 1:
        return named[0]
    labels = [player.label for player in (named or players)]
    if named:
        raise ConfigError(f"{name!r} could be any of {_list(labels)}; give one of these", field="compare")
    hint = did_you_mean(name, [*labels, *(player.policy for player in players)])
    raise ConfigError(f"no player {name!r} in the database{hint} (players: {_list(labels)})", field="compare")


def _named(name: str, players: Sequence[Player]) -> list[Player]:
    exact = [player for player in players if player.label == name]
    return exact or [player for player in players if name and name in (player.policy, player.model)]


def _version(player: Player, version: str, columns: Columns) -> Player:
    if version not in player.versions:
        hint = did_you_mean(version, player.versions)
        known = _list(list(player.versions))
        raise ConfigError(f"{player.label!r} has no version {version!r}{hint} (versions: {known})", field="compare")
    text = columns.texts["policy_version"]
    chosen = text.codes[player.episodes] == text.names.index(version)
    return replace(player, episodes=player.episodes[chosen], versions={version: int(chosen.sum())}, version=version)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def compare_players(first: Player, second: Player, columns: Columns) -> Comparison:
    """Compare two players on their shared worlds (none shared: n is 0 and every mean None)."""
    worlds, seeds = _worlds(columns)
    count = int(worlds.max()) + 1 if len(worlds) else 0
    episodes, means = zip(*(_by_world(player, worlds, count, columns) for player in (first, second)), strict=True)
    shared = np.flatnonzero((episodes[0] > 0) & (episodes[1] > 0))
    difference = means[0][shared] - means[1][shared]
    one, two = (
        Side(player.label, len(player.versions), mean_interval(mean[shared].tolist()), int((n > 0).sum()) - len(shared))
        for player, n, mean in zip((first, second), episodes, means, strict=True)
    )
    rows = [
        SeedRow(int(seeds[w]), int(episodes[0][w]), float(means[0][w]), int(episodes[1][w]), float(means[1][w]))
        for w in shared
    ]
    return Comparison(
        first=one,
        second=two,
        wins=int((difference > 0).sum()),
        losses=int((difference < 0).sum()),
        ties=int((difference == 0).sum()),
        difference=mean_interval(difference.tolist()),
        seeds=tuple(rows),
    )


def _worlds(columns: Columns) -> tuple[Array, Array]:
    """(N,) the number of each episode's world, and the seed of each world; in order of seed, then setting."""
    settings = columns.texts["setting"]
    pairs = columns.numbers["seed"].astype(np.int64) * max(1, len(settings.names)) + settings.codes
    found, worlds = np.unique(pairs, return_inverse=True)
    return worlds, found // max(1, len(settings.names))


def _by_world(player: Player, worlds: Array, count: int, columns: Columns) -> tuple[Array, Array]:
    """(count,) rewarded episodes of each world, and their mean outcome (NaN without any)."""
    outcomes = columns.numbers["outcome"]
    chosen = player.episodes[columns.rewarded[player.episodes] & ~np.isnan(outcomes[player.episodes])]
    episodes = np.bincount(worlds[chosen], minlength=count)
    sums = np.bincount(worlds[chosen], weights=outcomes[chosen], minlength=count)
    return episodes, np.divide(sums, episodes, out=np.full(count, np.nan), where=episodes > 0)
