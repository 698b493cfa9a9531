"""Stored tokens → training rows → padded micro-batches. One row per decision; text is never encoded here.

A row ends before the last token the policy chose: what comes after it teaches nothing. Everything that
is trained on is kept as flat lists over chosen tokens (`_N`), so padding has no place to contribute from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from task_app.core.errors import TrainError
from task_app.core.types import Decision, TokenTrace
from task_app.train.masks import GrammarTable

__all__ = ["MicroBatch", "Row", "RowBuilder", "make_micro_batches"]


@dataclass(frozen=True, slots=True)
class Row:
    """One decision to train on; the four inner tuples have one entry per chosen token.

    positions  index in `input_ids` of the token before it, whose hidden state predicts it
    states     grammar state it was chosen in
    """

    input_ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    states: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    advantage: float


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows as tensors. `kept_B_K` marks which entries of `position_B_K` are real; flattening by it
    gives the order of all `_N` tensors."""

    input_B_T: Tensor
    position_B_K: Tensor
    kept_B_K: Tensor
    target_N: Tensor
    state_N: Tensor
    sampler_logp_N: Tensor
    advantage_N: Tensor


class RowBuilder:
    """Turns decisions into rows, refusing what was sampled under another grammar, prompt form or temperature."""

    def __init__(self, table: GrammarTable, renderer_hash: str, temperature: float) -> None:
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
        states = self._table.states(trace.completion_ids)
        for index, state in enumerate(states):
            if bool(trace.mask[index]) != (int(self._table.forced_S[state]) < 0):
                raise TrainError(
                    f"token {index} of decision {decision.turn} has mask {trace.mask[index]}, but its grammar says "
                    f"it was {'chosen' if self._table.forced_S[state] < 0 else 'forced'}"
                )
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
            advantage=advantage,
        )

    def _check(self, trace: TokenTrace, decision: Decision) -> None:
        if not len(trace.completion_ids) == len(trace.logprobs) == len(trace.mask):
            raise TrainError(f"decision {decision.turn}: ids, log-probabilities and mask differ in length")
        ours = (self._table.hash, self._renderer_hash, self._temperature)
        theirs = (trace.grammar_hash, trace.renderer_hash, trace.temperature)
        for what, own, other in zip(("grammar", "renderer", "temperature"), ours, theirs, strict=True):
            if own != other:
                raise TrainError(
                    f"decision {decision.turn} ({decision.completion.completion_id}) was sampled with {what} "
                    f"{other!r}, this trainer has {own!r}; it cannot score what it cannot reproduce"
                )


def make_micro_batches(rows: Iterable[Row], size: int, device: torch.device) -> list[MicroBatch]:
    """Rows in micro-batches of at most `size`, those of like length together to save padding."""
    ordered = sorted(rows, key=lambda row: len(row.input_ids))
    return [_micro_batch(ordered[start : start + size], device) for start in range(0, len(ordered), size)]


def _micro_batch(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    longest, most = max(len(row.input_ids) for row in rows), max(len(row.positions) for row in rows)
    input_B_T = torch.zeros(len(rows), longest, dtype=torch.long)
    position_B_K = torch.zeros(len(rows), most, dtype=torch.long)
    kept_B_K = torch.zeros(len(rows), most, dtype=torch.bool)
    for index, row in enumerate(rows):
        input_B_T[index, : len(row.input_ids)] = torch.tensor(row.input_ids)
        position_B_K[index, : len(row.positions)] = torch.tensor(row.positions)
        kept_B_K[index, : len(row.positions)] = True
    return MicroBatch(
        input_B_T=input_B_T.to(device),
        position_B_K=position_B_K.to(device),
        kept_B_K=kept_B_K.to(device),
        target_N=torch.tensor([token for row in rows for token in row.targets], device=device),
        state_N=torch.tensor([state for row in rows for state in row.states], device=device),
        sampler_logp_N=torch.tensor([value for row in rows for value in row.sampler_logprobs], device=device),
        advantage_N=torch.tensor([row.advantage for row in rows for _ in row.targets], device=device),
    )
