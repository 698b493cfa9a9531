"""metrics.jsonl: one strict-JSON line per happening of a run, and cutting it back to a checkpoint.

Line kinds: `start`, `resume`, `eval`, `update`. Every line has `kind` and `update`. Times and sizes of
the machine stand under `machine` alone, so that two equal runs differ nowhere else. A number that is
not finite is written as null: missing is not 0, and NaN is not JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from task_app.core.errors import TrainError
from task_app.train.disk import replace_text, writing

__all__ = ["MetricsLog", "strict"]


def strict(value: Any) -> Any:
    """`value` with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


class MetricsLog:
    """The log of one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, update: int, **values: Any) -> dict[str, Any]:
        """Write one line and return it. Raises TrainError when the disk refuses; half a line counts for nothing."""
        line = strict({"kind": kind, "update": update, **values})
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        return line

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines; a last line cut off by a kill is left out. Raises TrainError for any other damage."""
        if not self.path.exists():
            return []
        texts = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = []
        for number, text in enumerate(texts, start=1):
            try:
                line = json.loads(text)
            except ValueError as error:
                if number == len(texts) and not text.endswith("\n"):
                    break
                raise TrainError(f"{self.path} line {number} is not JSON: {error}") from error
            if not isinstance(line, dict) or not {"kind", "update"} <= line.keys():
                raise TrainError(f"{self.path} line {number} is no line of a run's log: it needs kind and update")
            lines.append(line)
        return lines

    def cut_after(self, update: int) -> None:
        """Keep what belongs to `update` and earlier; later lines told of work that is done again.

        Raises TrainError when the log is damaged or lost its beginning, or the disk refuses.
        """
        lines = self.lines()
        if not any(line["kind"] == "start" for line in lines):
            raise TrainError(
                f"{self.path} does not say how its run started, so the run cannot go on: put the log back, or begin "
                "anew in another run folder"
            )
        kept = [json.dumps(line, allow_nan=False) + "\n" for line in lines if line["update"] <= update]
        replace_text(self.path, "".join(kept))

    def clear(self) -> None:
        """Begin an empty log. Raises TrainError when the folder may not be written."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
