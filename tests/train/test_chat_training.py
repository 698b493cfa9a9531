"""RL, imitation, resuming, playing and exporting with real models, whole and by adapters."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError, TrainError
from task_app.rollout import Limits, plan_groups, play
from task_app.store import TraceStore
from task_app.train.chat_model import causal
from task_app.train.checkpoint import load_policy
from task_app.train.checkpoint_folder import find_checkpoint, read_state
from task_app.train.export import export_checkpoint
from task_app.train.grpo import run_training
from task_app.train.load import build_network
from task_app.train.metrics import MetricsLog
from task_app.train.policy import EmbeddedPolicy
from task_app.train.sft import run_sft
from tests.train.chat_fixtures import SYSTEM, asks, chat, chat_line, folders, model_settings, tokens_of
from tests.train.tiny_models import SHAPES, write_model

KINDS = [(shape, rank) for shape in SHAPES for rank in (0, 4)]
NAMES = [f"{shape}-{'lora' if rank else 'full'}" for shape, rank in KINDS]


@pytest.fixture
def chat_config(config_in, tmp_path, folders):
    """A config of a few small updates; `[model]` keys as `model__key`."""

    def make(shape, rank=0, name="run", **changes):
        model = model_settings(folders[shape], lora_rank=rank)
        settings = {f"model__{key}": value for key, value in model.items()}
        settings |= {"rollout__group_size": 4, "training__updates": 2, "eval__seeds": "1000000:1000002"}
        return config_in(tmp_path / name, **(settings | changes))

    return make


def train(config, spec):
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store)


def weight_file(checkpoint, rank):
    return checkpoint / ("adapter_model.safetensors" if rank else "model.safetensors")


def updates(result):
    lines = [line for line in MetricsLog(result.metrics).lines() if line["kind"] == "update"]
    return [{key: value for key, value in line.items() if key != "machine"} for line in lines]


@pytest.mark.parametrize(("shape", "rank"), KINDS, ids=NAMES)
def test_rl_trains_resumes_to_the_same_bits_and_plays(chat_config, chat_line, asks, shape, rank):
    whole = train(chat_config(shape, rank, "whole"), chat_line)
    train(chat_config(shape, rank, "parts", training__updates=1), chat_line)
    parts = train(chat_config(shape, rank, "parts"), chat_line)
    assert weight_file(parts.checkpoint, rank).read_bytes() == weight_file(whole.checkpoint, rank).read_bytes()
    assert updates(parts) == updates(whole)
    for line in updates(whole):
        assert line["mismatch/logp_max"] < 1e-5
        assert line["train/skipped"] == 0.0
        assert line["train/merge_rate"] == 0.0
    first = whole.run_dir / "checkpoints" / "u000000"
    before, after = (load_file(weight_file(path, rank)) for path in (first, whole.checkpoint))
    assert {value.dtype for value in after.values()} == {torch.float32}
    assert any(not torch.equal(before[name], after[name]) for name in after)
    assert weight_file(whole.checkpoint, rank).stat().st_size < 10**6
    policy = load_policy(whole.checkpoint, chat_line)
    assert policy.version == "u2"
    tokens = tokens_of(policy.decide([asks("place 0")])[0])
    assert (tokens.renderer_hash, tokens.grammar_hash) == (read_state(whole.checkpoint)["renderer_hash"], "")


def test_history_merges_decisions_into_rows(chat_config, chat_line):
    history = {"model__history": "full", "model__max_prompt_tokens": 900}
    merged = train(chat_config("qwen3", 0, "a", **history), chat_line)
    assert all(line["train/merge_rate"] > 0.4 for line in updates(merged))
    assert all(line["mismatch/logp_max"] < 1e-5 for line in updates(merged))


def test_thinking_cut_out_of_history_is_honest_about_not_merging(chat_config, chat_line):
    settings = {"model__history": "full", "model__keep_thinking": False, "model__max_prompt_tokens": 900}
    result = train(chat_config("qwen3", 0, **settings), chat_line)
    assert all(line["mismatch/logp_max"] < 1e-5 for line in updates(result))


def test_an_episode_that_outgrows_its_prompt_is_truncated_and_counts(chat, chat_line):
    from task_app.core.types import StepRewardFlags

    network = chat(history="full", max_prompt_tokens=270)
    plans = plan_groups(range(2), 2, run_id="r")
    episodes = play(plans, chat_line, EmbeddedPolicy(network), Limits(9), StepRewardFlags(), lambda episode: None)
    short = [episode for episode in episodes if episode.cause == "context"]
    assert short
    for episode in short:
        assert (episode.status, episode.truncated) == ("truncated", True)
        assert 1 <= len(episode.decisions) < 9
        assert episode.outcome is not None


# -- imitation ---------------------------------------------------------------------------------------


@pytest.fixture
def data(chat_line, tmp_path):
    """The call to walk right, wherever one is."""
    path = tmp_path / "data.jsonl"
    answer = chat_line.app.say(("right",)).to_wire()
    lines = []
    for number in range(8):
        user = {"role": "user", "content": f"place {number % 4}, turn {number % 3}"}
        line = {"messages": [SYSTEM, user, answer], "tools": list(chat_line.app.tools(chat_line.options))}
        lines.append(json.dumps(line | {"metadata": {"prompt_hash": chat_line.prompt_hash}}) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture
def sft_config(chat_config, data, tmp_path):
    def make(shape, rank=0, name="sft", **changes):
        settings = {
            "sft__dataset": str(data),
            "sft__validation": str(data),
            "sft__batch_rows": 4,
            "sft__epochs": 5,
            "sft__learning_rate": 0.03,
            "sft__warmup_steps": 2,
            "sft__validate_every": 5,
            "sft__run_dir": str(tmp_path / name),
            "model__max_new_tokens": 80,
        }
        return chat_config(shape, rank, name, **(settings | changes))

    return make


@pytest.mark.parametrize(("shape", "rank"), KINDS, ids=NAMES)
def test_imitation_learns_the_call_and_rl_begins_from_it(sft_config, chat_line, asks, shape, rank):
    config = sft_config(shape, rank)
    result = run_sft(config, chat_line)
    log = [json.loads(line) for line in (config.sft.run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log if line["kind"] == "validation"]
    assert losses[-1] < 0.9 * losses[0]
    state = read_state(result.checkpoint)
    assert state["kind"] == "sft"
    rl = sft_config(shape, rank, "rl", training__init_from=str(config.sft.run_dir), rollout__max_decisions=1)
    with TraceStore.open(rl.rollout.trace_db) as store:
        begun = run_training(rl.model_copy(update={"training": rl.training.model_copy(update={"updates": 1})}),
                             chat_line, store)  # fmt: skip
    first = begun.run_dir / "checkpoints" / "u000000"
    taken, given = (load_file(weight_file(path, rank)) for path in (first, result.checkpoint))
    assert all(torch.equal(taken[name], given[name]) for name in given)


def test_what_is_imitated_is_said(sft_config, chat_line, asks):
    run_sft(sft_config("llama", 0, sft__epochs=20, sft__learning_rate=0.02), chat_line)
    policy = load_policy(sft_config("llama").sft.run_dir, chat_line, temperature=0.1)
    message = policy.decide([asks("place 1, turn 2")])[0].message
    assert chat_line.app.parse(message, chat_line.options) == ("right",)


def test_data_that_cannot_be_said_is_named_by_line(sft_config, chat_line, data):
    with pytest.raises(TrainError, match=r"data\.jsonl line 1: .*cut_off"):
        run_sft(sft_config("qwen3", model__max_new_tokens=20), chat_line)
    lines = data.read_text().splitlines()
    example = json.loads(lines[1])
    example["tools"] = [{"type": "function", "function": {"name": "fly"}}]
    data.write_text("\n".join([lines[0], json.dumps(example)]))
    with pytest.raises(TrainError, match="line 2: tools"):
        run_sft(sft_config("qwen3"), chat_line)


# -- checkpoints that do not belong --------------------------------------------------------------------


def test_checkpoints_are_refused_where_they_do_not_belong(chat_config, chat_line, folders, tmp_path):
    adapters = train(chat_config("qwen3", 4, "lora", training__updates=1), chat_line).run_dir
    whole = train(chat_config("qwen3", 0, "full", training__updates=1), chat_line).run_dir
    for init, rank, shape, problem in (
        (adapters, 0, "qwen3", "holds adapters, and model.lora_rank is 0"),
        (whole, 4, "qwen3", "holds whole weights; to train adapters"),
        (adapters, 2, "qwen3", "adapters have another form"),
        (adapters, 4, "llama", "was trained with renderer_hash"),
    ):
        config = chat_config(shape, rank, f"bad-{rank}-{shape}", training__init_from=str(init))
        with pytest.raises(TrainError, match=problem):
            train(config, chat_line)
    other = write_model(tmp_path / "other", "qwen3", initializer_range=0.1)
    config = chat_config("qwen3", 4, "bad", training__init_from=str(adapters), model__path=str(other))
    with pytest.raises(TrainError, match=r"base_hash .* the same base model"):
        train(config, chat_line)


# -- exporting -----------------------------------------------------------------------------------------


def logits_of(model, ids=(1, 2, 3, 4, 5)):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_weights_are_exported_as_transformers_reads_them(chat_config, chat_line, tmp_path, shape):
    result = train(chat_config(shape, 0, training__updates=1), chat_line)
    export_checkpoint(result.checkpoint, tmp_path / "out")
    network: Any = load_policy(result.checkpoint, chat_line)._network
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits_of(exported), logits_of(causal(network.model)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == network.tokenizer.chat_template
    assert not {"optimizer.pt", "state.json"} & {file.name for file in (tmp_path / "out").iterdir()}
    again = build_network(chat_line, ModelSection(**model_settings(tmp_path / "out")), 0)
    assert again.renderer.hash == network.renderer.hash


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # `peft` reads it by its old name
@pytest.mark.parametrize("shape", SHAPES)
def test_adapters_are_exported_as_they_are_or_merged(chat_config, chat_line, tmp_path, shape):
    result = train(chat_config(shape, 4, training__updates=1, training__learning_rate=0.05), chat_line)
    expected = logits_of(load_policy(result.checkpoint, chat_line)._network.model)
    export_checkpoint(result.checkpoint, tmp_path / "adapter")
    assert torch.allclose(logits_of(AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")), expected)
    export_checkpoint(result.checkpoint, tmp_path / "merged", merge=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits_of(merged), expected, atol=1e-4)
    assert not any("lora" in name for name in merged.state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template


def test_the_embedded_model_is_exported_too(config_in, line, tmp_path):
    result = train(config_in(tmp_path, training__updates=1), line)
    export_checkpoint(result.checkpoint, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    network: Any = load_policy(result.checkpoint, line)._network
    ids = tokenizer("place 1 turn 2", add_special_tokens=False)["input_ids"]
    assert ids == network.renderer.tokenizer.encode("place 1 turn 2")
    assert torch.equal(logits_of(model, ids), logits_of(network.model, ids))


def test_an_export_that_cannot_be_made_leaves_nothing(chat_config, chat_line, tmp_path):
    result = train(chat_config("qwen3", 0, training__updates=1), chat_line)
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="--merge is for adapters"):
        export_checkpoint(result.run_dir, out, merge=True)
    with pytest.raises(TrainError, match="not a checkpoint"):
        export_checkpoint(tmp_path / "nowhere", out)
    (tmp_path / "file").write_text("x")
    with pytest.raises(TrainError, match="could not be written"):
        export_checkpoint(result.checkpoint, tmp_path / "file" / "out")
    assert not out.exists()
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_checkpoint(result.run_dir, out)
    assert [file.name for file in out.iterdir()] == ["mine"]


def test_a_run_folder_means_its_best_checkpoint(chat_config, chat_line, tmp_path):
    result = train(chat_config("qwen3", 0, training__updates=1), chat_line)
    assert export_checkpoint(result.run_dir, tmp_path / "out") == find_checkpoint(result.run_dir)


def test_adapters_are_not_merged_into_other_weights(chat_config, chat_line, tmp_path):
    folder = write_model(tmp_path / "base", "qwen3")
    result = train(chat_config("qwen3", 4, training__updates=1, model__path=str(folder)), chat_line)
    write_model(folder, "qwen3", initializer_range=0.1)
    with pytest.raises(TrainError, match="trained on other weights"):
        export_checkpoint(result.checkpoint, tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()


def test_the_command_exports_and_names_what_is_wrong(chat_config, chat_line, tmp_path):
    result = train(chat_config("llama", 2, training__updates=1), chat_line)
    command = [
        sys.executable,
        "-m",
        "task_app",
        "checkpoint",
        "export",
        result.checkpoint,
        "--output",
        tmp_path / "out",
    ]
    done = subprocess.run([*command, "--merge"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "llama"
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_checkpoint(result.checkpoint, tmp_path / "out")
