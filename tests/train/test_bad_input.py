"""What cannot be trained, through the command itself: one sentence that names it, the exit code, and nothing lost."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig
from transformers.models.bert import BertLMHeadModel

from task_app.cli import main
from task_app.train import grpo, load, sft
from task_app.train.sampler import Sampler
from tests.train.tiny_models import TEMPLATES, byte_tokenizer, write_model

WITHOUT_TOOLS = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|close|>{% endfor %}assistant: "


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Models with room for a decision of Crafter, each with one thing wrong."""
    root = tmp_path_factory.mktemp("models")
    write_model(root / "good", "qwen3", max_position_embeddings=6000)
    write_model(root / "short", "qwen3")
    write_model(root / "untemplated", "qwen3", template=None, max_position_embeddings=6000)
    write_model(root / "toolless", "qwen3", template=WITHOUT_TOOLS, max_position_embeddings=6000)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(**sizes, vocab_size=262, max_position_embeddings=6000, initializer_range=0.5)
    BertLMHeadModel(config).save_pretrained(root / "encoder")
    byte_tokenizer(TEMPLATES["qwen3"]).save_pretrained(root / "encoder")
    return root


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`task-app train` in this process: its exit code and the last line of standard error."""
    small = {
        "model.hidden_size": 16, "model.heads": 2, "model.kv_heads": 2, "model.intermediate_size": 16,
        "model.max_prompt_tokens": 5500, "model.max_new_tokens": 200, "rollout.seeds": "0:4", "rollout.group_size": 2,
        "rollout.max_decisions": 2, "rollout.trace_db": tmp_path / "t.db", "training.updates": 1,
        "training.groups_per_update": 2, "training.run_dir": tmp_path / "runs/rl", "sft.run_dir": tmp_path / "runs/sft",
        "sft.epochs": 1, "eval.seeds": "1000000:1000001",
    }  # fmt: skip

    def run(kind: str = "rl", **changes) -> tuple[int, str]:
        settings = small | {key.replace("__", "."): value for key, value in changes.items()}
        options = [f"--{key}={value}" for key, value in settings.items()]
        monkeypatch.setattr(sys, "argv", ["task-app", "train", "--type", kind, *options])
        code = 0
        try:
            main()
        except SystemExit as over:
            code = int(over.code or 0)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return code, (error.splitlines() or [""])[-1]

    return run


@pytest.fixture
def data(tmp_path) -> Path:
    """Two decisions to imitate."""
    call = {"name": "interact_many", "arguments": json.dumps({"actions": ["do"]})}
    answer = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": call}]}
    line = json.dumps({"messages": [{"role": "user", "content": "health 9"}, answer]})
    path = tmp_path / "data.jsonl"
    path.write_text(f"{line}\n{line}\n")
    return path


@pytest.mark.parametrize(
    ("model", "changes", "code", "said"),
    [
        ("nowhere", {}, 2, "cannot be used: it is not found or no model: there is no such folder"),
        ("encoder", {}, 1, "looks at later tokens, so it is not causal"),
        ("untemplated", {}, 2, "its tokenizer has no chat template"),
        ("toolless", {}, 2, "its chat template leaves out the tools"),
        ("short", {}, 2, "model.max_prompt_tokens (5500) and model.max_new_tokens (200) are more than the 1024"),
        ("good", {"model__max_prompt_tokens": 700}, 1, "tokens, model.max_prompt_tokens is 700; raise it"),
    ],
)
def test_models_that_do_not_suit(command, models, model, changes, code, said):
    found, error = command(model__path=models / model, **changes)
    assert found == code
    assert error.startswith("error: ")
    assert said in error


def test_a_line_of_data_is_named(command, data, models):
    lines = data.read_text().splitlines()
    bad = json.loads(lines[1])
    bad["messages"][0]["content"] = 5
    data.write_text("\n".join([lines[0], json.dumps(bad)]))
    for path in ("", models / "good"):
        code, error = command("sft", sft__dataset=data, model__path=path)
        assert code == 1
        assert f"{data} line 2: messages.0.content" in error
    assert not (data.parent / "runs/sft/metrics.jsonl").exists()


def test_checkpoints_of_something_else(command, models, data, tmp_path):
    assert command()[0] == 0
    code, error = command(training__run_dir=tmp_path / "b", training__init_from=tmp_path / "runs/rl",
                          model__path=models / "good")  # fmt: skip
    assert code == 1
    assert "was trained with grammar_hash" in error
    other = {"model__hidden_size": 32, "training__updates": 2}
    code, error = command(**other)
    assert code == 2
    assert "holds a run with other settings: model.hidden_size" in error
    code, error = command(**other, training__allow_changed='["model.hidden_size"]')
    assert code == 1
    assert "weights of" in error
    assert "size mismatch" in error
    assert len(error) < 600
    code, error = command("sft", sft__dataset=data, sft__run_dir=tmp_path / "runs/rl")
    assert code == 2
    assert "holds a run of type rl; use another sft.run_dir" in error
    assert command(training__updates=2)[0] == 0, "none of these did anything to the run"


def test_a_grammar_the_trainer_does_not_have(command, tmp_path):
    assert command()[0] == 0
    path = tmp_path / "runs/rl/checkpoints/u000001/state.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | {"grammar_hash": "f" * 16}))
    code, error = command(training__updates=2)
    assert code == 1
    assert f"was trained with grammar_hash {'f' * 16}, this task has" in error
    path.write_text(whole)
    assert command(training__updates=2)[0] == 0


def exhausted(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")


@pytest.mark.parametrize(
    ("owner", "name", "kind", "advice"),
    [
        (load.embedded, "build_network", "rl", "lower the size of the model"),
        (Sampler, "_run", "rl", "lower rollout.group_size or training.groups_per_update"),
        (torch.Tensor, "backward", "sft", "lower training.micro_batch_tokens"),
        (torch.optim.AdamW, "step", "sft", "lower training.micro_batch_tokens"),
    ],
)
def test_out_of_memory_says_what_to_lower(command, data, monkeypatch, owner, name, kind, advice):
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, exhausted)
        code, error = command(kind, sft__dataset=data)
    assert code == 1
    assert f"out of memory: {advice}" in error
    assert command(kind, sft__dataset=data)[0] == 0


@pytest.mark.parametrize("kind", ["rl", "sft"])
@pytest.mark.parametrize("chat", [False, True], ids=["embedded", "chat"])
def test_weights_that_are_no_numbers(command, data, models, monkeypatch, kind, chat):
    def spoilt(network, init_from):
        for value in network.parameters():
            value.data.fill_(float("nan"))

    monkeypatch.setattr(grpo, "initialise", spoilt)
    monkeypatch.setattr(sft, "initialise", spoilt)
    code, error = command(kind, sft__dataset=data, model__path=models / "good" if chat else "")
    assert code == 1
    said = {"rl": "log-probabilities are not finite", "sft": f"step 1 stopped: .* is nan.* lines 1, 2 of {data}"}[kind]
    assert re.search(said, error)


def test_a_folder_that_lost_its_log(command, tmp_path):
    assert command()[0] == 0
    log = tmp_path / "runs/rl/metrics.jsonl"
    kept = log.read_text()
    for text, said in (("{}\n", "line 1 is no line of a run's log"), ("", "does not say how its run started")):
        log.write_text(text)
        code, error = command(training__updates=2)
        assert code == 1
        assert said in error
    log.write_text(kept)
    assert command(training__updates=2)[0] == 0
    shutil.rmtree(tmp_path / "runs/rl/checkpoints/u000002")
    code, error = command(training__updates=2)
    assert code == 1
    assert "u000002 is not a checkpoint" in error
