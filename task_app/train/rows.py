"""Stored tokens → training rows → micro-batches. Text is never encoded here.

A row is one decision, or several of one episode where each prompt begins with exactly the prompt and answer
before it. It ends before the last token the policy chose: what comes after teaches nothing. Everything
that is trained on is kept as flat lists over chosen tokens (`_N`), so padding has no place to contribute from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from task_app.core.errors import TrainError
from task_app.core.types import Decision, TokenTrace
from task_app.train.masks import GrammarTable

__all__ = ["MicroBatch", "Row", "RowBuilder", "deal_micro_batches", "make_micro_batches", "merge_rate",
           "padded_tokens"]  # fmt: skip

FREE = -1
"""The grammar state of a token chosen without a grammar."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens to train on; `positions` to `sampler_logprobs` have one entry per chosen token.

    positions   index in `input_ids` of the token before it, whose hidden state predicts it
    states      grammar state it was chosen in, −1 without a grammar
    spans       chosen tokens of each decision; they sum to the number of chosen tokens
    advantages  one per decision
    """

    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    states: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    spans: tuple[int, ...]
    advantages: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows, and what is known of their chosen tokens, row by row (N tokens of D decisions)."""

    rows: tuple[Row, ...]
    target_N: Tensor
    state_N: Tensor
    sampler_logp_N: Tensor
    advantage_N: Tensor
    decision_N: Tensor
    """Which decision of the micro-batch, 0 to D − 1, each token belongs to."""
    counts: float = 1.0
    """What its loss is multiplied by; 0 for one that is only computed because other processes have more of them."""


class RowBuilder:
    """Turns decisions into rows, refusing what was sampled under another grammar, prompt form or temperature."""

    def __init__(self, table: GrammarTable | None, renderer_hash: str, temperature: float) -> None:
        self._table, self._renderer_hash, self._temperature = table, renderer_hash, temperature

    def row(self, decision: Decision, advantage: float) -> Row | None:
        """The decision's row, None when the policy chose nothing in it. Raises TrainError."""
        trace = decision.completion.tokens
        if trace is None:
            raise TrainError(
                f"decision {decision.turn} ({decision.completion.completion_id}) was stored without tokens; only "
                "episodes of a policy that returns them can be trained on"
            )
        self._check(trace, decision)
        if not math.isfinite(advantage):
            raise TrainError(f"advantage of decision {decision.turn} is {advantage}")
        states = self._states(trace, decision)
        chosen = [index for index, kept in enumerate(trace.mask) if kept]
        if not chosen:
            return None
        before = len(trace.prompt_ids) - 1
        return Row(
            input_ids=trace.prompt_ids + trace.completion_ids[: chosen[-1]],
            positions=tuple(before + index for index in chosen),
            targets=tuple(trace.completion_ids[index] for index in chosen),
            states=tuple(states[index] for index in chosen),
            sampler_logprobs=tuple(trace.logprobs[index] for index in chosen),
            spans=(len(chosen),),
            advantages=(advantage,),
        )

    def rows(self, decisions: Sequence[Decision], advantages: Sequence[float]) -> list[Row]:
        """The rows of one episode, decisions merged where the tokens go on exactly. Raises TrainError.

        Only answers of one policy version (the completion's `model`) share a row.
        """
        rows: list[Row] = []
        said: tuple[int, ...] | None = None
        version = ""
        for decision, advantage in zip(decisions, advantages, strict=True):
            row = self.row(decision, advantage)
            if row is None:
                continue
            trace = decision.completion.tokens
            assert trace is not None
            goes_on = said is not None and trace.prompt_ids[: len(said)] == said
            if rows and goes_on and version == decision.completion.model:
                rows[-1] = _joined(rows[-1], row)
            else:
                rows.append(row)
            said, version = trace.prompt_ids + trace.completion_ids, decision.completion.model
        return rows

    def _check(self, trace: TokenTrace, decision: Decision) -> None:
        if not len(trace.completion_ids) == len(trace.logprobs) == len(trace.mask):
            raise TrainError(f"decision {decision.turn}: ids, log-probabilities and mask differ in length")
        ours = (self._table.hash if self._table else "", self._renderer_hash, self._temperature)
        theirs = (trace.grammar_hash, trace.renderer_hash, trace.temperature)
        for what, own, other in zip(("grammar", "renderer", "temperature"), ours, theirs, strict=True):
            if own != other:
                raise TrainError(
                    f"decision {decision.turn} ({decision.completion.completion_id}) was sampled with {what} "
                    f"{other!r}, this trainer has {own!r}; it cannot score what it cannot reproduce"
                )

    def _states(self, trace: TokenTrace, decision: Decision) -> list[int]:
        if self._table is None:
            return [FREE] * len(trace.completion_ids)
        states = self._table.states(trace.completion_ids)
        for index, state in enumerate(states):
            if bool(trace.mask[index]) != (int(self._table.forced_S[state]) < 0):
                raise TrainError(
                    f"token {index} of decision {decision.turn} has mask {trace.mask[index]}, but its grammar says "
                    f"it was {'chosen' if self._table.forced_S[state] < 0 else 'forced'}"
                )
        return states


def _joined(first: Row, second: Row) -> Row:
    """Two decisions as one row. The second's input holds all of the first's, so only the lists are joined."""
    return Row(
        second.input_ids,
        first.positions + second.positions,
        first.targets + second.targets,
        first.states + second.states,
        first.sampler_logprobs + second.sampler_logprobs,
        first.spans + second.spans,
        first.advantages + second.advantages,
    )


def merge_rate(rows: Sequence[Row]) -> float | None:
    """The share of decisions that go on in the row of an earlier one; None without any."""
    decisions = sum(len(row.spans) for row in rows)
    return 1 - len(rows) / decisions if decisions else None


def padded_tokens(lengths: Sequence[int]) -> int:
    """Tokens of a forward pass over rows of these lengths, each padded to the longest."""
    return len(lengths) * max(lengths)


def make_micro_batches(
    rows: Iterable[Row],
    most_tokens: int,
    device: torch.device,
    count: Callable[[Sequence[int]], int] = padded_tokens,
) -> list[MicroBatch]:
    """Rows in micro-batches of at most `most_tokens` tokens by `count`, those of like length together.

    `count` says what a forward pass over rows of given lengths computes (`Network.forward_tokens`). A row longer than
    `most_tokens` has a micro-batch of its own; whether it fits the model is the network's to say.
    """
    ordered = sorted(rows, key=lambda row: len(row.input_ids))
    return [_micro_batch(part, device) for part in _parts(ordered, most_tokens, count)]


def deal_micro_batches(
    rows: Sequence[Row],
    most_tokens: int,
    device: torch.device,
    count: Callable[[Sequence[int]], int] = padded_tokens,
    *,
    hand: int,
    hands: int,
) -> list[MicroBatch]:
    """The micro-batches of one of several processes that share `rows`; of one, those of `make_micro_batches`.

    Rows are dealt so that each hand has about as many tokens, always in the same way. All hands get equally many
    micro-batches, since gathering weights and gradients takes everyone; what is missing is filled with ones whose
    `counts` is 0.
    """
    if hands == 1:
        return make_micro_batches(rows, most_tokens, device, count)
    dealt = _deal(rows, hands)
    most = max(len(list(_parts(part, most_tokens, count))) for part in dealt)
    batches = make_micro_batches(dealt[hand], most_tokens, device, count)
    if len(batches) < most:
        shortest = min(rows, key=lambda row: len(row.input_ids))
        batches += [replace(_micro_batch([shortest], device), counts=0.0)] * (most - len(batches))
    return batches


def _deal(rows: Sequence[Row], hands: int) -> list[list[Row]]:
    """The longest row first, each to the hand with the fewest tokens so far; hands are ordered by length."""
    dealt: list[list[Row]] = [[] for _ in range(hands)]
    tokens = [0] * hands
    for row in sorted(rows, key=lambda row: -len(row.input_ids)):
        least = tokens.index(min(tokens))
        dealt[least].insert(0, row)
        tokens[least] += len(row.input_ids)
    return dealt


def _parts(ordered: Sequence[Row], most_tokens: int, count: Callable[[Sequence[int]], int]) -> Iterator[Sequence[Row]]:
    lengths = [len(row.input_ids) for row in ordered]
    start = 0
    for index in range(len(ordered)):
        if index > start and count(lengths[start : index + 1]) > most_tokens:
            yield ordered[start:index]
            start = index
    if start < len(ordered):
        yield ordered[start:]


def _micro_batch(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    spans = [span for row in rows for span in row.spans]
    credited = zip((advantage for row in rows for advantage in row.advantages), spans, strict=True)
    return MicroBatch(
        rows=tuple(rows),
        target_N=torch.tensor([token for row in rows for token in row.targets], device=device),
        state_N=torch.tensor([state for row in rows for state in row.states], device=device),
        sampler_logp_N=torch.tensor([value for row in rows for value in row.sampler_logprobs], device=device),
        advantage_N=torch.tensor([advantage for advantage, span in credited for _ in range(span)], device=device),
        decision_N=torch.tensor([index for index, span in enumerate(spans) for _ in range(span)], device=device),
    )
