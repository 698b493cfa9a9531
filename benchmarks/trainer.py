"""Speed and memory of the trainer: one update against TRL's `GRPOTrainer`, both samplers against batched `generate`.

    python benchmarks/trainer.py           everything (about 5 minutes on an idle core)
    python benchmarks/trainer.py --small   whether it runs: tiny model, little work, no targets, written only with --out

The update (trainer_update.py): both sides in processes of their own with the same weights and rows, asked in turn, one
thread each; what is timed is one whole update. Rows are ragged as crafter_work.py says. Before any time is taken into
account, the first update's loss and gradient must agree; unequal work is refused. Peak memory is the most a process
held since just before its first update, less what it held then (optimiser states are made in between, on both sides).
The samplers (trainer_sampler.py): the same prompts and weights in one process, in turn. All figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from crafter_work import SHAPE, SMALL_SHAPE, make_folder, make_network, ragged_rows
from targets import misses, print_figures
from trainer_sampler import SamplerRow, chat_rows, embedded_rows
from trainer_update import TRL_ROWS, budget, widths

from task_app.train.rows import Row

HERE = Path(__file__).parent
RESULT = HERE / "results" / "trainer.json"
TOLERANCE = 1e-4
"""Largest difference of loss and gradient, relative to the largest number compared."""
TARGETS = {
    "update, times TRL's tokens/s": (">=", 1.25),
    "update, memory against TRL's": ("<=", 1.0),
    "embedded, first decision: times generate": (">=", 2.0),
    "embedded, tenth decision: times generate": (">=", 2.0),
    "chat, first decision: times generate": (">=", 2.0),
    "chat, fourth decision: times generate": (">=", 2.0),
}


class Side:
    """One side of the update benchmark: a process that makes an update when asked."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[int]) -> None:
        self.name = name
        command = [sys.executable, str(HERE / "trainer_update.py"), name, str(folder), *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def update(self) -> dict[str, float]:
        """Seconds and loss of one update."""
        assert self._process.stdin is not None
        self._process.stdin.write("update\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> dict[str, float]:
        """The process's memory; it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        memory: Any = self._answer()["end"]
        self._process.wait(timeout=60)
        return memory

    def kill(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name!r} ended early with code {self._process.wait()}")
        return json.loads(line)


@dataclass(frozen=True)
class Size:
    """How much work: rows of the update, most decisions of an episode, groups of 8 to sample (four times as many by
    the embedded sampler), repeats, the model."""

    rows: int = 8
    most: int = 12
    worlds: int = 2
    repeats: int = 5
    shape: dict[str, int] = field(default_factory=lambda: SHAPE)


SMALL = Size(rows=TRL_ROWS, most=2, worlds=1, repeats=1, shape=SMALL_SHAPE)


def measure_update(folder: Path, size: Size, threads: int) -> dict[str, Any]:
    """Figures of the update by name."""
    sides = [Side(name, folder, (size.rows, size.most, threads)) for name in ("ours", "trl")]
    try:
        first = {side.name: side.update() for side in sides}
        differences = compare(folder, first)
        seconds: dict[str, list[float]] = {side.name: [] for side in sides}
        for number in range(size.repeats):
            for side in sides if number % 2 else sides[::-1]:
                seconds[side.name].append(side.update()["seconds"])
        memory = {side.name: side.end() for side in sides}
    finally:
        for side in sides:
            side.kill()
    network = make_network(folder)
    rows, firsts = ragged_rows(network, size.rows, size.most)
    real, chosen = sum(len(row.input_ids) for row in rows), sum(len(row.targets) for row in rows)
    mean = {name: median(values) for name, values in seconds.items()}
    grown = {name: figures["peak_mb"] - figures["base_mb"] for name, figures in memory.items()}
    figures: dict[str, Any] = {"rows": len(rows), "tokens": real, "chosen tokens": chosen}
    for name in ("ours", "trl"):
        figures |= {
            f"{name}: seconds an update": mean[name],
            f"{name}: tokens/s": real / mean[name],
            f"{name}: chosen tokens/s": chosen / mean[name],
            f"{name}: peak MB above the start": grown[name],
            f"{name}: peak MB of the process": memory[name]["peak_mb"],
            f"{name}: all seconds": seconds[name],
        }
    return (
        figures
        | differences
        | work(rows, firsts, size.shape)
        | {
            "update, times TRL's tokens/s": mean["trl"] / mean["ours"],
            "update, memory against TRL's": grown["ours"] / grown["trl"],
        }
    )


def compare(folder: Path, first: dict[str, dict[str, float]]) -> dict[str, float]:
    """How far the first update's loss and gradient are apart. Raises SystemExit when the work is not the same."""
    ours, theirs = (torch.load(folder / f"gradient-{name}.pt") for name in ("ours", "trl"))
    pairs = [pair for shape in ours for pair in zip(ours[shape], theirs[shape], strict=True)]
    largest = max(float(value.abs().max()) for _, value in pairs)
    gradient = max(float((one - other).abs().max()) for one, other in pairs) / largest
    loss = abs(first["ours"]["loss"] - first["trl"]["loss"]) / abs(first["trl"]["loss"])
    if ours.keys() != theirs.keys() or not (gradient < TOLERANCE and loss < TOLERANCE):
        raise SystemExit(f"the two sides do not compute the same: gradient {gradient:.2g}, loss {loss:.2g} apart")
    return {"gradient, relative difference": gradient, "loss, relative difference": loss}


def work(rows: Sequence[Row], firsts: Sequence[int], shape: dict[str, int]) -> dict[str, float]:
    """What TRL computes beyond the rows themselves: how many times as much, by the part of the model."""
    lengths = [len(row.input_ids) for row in rows]
    width = sum(widths(rows, firsts))
    padded, chosen = len(rows) * width, sum(len(row.targets) for row in rows)
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads, pairs = (shape["head_dim"] * shape[name] for name in ("num_attention_heads", "num_key_value_heads"))
    block = layers * hidden * (2 * heads + 2 * pairs + 3 * shape["intermediate_size"])
    head = hidden * shape["vocab_size"]
    # Multiply-adds of a forward pass: every weight once a token, and two a pair of tokens and number of a head.
    ours = block * sum(lengths) + head * chosen + layers * heads * sum(length**2 for length in lengths)
    theirs = block * padded + head * padded + 2 * layers * heads * len(rows) * width**2
    return {
        "fill of TRL's rows": sum(lengths) / padded,
        "TRL computes: tokens": padded / sum(lengths),
        "TRL computes: pairs in attention": 2 * len(rows) * width**2 / sum(length**2 for length in lengths),
        "TRL computes: positions in the head": padded / chosen,
        "TRL computes: multiply-adds": theirs / ours,
        "micro-batch, tokens": budget(rows, firsts),
    }


def measure(size: Size, threads: int) -> dict[str, Any]:
    """Every figure by name."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures: dict[str, Any] = {"parameters": make_folder(folder, size.shape)}
        rows = embedded_rows(4 * size.worlds, 3 * size.repeats) + chat_rows(folder, size.worlds, size.repeats)
        figures |= measure_update(folder, size, threads)
    for row in rows:
        figures |= sampler_figures(row)
    return figures


def sampler_figures(row: SamplerRow) -> dict[str, float]:
    """A comparison's figures by name."""
    return {
        f"{row.name}: prompts": row.prompts,
        f"{row.name}: different": row.different,
        f"{row.name}: tokens a prompt": row.prompt_tokens,
        f"{row.name}: ours, tokens/s": row.ours,
        f"{row.name}: generate, tokens/s": row.theirs,
        f"{row.name}: times generate": row.ratio,
    }


def machine(load: float) -> dict[str, Any]:
    """Where and with what this was measured."""
    libraries = {name: version(name) for name in ("torch", "transformers", "trl")}
    return {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": load} | libraries


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny model and little work")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    figures = measure(SMALL if arguments.small else Size(), arguments.threads)
    missed = [] if arguments.small else misses(figures, TARGETS)
    print_figures("trainer", figures, TARGETS, missed)
    out = arguments.out or (None if arguments.small else RESULT)
    if out:
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        command = " ".join(["python", "benchmarks/trainer.py", *sys.argv[1:]])
        found = {"at": stamp, "command": command, "machine": machine(load), "figures": figures, "missed": missed}
        out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
