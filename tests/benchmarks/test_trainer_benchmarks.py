"""benchmarks/trainer.py and gpu_check.py: both sides get the same rows, unequal work is refused, and both run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of benchmarks/ by name; they import one another as the scripts they are."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=900, check=False
    )


def test_trl_is_given_the_rows_that_ours_trains_on(module, tmp_path):
    work, update, trainer = module("crafter_work"), module("trainer_update"), module("trainer")
    work.make_folder(tmp_path, trainer.SMALL_SHAPE)
    network = work.make_network(tmp_path)
    rows, firsts = work.ragged_rows(network, 4, 3)
    assert len({len(row.input_ids) for row in rows}) > 1
    batch = update.trl_batch(rows, firsts, pad=0)
    for index, row in enumerate(rows):
        prompt = batch["prompt_ids"][index][batch["prompt_mask"][index].bool()]
        after = batch["completion_ids"][index][batch["completion_mask"][index].bool()]
        assert (*prompt.tolist(), *after.tolist()) == (*row.input_ids, row.targets[-1])
        chosen = batch["completion_ids"][index][(batch["completion_mask"] * batch["tool_mask"])[index].bool()]
        assert tuple(chosen.tolist()) == row.targets
        assert prompt.tolist() == list(network.renderer.prompt_ids(_asked(work, network, index)))
    assert batch["num_items_in_batch"] == sum(len(row.targets) for row in rows)
    scored = update.scored(network, rows)
    assert [row.advantages for row in scored] == [row.advantages for row in rows]
    assert all(value < 0 for row in scored for value in row.sampler_logprobs)


def _asked(work: Any, network: Any, index: int) -> tuple[dict[str, Any], ...]:
    return work.play_random(network.spec, 1, 4, 3)[index].decisions[0].messages


def test_unequal_work_is_not_timed(module, tmp_path):
    trainer = module("trainer")
    gradient = {(2,): [torch.tensor([1.0, -2.0])], (1,): [torch.tensor([0.5])]}
    same = {"ours": {"loss": 0.25}, "trl": {"loss": 0.25}}
    torch.save(gradient, tmp_path / "gradient-ours.pt")
    torch.save(gradient, tmp_path / "gradient-trl.pt")
    assert trainer.compare(tmp_path, same)["gradient, relative difference"] == 0
    with pytest.raises(SystemExit, match="do not compute the same"):
        trainer.compare(tmp_path, {"ours": {"loss": 0.25}, "trl": {"loss": 0.2501}})
    torch.save(gradient | {(1,): [torch.tensor([0.501])]}, tmp_path / "gradient-trl.pt")
    with pytest.raises(SystemExit, match="do not compute the same"):
        trainer.compare(tmp_path, same)


def test_a_figure_that_is_no_number_is_out_of_bounds(module):
    check = module("gpu_check")
    assert check.misses({"mismatch: KL a token": float("nan"), "packing, float32: relative difference": 1e-6}) == [
        "mismatch: KL a token"
    ]


@pytest.mark.long
@pytest.mark.parametrize("script", ["trainer.py", "gpu_check.py"])
def test_the_small_run_ends_well(script, tmp_path):
    device = ["--device", "cpu"] if script == "gpu_check.py" else []
    done = run(BENCHMARKS / script, "--small", *device, "--out", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["missed"] == []
    assert {"command", "machine", "figures"} <= found.keys()
    numbers = [value for value in found["figures"].values() if not isinstance(value, list)]
    assert all(isinstance(value, int | float) for value in numbers)


def test_without_a_card_it_says_what_to_do_instead():
    if torch.cuda.is_available():
        pytest.skip("a card is at hand")
    done = run(BENCHMARKS / "gpu_check.py")
    assert done.returncode == 2
    assert "--device cpu --small" in done.stderr
