"""Rows → sheets of token ids: several rows to a sequence, or one padded row each. Tensors only, no model.

A packed sequence keeps its rows apart by positions that begin again at 0, and its unused end is one more such row, so
no mask is needed. Sequences are as long as the longest row, so that attention costs no more than with padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from task_app.train.rows import Row

__all__ = ["Sheet", "pack", "pad"]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Ids (B, T) and their positions; the mask is None where positions alone keep rows apart.

    sequence_N, column_N  where the hidden state that predicts each chosen token stands, row by row
    """

    input_B_T: Tensor
    position_B_T: Tensor
    mask_B_T: Tensor | None
    sequence_N: Tensor
    column_N: Tensor

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
    used: list[int] = []
    places: dict[int, tuple[int, int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: -lengths[index]):
        sequence = next((number for number, taken in enumerate(used) if taken + lengths[index] <= room), len(used))
        if sequence == len(used):
            used.append(0)
        places[index] = (sequence, used[sequence])
        used[sequence] += lengths[index]
    return _sheet(rows, [places[index] for index in range(len(rows))], used, room, masked=False)


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
