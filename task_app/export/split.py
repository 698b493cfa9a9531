"""Training and validation files by seed: every episode of a seed, whatever its run, falls on the same side.

A seed's side depends on the task app, the seed and the fractions alone, so that an export made later, with
more episodes, moves no seed. Reads and writes nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from task_app.core.errors import ConfigError

__all__ = ["SIDES", "Split"]

SIDES = ("train", "valid")


@dataclass(frozen=True, slots=True)
class Split:
    """`share` of the seeds, as a fraction of 1, goes to training."""

    share: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `"90:10"`: two numbers above 0, of any sum. Raises ConfigError."""
        try:
            train, valid = (float(part) for part in text.split(":"))
        except ValueError:
            train = valid = math.nan
        if not (0 < train < math.inf and 0 < valid < math.inf):
            raise ConfigError(
                f"--split {text!r}: must be train:valid, two numbers above 0, such as 90:10", field="split"
            )
        return cls(train / (train + valid))

    def side(self, app: str, seed: int) -> int:
        """0 for training, 1 for validation."""
        digest = hashlib.sha256(f"{app}\n{seed}".encode()).digest()
        return int(int.from_bytes(digest[:8]) / 2**64 >= self.share)

    @staticmethod
    def paths(output: Path) -> list[Path]:
        """`F.train.jsonl` and `F.valid.jsonl` for `F.jsonl`."""
        return [output.with_name(f"{output.stem}.{side}{output.suffix}") for side in SIDES]
