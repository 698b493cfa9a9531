"""What a reader must know before trusting the numbers: warnings and notes, each only when it is true.

Each counts what it is about and gives examples. Computes from columns; reads no database.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from task_app.analyze.columns import Columns, GroupMembers
from task_app.analyze.players import Player
from task_app.collect import outcome_is_unique_events
from task_app.config.models import PriceSection

__all__ = ["Caution", "find_cautions"]

MOST_EXAMPLES = 5
GROUPING_COMMANDS = ("rollout", "train")
"""Commands that play groups of the config's size; `eval` and `serve` play what they are asked."""

Array = np.ndarray
Kind = Literal[
    "outcome_mismatch",
    "broken_records",
    "incomplete_groups",
    "mixed_prompts",
    "recomputed",
    "missing_tokens",
    "unmatched_price",
]


@dataclass(frozen=True, slots=True)
class Caution:
    """A warning (something is wrong or cannot be compared) or a note (something to know).

    `count` says how many, `examples` are ids of at most five, in the database's order.
    """

    level: Literal["warning", "note"]
    kind: Kind
    count: int
    text: str
    examples: tuple[str, ...]


def find_cautions(columns: Columns, players: Iterable[Player], prices: Mapping[str, PriceSection]) -> list[Caution]:
    """Every caution that holds, warnings first."""
    every = list(players)
    found = (
        _outcome_mismatch(columns),
        _broken_records(columns),
        _incomplete_groups(columns),
        _mixed_prompts(columns),
        _recomputed(columns),
        _missing_tokens(columns, every, prices),
        _unmatched_prices(every, prices),
    )
    return [caution for caution in found if caution.count]


def _of_episodes(columns: Columns, chosen: Array, level: Any, kind: Kind, text: str) -> Caution:
    ids = columns.texts["episode_id"]
    examples = tuple(ids.of(index) for index in np.flatnonzero(chosen)[:MOST_EXAMPLES])
    return Caution(level, kind, int(chosen.sum()), text, examples)


def _outcome_mismatch(columns: Columns) -> Caution:
    """Two independently stored numbers: the outcome (final state) and ΣUniqueΔ (decision records)."""
    app, outcome = columns.texts["app"], columns.numbers["outcome"]
    comparable = np.array([outcome_is_unique_events(name) for name in app.names], dtype=bool)[app.codes]
    sums = np.bincount(columns.deltas["episode"], weights=columns.deltas["unique_delta"], minlength=len(columns))
    differs = columns.rewarded & comparable & (columns.records > 0) & ~np.isnan(outcome) & (outcome != sums)
    text = "episodes whose outcome is not the ΣUniqueΔ of their decision records"
    return _of_episodes(columns, differs, "warning", "outcome_mismatch", text)


def _broken_records(columns: Columns) -> Caution:
    broken = (columns.records > 0) & (columns.records != columns.numbers["decision_count"])
    text = "episodes with more or fewer decision records than decisions (collecting refuses them)"
    return _of_episodes(columns, broken, "warning", "broken_records", text)


def _recomputed(columns: Columns) -> Caution:
    bare = columns.rewarded & (columns.records == 0) & (columns.numbers["decision_count"] > 0)
    text = "episodes without decision records (modes off and env_sparse), whose deltas are recomputed from events"
    return _of_episodes(columns, bare, "note", "recomputed", text)


def _incomplete_groups(columns: Columns) -> Caution:
    """Groups without some member, or with one that carries no reward; the size is the largest of the run and
    the config's, so a run without groups has none that is incomplete."""
    sizes = {run: size or 1 for run, (command, size) in columns.runs.items() if command in GROUPING_COMMANDS}
    for group in columns.groups:
        sizes[group.run] = max(sizes.get(group.run, 1), group.largest + 1)
    lacking = [group for group in columns.groups if group.rewarded != sizes[group.run]]
    examples = tuple(map(_group_name, lacking[:MOST_EXAMPLES]))
    text = "groups with a member missing or without reward"
    return Caution("warning", "incomplete_groups", len(lacking), text, examples)


def _group_name(group: GroupMembers) -> str:
    update = "" if group.update is None else f"update {group.update}/"
    return f"{group.run}/{update}{group.group}"


def _mixed_prompts(columns: Columns) -> Caution:
    """Policies of a run whose episodes were played with different prompts."""
    run, policy, prompt = (columns.texts[name] for name in ("run_id", "policy", "prompt_hash"))
    triples = np.unique(np.stack([run.codes, policy.codes, prompt.codes]), axis=1)
    pairs, counts = np.unique(triples[:2], axis=1, return_counts=True)
    mixed = [(run.names[r], policy.names[p]) for r, p in pairs[:, counts > 1].T]
    examples = tuple(f"{name}/{who}" for name, who in mixed[:MOST_EXAMPLES])
    text = "policies of a run that met more than one prompt (prompt hashes differ)"
    return Caution("warning", "mixed_prompts", len(mixed), text, examples)


def _missing_tokens(columns: Columns, players: list[Player], prices: Mapping[str, PriceSection]) -> Caution:
    """Calls whose tokens are priced but were not counted, so that the cost is too low or unknown."""
    priced = np.zeros(len(columns), dtype=bool)
    for player in players:
        price = prices.get(player.model)
        priced[player.episodes] = price is not None and bool(price.input or price.output)
    calls = columns.calls[columns.calls["unknown"] & priced[columns.calls["episode"]]]
    chosen = np.zeros(len(columns), dtype=bool)
    chosen[calls["episode"]] = True
    text = "calls of priced models without token counts, whose cost is not in the sums"
    found = _of_episodes(columns, chosen, "note", "missing_tokens", text)
    return Caution(found.level, found.kind, len(calls), found.text, found.examples)


def _unmatched_prices(players: list[Player], prices: Mapping[str, PriceSection]) -> Caution:
    """Prices of no model here whose name is nearly that of a model without a price: a slip of the pen."""
    unpriced = {player.model for player in players if player.model} - prices.keys()
    slips = []
    for name in sorted(prices.keys() - {player.model for player in players}):
        near = difflib.get_close_matches(name, sorted(unpriced), n=1, cutoff=0.8)
        slips += [f"{name!r} (did you mean {near[0]!r}?)"] if near else []
    text = "prices of no model here, with a name close to one"
    return Caution("note", "unmatched_price", len(slips), text, tuple(slips[:MOST_EXAMPLES]))
