"""Rows → sheets of token ids: several rows to a sequence, or one padded row each. Tensors only, no model.

A packed sequence keeps its rows apart by positions that begin again at 0, and its unused end is one more such row, so
no mask is needed. Sequences are as long as the longest row, so that attention costs no more than with padding, or a
single one holds all rows for an attention that takes them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from task_app.train.rows import Row

__all__ = ["Sheet", "pack", "packed_tokens", "pad"]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Ids (B, T) and their positions; the mask is None where positions alone keep rows apart.

    sequence_N, column_N  where the hidden state that predicts each chosen token stands, row by row
    lengths               of the rows where one sequence holds them end to end, in that order; else empty
    """

    input_B_T: Tensor
    position_B_T: Tensor
    mask_B_T: Tensor | None
    sequence_N: Tensor
    column_N: Tensor
    lengths: tuple[int, ...] = ()

    def to(self, device: torch.device) -> Sheet:
        """The sheet on a device."""
        mask = None if self.mask_B_T is None else self.mask_B_T.to(device)
        moved = [value.to(device) for value in (self.input_B_T, self.position_B_T, self.sequence_N, self.column_N)]
        return replace(
            self, input_B_T=moved[0], position_B_T=moved[1], mask_B_T=mask, sequence_N=moved[2], column_N=moved[3]
        )


def pack(rows: Sequence[Row], *, one: bool = False) -> Sheet:
    """As few sequences of the longest row's length as first fit needs; `one` puts all rows into a single sequence."""
    lengths = [len(row.input_ids) for row in rows]
    room = sum(lengths) if one else max(lengths)
    places, used = _first_fit(lengths, room)
    sheet = _sheet(rows, places, used, room, masked=False)
    return replace(sheet, lengths=tuple(sorted(lengths, reverse=True))) if one else sheet


def packed_tokens(lengths: Sequence[int]) -> int:
    """Tokens of the sequences `pack` makes of rows of these lengths, unused ends included."""
    room = max(lengths)
    return len(_first_fit(lengths, room)[1]) * room


def _first_fit(lengths: Sequence[int], room: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Sequence and start of each row, and the tokens used of each sequence; longest rows first."""
    used: list[int] = []
    places: dict[int, tuple[int, int]] = {}
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        sequence = next((number for number, taken in enumerate(used) if taken + lengths[index] <= room), len(used))
        if sequence == len(used):
            used.append(0)
        places[index] = (sequence, used[sequence])
        used[sequence] += lengths[index]
    return [places[index] for index in range(len(lengths))], used


def pad(rows: Sequence[Row]) -> Sheet:
    """One sequence a row, padded on the right, with a mask over the real tokens."""
    lengths = [len(row.input_ids) for row in rows]
    return _sheet(rows, [(index, 0) for index in range(len(rows))], lengths, max(lengths), masked=True)


def _sheet(
    rows: Sequence[Row], places: Sequence[tuple[int, int]], used: Sequence[int], room: int, *, masked: bool
) -> Sheet:
    input_B_T = torch.zeros(len(used), room, dtype=torch.long)
    position_B_T = torch.zeros(len(used), room, dtype=torch.long)
    for row, (sequence, start) in zip(rows, places, strict=True):
        stop = start + len(row.input_ids)
        input_B_T[sequence, start:stop] = torch.tensor(row.input_ids)
        position_B_T[sequence, start:stop] = torch.arange(stop - start)
    for sequence, taken in enumerate(used):
        position_B_T[sequence, taken:] = torch.arange(room - taken)
    return Sheet(
        input_B_T=input_B_T,
        position_B_T=position_B_T,
        mask_B_T=(torch.arange(room)[None] < torch.tensor(used)[:, None]).long() if masked else None,
        sequence_N=torch.tensor([place[0] for row, place in zip(rows, places, strict=True) for _ in row.positions]),
        column_N=torch.tensor(
            [place[1] + position for row, place in zip(rows, places, strict=True) for position in row.positions]
        ),
    )
