"""Processes that train the toys together; `torchrun` starts it, and every case is a fork of each process.

    torchrun --nproc-per-node 2 tests/train/ranked_runs.py FOLDER PORT CASE…

So `torchrun` and the imports are paid for once. A case has its own meeting port, counted up from PORT, and leaves the
process's exit code and what it printed in FOLDER/CASE/rank<N>.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from task_app.config import Config
from task_app.core.errors import TaskAppError
from task_app.core.task import TaskSpec
from task_app.store import TraceStore
from task_app.train.follower import follow, must_follow
from task_app.train.grpo import run_training
from task_app.train.learner import Learner
from task_app.train.sampler import Sampler
from task_app.train.sft import run_sft
from task_app.train.shards import ShardedWeights
from tests.train.chat_toy import ChatLineApp
from tests.train.conftest import LineApp, LineOptions, make_config

RANKS, TIMEOUT_S = 2, 2.0
ROW_BY_ROW = 64
"""Tokens of a micro-batch that no two rows of a speaking model share."""
_SPEECH = {
    "model__max_prompt_tokens": 600,
    "model__max_new_tokens": 6,
    "rollout__group_size": 5,
    # AdamW divides a gradient by its own size, be it mere rounding: such weights differ by a share of the rate.
    "training__learning_rate": 1e-4,
}

_STEPS = {"training__optimizer_steps_per_update": 2, "training__objective__kl_coefficient": 0.1}
_ADAPTERS = {"model__path": "models/llama", "model__lora_rank": 4, "model__gradient_checkpointing": True, **_SPEECH}

CASES: dict[str, dict[str, Any]] = {
    "embedded": {"training__credit__scale": "batch_rms", "training__micro_batch_tokens": 200, "eval__env_steps": 4},
    "full": {
        "model__path": "models/qwen3",
        "training__objective__normaliser": "tokens",
        "training__micro_batch_tokens": ROW_BY_ROW,
        "training__groups_per_update": 1,
        **_SPEECH,
    },
    "lora": {"training__objective__kl_coefficient": 0.1, **_ADAPTERS},
    "resumed-together": _STEPS,
    "resumed-alone": {**_STEPS, "training__updates": 1},
    "sft": {},
    "sft-lora": {**_ADAPTERS, "training__micro_batch_tokens": ROW_BY_ROW, "model__max_new_tokens": 90},
}
"""Settings of each case that should end well. One process begins, or ends, those that resume; `sft` is supervised."""

FAULTS = ("killed", "hanging", "raising", "not-finite", "disk-full")


def config_of(folder: Path, case: str, **changes: Any) -> Config:
    """Two updates on two groups, with a checkpoint after each; or two passes over the data."""
    settings: dict[str, Any] = {"training__updates": 2, "training__checkpoint_every": 1}
    settings |= {"training__rank_timeout_s": TIMEOUT_S if case == "hanging" else 120.0}
    settings |= {"sft__run_dir": str(folder / case / "run"), "sft__dataset": str(folder / data_of(case))}
    settings |= {"sft__validation": str(folder / data_of(case)), "sft__batch_rows": 6, "sft__validate_every": 2}
    settings |= {"sft__warmup_steps": 2, "training__learning_rate": 1e-3, "sft__learning_rate": 1e-3}
    settings |= CASES.get(case, {}) | changes
    if "model__path" in settings:
        settings["model__path"] = str(folder / settings["model__path"])
    return make_config(folder / case, **settings)


def data_of(case: str) -> str:
    """The data set of a supervised case."""
    return "speech.jsonl" if "lora" in case else "words.jsonl"


def train(folder: Path, case: str, **changes: Any) -> None:
    """The case in this process, as the leader or alone."""
    config = config_of(folder, case, **changes)
    app = ChatLineApp() if config.model.path else LineApp()
    spec = TaskSpec(app, LineOptions())
    if case.startswith("sft"):
        run_sft(config, spec)
        return
    with TraceStore.open(config.rollout.trace_db) as store:
        run_training(config, spec, store)


def break_here(case: str) -> None:
    """Make the second process fail as the case says, or both compute something that is not a number."""
    assert ShardedWeights  # imported before the forks, as all that is large
    if case == "not-finite":
        _replace(Learner, "_backward", lambda *arguments: torch.full((1,), torch.nan))
        _replace(torch.nn.utils, "get_total_norm", lambda gradients: torch.tensor(torch.nan))
    elif case == "disk-full" and not must_follow():
        _replace(torch, "save", _full)
    elif must_follow():
        breaks = {
            "killed": (Learner, "_backward", lambda *_: os.kill(os.getpid(), signal.SIGKILL)),
            "hanging": (Learner, "_backward", lambda *_: time.sleep(3 * TIMEOUT_S)),
            "raising": (Sampler, "_check_length", _unreadable),
        }
        if case in breaks:
            _replace(*breaks[case])


def _replace(owner: Any, name: str, value: Callable[..., Any]) -> None:
    setattr(owner, name, value)


def _full(*arguments: Any) -> None:
    raise OSError("no space left on device")


def _unreadable(*arguments: Any) -> None:
    from task_app.core.errors import TrainError

    raise TrainError("this prompt cannot be read")


def in_a_fork(folder: Path, case: str, port: int) -> None:
    """Run a case in a child and note how it ended."""
    place = folder / case
    place.mkdir(exist_ok=True)
    began = time.monotonic()
    child = os.fork()
    if not child:
        rank = os.environ["RANK"]
        out = os.open(place / f"rank{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        os._exit(_code(folder, case))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = {"code": code, "seconds": time.monotonic() - began}
    (place / f"rank{os.environ['RANK']}.json").write_text(json.dumps(ended))


def _code(folder: Path, case: str) -> int:
    try:
        break_here(case)
        follow() if must_follow() else train(folder, case)
    except TaskAppError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    except BaseException as error:
        import traceback

        traceback.print_exc()
        print(f"unexpected: {error!r}", flush=True)
        return 99
    return 0


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    for number, case in enumerate(sys.argv[3:]):
        in_a_fork(folder, case, port + number)


if __name__ == "__main__":
    main()
