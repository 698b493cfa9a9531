"""Whether the trainer is right and fast on a GPU: speed, memory, bfloat16, packing, and an update against the CPU's.

    python benchmarks/gpu_check.py                        a .6 B Qwen3-shaped random model on cuda (about 4 minutes)
    python benchmarks/gpu_check.py --device cpu --small   a tiny one, to see that all of this runs (about a minute)

packing    hidden states of packed rows against the same rows alone, under the attention used, in float32 and bfloat16
update     whole updates of ragged Crafter rows (crafter_work.py), micro-batches of 16 k packed tokens, bfloat16 over
           float32 weights: tokens/s, and MFU: multiply-adds the model needs, twice, three times for forward and
           backward, over the card's dense bfloat16 peak; recomputed blocks and unused positions do not count
memory     the most held during such an update, and during one in which every token was chosen, so that all of 16 k
           positions go through the vocabulary of 152 k; with and without gradient checkpointing
mismatch   answers sampled with keys and values kept, scored by the trainer: KL(sampler ‖ trainer) per token
equality   one update of a small model in float32 against the same on the CPU: gradient and weights; in bfloat16 the
           gradient's direction

Nothing is downloaded: weights are random, the tokenizer is learnt from Crafter's texts. A figure out of its bounds
makes the exit code 1. On the CPU a peak is the process's own, and there is no MFU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from crafter_work import SHAPE, SMALL_SHAPE, make_folder, make_network, play_random, prompts_of_turn, ragged_rows
from memory import reset_peak, status
from torch import Tensor

from task_app.cli.output import print_table
from task_app.config.training import TrainingSection
from task_app.train.chat_network import ChatNetwork
from task_app.train.learner import Learner
from task_app.train.network import autocast
from task_app.train.rows import Row

RESULT = Path(__file__).parent / "results" / "gpu_check.json"
LARGE_SHAPE = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
PEAKS = {"H200": 989.0, "H100": 989.0, "H20": 148.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0}
"""Dense bfloat16 TFLOP/s by the makers' data sheets (SXM where there are several)."""
BOUNDS = {
    "packing, float32: relative difference": 1e-3,
    "packing, bfloat16: relative difference": 0.1,
    "mismatch: KL a token": 0.01,
    "equality, float32: gradient, relative difference": 1e-3,
    "equality, float32: weights, difference over the rate": 0.1,
    "equality, bfloat16: gradient, 1 − cosine": 0.02,
}
"""Largest values allowed."""


@dataclass(frozen=True)
class Size:
    """How much is computed: the model, tokens of a micro-batch, rows of an update and most decisions of each, updates
    timed, groups of 8 that are sampled and most tokens of their answers."""

    shape: dict[str, int]
    tokens: int
    rows: int
    decisions: int
    updates: int
    worlds: int
    answer: int


LARGE = Size(LARGE_SHAPE, 16_384, 40, 12, 5, 8, 128)
SMALL = Size(SMALL_SHAPE, 1_024, 2, 1, 1, 1, 8)


class Check:
    """The measurements, on one device and size."""

    def __init__(self, folder: Path, device: torch.device, size: Size, attention: str) -> None:
        self._folder, self._device, self._size, self._attention = folder, device, size, attention

    def network(self, folder: Path | None = None, *, device: str | None = None, **changes: Any) -> ChatNetwork:
        """A network on the device, in bfloat16 unless told; building it runs the trainer's own checks."""
        settings = {"dtype": "bfloat16", "attention": self._attention, "threads": os.cpu_count() or 1} | changes
        return make_network(folder or self._folder, device=device or str(self._device), **settings)

    def packing(self) -> dict[str, float]:
        """How far packed rows' hidden states are from the same rows' alone."""
        figures = {}
        for dtype in ("float32", "bfloat16"):
            if dtype == "float32" and self._attention == "flash_attention_2":
                continue  # it computes in half precision alone
            network = self.network(dtype=dtype)
            rows, _ = ragged_rows(network, min(4, self._size.rows), min(3, self._size.decisions))
            with torch.no_grad(), autocast(network.settings, self._device):
                together = network.hidden(network.model, rows).float()
                alone = torch.cat([network.hidden(network.model, [row]).float() for row in rows])
            figures[f"packing, {dtype}: relative difference"] = relative(together, alone)
        return figures

    def update(self) -> dict[str, Any]:
        """Speed and memory of updates."""
        figures: dict[str, Any] = {}
        for checkpointing in (False, True):
            network = self.network(gradient_checkpointing=checkpointing)
            rows, _ = ragged_rows(network, self._size.rows, self._size.decisions)
            learner = Learner(network, TrainingSection(micro_batch_tokens=self._size.tokens, learning_rate=1e-6), 1.0)
            name = "checkpointing" if checkpointing else "update"
            figures |= self._timed(name, network, learner, rows)
            (full,) = [whole_row(rows, self._size.tokens)]
            with self._peak() as peak:
                seconds = self._seconds(learner, [full])
            figures[f"{name}, every token chosen: peak GB"] = peak[0]
            figures[f"{name}, every token chosen: tokens/s"] = len(full.input_ids) / seconds
            del network, learner
        return figures

    def _timed(self, name: str, network: ChatNetwork, learner: Learner, rows: Sequence[Row]) -> dict[str, Any]:
        with self._peak() as peak:
            self._seconds(learner, rows)
        seconds = median(self._seconds(learner, rows) for _ in range(self._size.updates))
        tokens, chosen = sum(len(row.input_ids) for row in rows), sum(len(row.targets) for row in rows)
        figures: dict[str, Any] = {
            f"{name}: seconds": seconds,
            f"{name}: tokens": tokens,
            f"{name}: tokens/s": tokens / seconds,
            f"{name}: chosen tokens/s": chosen / seconds,
            f"{name}: peak GB": peak[0],
        }
        most = peak_flops(self._device)
        if most:
            figures[f"{name}: MFU"] = needed_flops(self._size.shape, rows) / seconds / most
        return figures

    def mismatch(self) -> dict[str, Any]:
        """The sampler's log-probabilities against the trainer's, in bfloat16, and the sampler's speed."""
        network = self.network(history="none", max_new_tokens=self._size.answer)
        prompts = prompts_of_turn(network, play_random(network.spec, self._size.worlds, 8, 1), 1)
        sampler = network.sampler(1.0)
        sampler.sample(prompts[:2], ["warm", "up"])
        begin = time.perf_counter()
        answers = sampler.sample(prompts, [f"0/1/{index}" for index in range(len(prompts))])
        seconds = self._since(begin)
        rows = [
            answered_row(prompt, answer.ids, answer.logprobs, (-1.0) ** index)
            for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]
        learner = Learner(network, TrainingSection(micro_batch_tokens=self._size.tokens), 1.0)
        told = learner.update(rows, len(rows))
        return {
            "sampler: answers at once": len(prompts),
            "sampler: tokens/s": sum(len(answer.ids) for answer in answers) / seconds,
            "mismatch: KL a token": told["mismatch/kl_mean"],
            "mismatch: largest KL": told["mismatch/kl_max"],
            "mismatch: largest difference of log-probabilities": told["mismatch/logp_max"],
            "mismatch: effective sample size": told["mismatch/ess_frac"],
        }

    def equality(self, folder: Path) -> dict[str, float]:
        """One update of the small model of `folder` here and on the CPU."""
        rate = 1e-3
        found = {}
        for name, device, dtype in (
            ("cpu", "cpu", "float32"),
            ("float32", None, "float32"),
            ("bfloat16", None, "bfloat16"),
        ):
            network = self.network(folder, device=device, dtype=dtype, attention="sdpa")
            rows, _ = ragged_rows(network, min(4, self._size.rows), min(3, self._size.decisions))
            learner = Learner(network, TrainingSection(micro_batch_tokens=4_096, learning_rate=rate), 1.0)
            kept: list[Tensor] = []
            learner.optimizer.torch.register_step_pre_hook(
                lambda *_, network=network, kept=kept: kept.append(flat(value.grad for value in network.parameters()))
            )
            learner.update(rows, len(rows))
            found[name] = kept[0], flat(network.parameters())
        gradient, weights = found["cpu"]
        moved = (found["float32"][1] - weights).abs()[gradient.abs() > 1e-3 * gradient.abs().max()]
        cosine = torch.nn.functional.cosine_similarity(found["bfloat16"][0].double(), gradient.double(), dim=0)
        return {
            "equality, float32: gradient, relative difference": relative(found["float32"][0], gradient),
            "equality, float32: weights, difference over the rate": float(moved.max()) / rate,
            "equality, bfloat16: gradient, 1 − cosine": 1 - float(cosine),
        }

    def _seconds(self, learner: Learner, rows: Sequence[Row]) -> float:
        begin = time.perf_counter()
        learner.update(rows, len(rows))
        return self._since(begin)

    def _since(self, begin: float) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    @contextmanager
    def _peak(self) -> Iterator[list[float]]:
        """The most memory held inside, in GB: the card's, or the process's own."""
        peak: list[float] = []
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            yield peak
            peak.append(torch.cuda.max_memory_allocated() / 2**30)
            return
        reset_peak()
        yield peak
        peak.append(status("VmHWM") / 1024)


def flat(values: Any) -> Tensor:
    """Tensors as one vector on the CPU, a copy."""
    return torch.cat([value.detach().flatten().float().cpu() for value in values])


def relative(one: Tensor, other: Tensor) -> float:
    """Largest difference over the largest number."""
    return float((one - other).abs().max() / other.abs().max())


def whole_row(rows: Sequence[Row], tokens: int) -> Row:
    """One row of so many tokens, all of them chosen."""
    ids = [token for row in rows for token in row.input_ids]
    ids = (ids * (tokens // len(ids) + 1))[: tokens + 1]
    return answered_row(ids[:1], ids[1:], [-1.0] * tokens, 1.0)


def answered_row(prompt: Sequence[int], answer: Sequence[int], logprobs: Sequence[float], advantage: float) -> Row:
    """The row of one decision."""
    whole = (*prompt, *answer)
    return Row(
        input_ids=whole[:-1],
        positions=tuple(range(len(prompt) - 1, len(whole) - 1)),
        targets=tuple(answer),
        states=(-1,) * len(answer),
        sampler_logprobs=tuple(logprobs),
        spans=(len(answer),),
        advantages=(advantage,),
    )


def needed_flops(shape: dict[str, int], rows: Sequence[Row]) -> float:
    """Floating-point operations of one update that the model cannot do without."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads, pairs = (shape["head_dim"] * shape[name] for name in ("num_attention_heads", "num_key_value_heads"))
    block = layers * hidden * (2 * heads + 2 * pairs + 3 * shape["intermediate_size"])
    total = 0.0
    for row in rows:
        length = len(row.input_ids)
        total += block * length + hidden * shape["vocab_size"] * len(row.targets) + layers * heads * length**2
    return 3 * 2 * total


def peak_flops(device: torch.device) -> float | None:
    """The card's dense bfloat16 peak, None where it is not known."""
    if device.type != "cuda":
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((1e12 * PEAKS[word] for word in words if word in PEAKS), None)


def measure(device: torch.device, size: Size, attention: str) -> dict[str, Any]:
    """Every figure by name."""
    torch.set_float32_matmul_precision("highest")
    with tempfile.TemporaryDirectory() as name:
        large, small = Path(name) / "large", Path(name) / "small"
        figures: dict[str, Any] = {"parameters": make_folder(large, size.shape)}
        make_folder(small, SHAPE if size is LARGE else SMALL_SHAPE)
        check = Check(large, device, size, attention)
        for part in (check.packing, check.update, check.mismatch, lambda: check.equality(small)):
            begin = time.perf_counter()
            figures |= part()
            print(f"{time.perf_counter() - begin:.0f} s", *list(figures)[-1:], file=sys.stderr, flush=True)
    return figures


def misses(figures: dict[str, Any]) -> list[str]:
    """The figures out of bounds; one that is no number is."""
    return [name for name, most in BOUNDS.items() if name in figures and not figures[name] <= most]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager", "flash_attention_2"))
    parser.add_argument("--small", action="store_true", help="a tiny model and little work")
    parser.add_argument("--out", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("no cuda device here; --device cpu --small runs all of it on the CPU")
    begin = time.perf_counter()
    figures = measure(device, SMALL if arguments.small else LARGE, arguments.attention)
    figures["seconds in all"] = time.perf_counter() - begin
    missed = misses(figures)
    shown = [
        (name, f"{value:.4g}", f"<= {BOUNDS[name]:g}" if name in BOUNDS else "", "missed" if name in missed else "")
        for name, value in figures.items()
    ]
    print_table("GPU check", ("figure", "value", "bound", ""), shown)
    out = arguments.out or (None if arguments.small else RESULT)
    if out:
        card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        found = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": " ".join(["python", "benchmarks/gpu_check.py", *sys.argv[1:]]),
            "machine": {"device": card, "cores": os.cpu_count()}
            | {name: version(name) for name in ("torch", "transformers")},
            "figures": figures,
            "missed": missed,
        }
        out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
