"""One side of the update benchmark, in a process of its own: this project's learner, or TRL's `GRPOTrainer`.

    python benchmarks/trainer_update.py ours|trl FOLDER ROWS MOST THREADS      (trainer.py starts it)

Each line on standard input asks for one update; the answer is one line of JSON with its seconds, the last one with the
process's memory. The gradient of the first update is left in FOLDER. Both sides hold the same weights and rows and make
the same update: clipped objective with ratio 1 (old log-probabilities are the trainer's own), the same advantage on
every chosen token, the sum over tokens divided by rows × LENGTH, gradient norm at most 1, AdamW, one step. TRL is fed
where its own generation and rewards would end (`_generate_and_score_completions`); all that follows, from shuffling and
splitting to the optimiser's step, is TRL's, in its own training loop. Gradient checkpointing and bfloat16, which TRL
turns on, are off on both sides. Micro-batches have the same budget of tokens: TRL's rows × the width it pads them to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from crafter_work import make_network, ragged_rows
from memory import reset_peak, status
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from task_app.config.training import ObjectiveSection, TrainingSection
from task_app.train.learner import Learner
from task_app.train.network import Network
from task_app.train.rows import Row, make_micro_batches
from task_app.train.score import score

LENGTH = 1000
"""Tokens a row counts as in the normaliser."""
LEARNING_RATE = 1e-9
"""So small that every update is the first one again."""
TRL_ROWS = 4
"""Rows of TRL's micro-batch, and members of its groups."""


def widths(rows: Sequence[Row], firsts: Sequence[int]) -> tuple[int, int]:
    """What TRL pads to: the longest first prompt, and the most tokens after one."""
    after = max(len(row.input_ids) + 1 - first for row, first in zip(rows, firsts, strict=True))
    return max(firsts), after


def budget(rows: Sequence[Row], firsts: Sequence[int]) -> int:
    """Tokens of TRL's micro-batch, which ours gets too."""
    return TRL_ROWS * sum(widths(rows, firsts))


def keep_first_gradient(path: Path) -> None:
    """Leave the gradient an optimiser first steps with in a file: by shape, since TRL groups parameters otherwise."""

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not path.exists():
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for value in (value for group in optimizer.param_groups for value in group["params"]):
                by_shape.setdefault(tuple(value.shape), []).append(value.grad)
            torch.save(by_shape, path)

    register_optimizer_step_pre_hook(keep)


# -- ours ------------------------------------------------------------------------------------------


def ours(folder: Path, count: int, most: int, serve: Callable[[Callable[[], float]], None]) -> None:
    """Make updates with this project's learner."""
    network = make_network(folder)
    rows, firsts = ragged_rows(network, count, most)
    rows = scored(network, rows)
    settings = TrainingSection(
        learning_rate=LEARNING_RATE,
        micro_batch_tokens=budget(rows, firsts),
        objective=ObjectiveSection(normaliser_constant=LENGTH),
    )
    learner = Learner(network, settings, 1.0)

    def update() -> float:
        loss = learner.update(rows, len(rows))["train/loss"]
        assert loss is not None
        return loss

    serve(update)


def scored(network: Network, rows: Sequence[Row]) -> list[Row]:
    """The rows with the network's own log-probabilities, as if it had sampled them."""
    done = []
    with torch.no_grad():
        for row in rows:
            (batch,) = make_micro_batches([row], 1, network.device, network.forward_tokens)
            values = score(network, network.model, batch, 1.0).logp_N.tolist()
            done.append(type(row)(*_fields(row, sampler_logprobs=tuple(values))))
    return done


def _fields(row: Row, **changes: Any) -> Iterator[Any]:
    for name in row.__slots__:
        yield changes.get(name, getattr(row, name))


# -- TRL -------------------------------------------------------------------------------------------


def trl_batch(rows: Sequence[Row], firsts: Sequence[int], pad: int) -> dict[str, Tensor]:
    """What TRL's generation would hand to its update: prompts padded on the left, what follows on the right."""
    prompt, after = widths(rows, firsts)
    shape = (len(rows), after)
    prompt_ids, prompt_mask = (torch.full((len(rows), prompt), value) for value in (pad, 0))
    completion_ids, completion_mask, tool_mask = (torch.full(shape, value) for value in (pad, 0, 0))
    for index, (row, first) in enumerate(zip(rows, firsts, strict=True)):
        ids = torch.tensor([*row.input_ids, row.targets[-1]])
        prompt_ids[index, prompt - first :], prompt_mask[index, prompt - first :] = ids[:first], 1
        length = len(ids) - first
        completion_ids[index, :length], completion_mask[index, :length] = ids[first:], 1
        tool_mask[index, [position + 1 - first for position in row.positions]] = 1
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "advantages": torch.tensor([row.advantages[0] for row in rows]),
        "num_items_in_batch": tool_mask.sum(),
    }


def trl(folder: Path, count: int, most: int, serve: Callable[[Callable[[], float]], None]) -> None:
    """Make updates with TRL's trainer, in its own loop, which asks before each and tells after it."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    network = make_network(folder)  # for the rows alone
    rows, firsts = ragged_rows(network, count, most)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    batch = trl_batch(rows, firsts, int(tokenizer.pad_token_id))
    del network

    class Fed(GRPOTrainer):
        """TRL's trainer with the rows where its generation would be; `loss` is the last update's."""

        loss = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
            return dict(batch)

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
            loss = super().training_step(model, inputs, num_items_in_batch)
            self.loss += float(loss)
            return loss

    class Asked(TrainerCallback):
        """Turns TRL's loop inside out: `serve` runs in it, one update at a time."""

        def __init__(self) -> None:
            self.wanted = commands()

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not next(self.wanted, None):
                told({"end": memory()})
                sys.exit(0)
            trainer.loss = 0.0
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            told({"seconds": time.perf_counter() - self.began, "loss": trainer.loss})

    options = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=TRL_ROWS,
        gradient_accumulation_steps=count // TRL_ROWS,
        num_generations=TRL_ROWS,
        max_completion_length=LENGTH,
        loss_type="dr_grpo",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        max_steps=10_000,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer: Any = Fed(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=options,
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * count),
        processing_class=tokenizer,
        callbacks=[Asked()],
    )
    _BASE[0] = reset_peak()
    trainer.train()


# -- what the two share ----------------------------------------------------------------------------

_BASE = [0.0]


def memory() -> dict[str, float]:
    """MB before the first update, and the most since."""
    return {"base_mb": _BASE[0], "peak_mb": status("VmHWM")}


def commands() -> Iterator[str]:
    """Lines of standard input until its end."""
    yield from iter(sys.stdin.readline, "")


def told(value: dict[str, Any]) -> None:
    """One answer."""
    os.write(_ANSWERS, (json.dumps(value) + "\n").encode())


def serve(update: Callable[[], float]) -> None:
    """Make an update for each command."""
    _BASE[0] = reset_peak()
    for _ in commands():
        begin = time.perf_counter()
        loss = update()
        told({"seconds": time.perf_counter() - begin, "loss": loss})
    told({"end": memory()})


_ANSWERS = os.dup(1)


def main() -> None:
    side, folder, count, most, threads = sys.argv[1:]
    os.dup2(2, 1)  # whatever a library prints is no answer
    torch.set_num_threads(int(threads))
    keep_first_gradient(Path(folder) / f"gradient-{side}.pt")
    (ours if side == "ours" else trl)(Path(folder), int(count), int(most), serve)


if __name__ == "__main__":
    main()
