"""Models of `transformers` as networks: rows kept apart, the model's own numbers, adapters, and what is refused."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.bert import BertLMHeadModel

from task_app.config.training import ModelSection, TrainingSection
from task_app.core.errors import ConfigError, TrainError
from task_app.train import chat_network, embedded, row_attention
from task_app.train.chat_model import causal
from task_app.train.chat_network import check_network
from task_app.train.learner import Learner
from task_app.train.load import build_network
from task_app.train.network import memory_guard
from task_app.train.packing import pack, pad
from task_app.train.rows import Row, make_micro_batches
from task_app.train.score import score
from tests.train.chat_fixtures import asks, chat, chat_line, folders, model_settings
from tests.train.tiny_models import SHAPES, TEMPLATES, byte_tokenizer, write_model

CPU = torch.device("cpu")


def row(length, start=0, *, chosen=3, advantage=1.0):
    """Ids that depend on `start`; the last `chosen` tokens were chosen."""
    ids = [(start * 31 + index * 7) % 256 for index in range(length + 1)]
    positions = range(length - chosen, length)
    return Row(
        input_ids=tuple(ids[:-1]),
        positions=tuple(positions),
        targets=tuple(ids[position + 1] for position in positions),
        states=(-1,) * chosen,
        sampler_logprobs=(-1.0,) * chosen,
        spans=(chosen,),
        advantages=(advantage,),
    )


ROWS = [row(length, index, advantage=(-1.0) ** index) for index, length in enumerate((40, 7, 12, 33, 5, 9))]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("packing", "attention"), [(True, "sdpa"), (True, "eager"), (False, "sdpa")], ids=["by row", "packed", "padded"]
)
@torch.no_grad()
def test_hidden_states_are_those_of_each_row_alone(chat, shape, packing, attention):
    network = chat(shape, packing=packing, attention=attention)
    model = causal(network.model)
    states = network.hidden(network.model, ROWS)
    logits = network.logits(network.model, states)
    alone = torch.cat(
        [model(torch.tensor([one.input_ids]), use_cache=False).logits[0, list(one.positions)] for one in ROWS]
    )
    assert torch.allclose(logits, alone, atol=1e-4)
    assert float((logits - alone).abs().max()) < 1e-4 < float(logits.abs().max()) / 100


def test_packing_fills_sequences_of_the_longest_rows_length():
    sheet = pack(ROWS)
    assert sheet.input_B_T.shape == (3, 40)  # 106 tokens
    assert sheet.mask_B_T is None
    assert pad(ROWS).input_B_T.shape == (6, 40)
    assert pack(ROWS, one=True).input_B_T.shape == (1, 106)
    for made in (sheet, pad(ROWS), pack(ROWS, one=True)):
        at = zip(made.sequence_N.tolist(), made.column_N.tolist(), strict=True)
        found = [(int(made.input_B_T[where]), int(made.position_B_T[where])) for where in at]
        assert found == [(one.input_ids[position], position) for one in ROWS for position in one.positions]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_does_not_depend_on_packing_or_split(chat, shape):
    gradients = []
    ways = ((True, "sdpa"), (True, "eager"), (False, "sdpa"))
    for (packing, attention), most in ((way, most) for way in ways for most in (10_000, 50)):
        network = chat(shape, packing=packing, attention=attention)
        for batch in make_micro_batches(ROWS, most, CPU, network.forward_tokens):
            (score(network, network.model, batch, 1.0).logp_N * batch.advantage_N).sum().backward()
        gradients.append(torch.cat([value.grad.flatten() for value in network.parameters()]))
    for gradient in gradients[1:]:
        assert torch.allclose(gradient, gradients[0], rtol=1e-4, atol=1e-4 * float(gradients[0].abs().max()))


def test_a_micro_batch_holds_what_a_forward_pass_computes(chat, monkeypatch):
    """Padded rows count their padding, packed ones the room they leave, rows taken one by one nothing else."""
    lengths = [len(one.input_ids) for one in ROWS]  # 40 7 12 33 5 9
    ways = {"by row": {}, "packed": {"attention": "eager"}, "padded": {"packing": False}}
    networks = {name: chat(**way) for name, way in ways.items()}
    counted = {name: network.forward_tokens(lengths) for name, network in networks.items()}
    assert counted == {"by row": 106, "packed": 120, "padded": 240}
    seen: list[int] = []
    real = chat_network.Sheet.to
    monkeypatch.setattr(
        chat_network.Sheet, "to", lambda self, *on: (seen.append(self.input_B_T.numel()), real(self, *on))[1]
    )
    for most in (50, 70, 120):
        sizes = {}
        for name, network in networks.items():
            seen.clear()
            batches = make_micro_batches(ROWS, most, CPU, network.forward_tokens)
            for batch in batches:
                score(network, network.model, batch, 1.0)
            assert max(seen) <= most
            assert sorted(len(one.input_ids) for batch in batches for one in batch.rows) == sorted(lengths)
            sizes[name] = len(batches)
        assert sizes["by row"] <= sizes["packed"] <= sizes["padded"]
    assert sizes == {"by row": 1, "packed": 1, "padded": 2}


def test_rows_in_one_sequence_cost_no_mask_and_each_its_own_attention(chat, monkeypatch):
    network = chat()
    seen = []
    real = row_attention.sdpa_attention_forward

    def noted(module, query, key, value, mask, **options):
        seen.append((query.shape[2], key.shape[2], mask))
        return real(module, query, key, value, mask, **options)

    monkeypatch.setattr(row_attention, "sdpa_attention_forward", noted)
    network.hidden(network.model, ROWS)
    layers = causal(network.model).config.num_hidden_layers
    assert seen == [(length, length, None) for length in (40, 33, 12, 9, 7, 5)] * layers


def test_rows_cut_at_the_wrong_places_are_refused(chat, monkeypatch):
    network = chat()
    real = chat_network.row_arguments
    monkeypatch.setattr(chat_network, "row_arguments", lambda lengths, device: real([sum(lengths)], device))
    with pytest.raises(TrainError, match=r"mixes rows .* model\.packing = false"):
        check_network(network)


def test_a_model_that_looks_at_a_window_is_not_taken_apart(chat_line, tmp_path):
    """Its layers need a mask to see no further; packed rows are then kept apart by positions as before."""
    config = MistralConfig(**SMALL, **ENDS, vocab_size=262, num_key_value_heads=1, head_dim=16, sliding_window=6,
                           max_position_embeddings=1024, initializer_range=0.2)  # fmt: skip
    settings = write(tmp_path, MistralForCausalLM(config)).model_copy(update={"attention": "sdpa"})
    network = build_network(chat_line, settings, 0)
    model: Any = causal(network.model)
    assert not row_attention.can_split(model)
    assert network.forward_tokens([40, 33, 7]) == 80
    with torch.no_grad():
        ours = network.logits(network.model, network.hidden(network.model, ROWS))
        alone = [model(torch.tensor([one.input_ids]), use_cache=False).logits[0, list(one.positions)] for one in ROWS]
    assert torch.allclose(ours, torch.cat(alone), atol=1e-4)


def test_gradient_checkpointing_computes_blocks_twice_and_changes_nothing(chat):
    gradients, calls = [], []
    for on in (False, True):
        network = chat(gradient_checkpointing=on)
        layer = causal(network.model).model.layers[0]
        forwards = 0

        def count(*_):
            nonlocal forwards
            forwards += 1

        layer.self_attn.q_proj.register_forward_hook(count)
        batch = make_micro_batches(ROWS, 10_000, CPU)[0]
        score(network, network.model, batch, 1.0).logp_N.sum().backward()
        calls.append(forwards)
        gradients.append(torch.cat([value.grad.flatten() for value in network.parameters()]))
    assert calls == [1, 2]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_check_at_the_start_finds_nothing_in_these(chat, shape, monkeypatch):
    """And it has two rows in one sequence to look at, else it could find nothing in any model."""
    sheets = []

    def noted(rows, **named):
        sheets.append((len(rows), pack(rows, **named)))
        return sheets[-1][1]

    monkeypatch.setattr(chat_network, "pack", noted)
    chat(shape)
    assert any(len(sheet.input_B_T) < count for count, sheet in sheets)


@pytest.mark.parametrize("shape", ["qwen3", "llama"])
@pytest.mark.parametrize("fault", ["attention_mask", "use_cache"])
def test_a_forward_that_mixes_packed_rows_is_refused(chat, shape, fault, monkeypatch):
    """A mask of ones, or the model's own cache, each of which makes `transformers` forget where rows begin."""
    network = chat(shape, attention="eager")  # which keeps rows apart by their positions alone
    inner = chat_network.decoder(network.model)
    forward = inner.forward

    def wrong(**named):
        ones = torch.ones_like(named["input_ids"])
        return forward(**(named | {"attention_mask": ones} if fault == "attention_mask" else named | {fault: True}))

    monkeypatch.setattr(inner, "forward", wrong)
    with pytest.raises(TrainError, match=r"mixes rows .* model\.packing = false"):
        check_network(network)


def test_rows_that_leak_into_each_other_are_refused(chat, monkeypatch):
    """A mask over a packed sequence is the known way to make them leak: then the check at start must fail."""
    network = chat()

    def masked(rows, *, one=False):
        sheet = pack(rows, one=True)
        return chat_network.Sheet(
            sheet.input_B_T, sheet.position_B_T, torch.ones_like(sheet.input_B_T), sheet.sequence_N, sheet.column_N
        )

    check_network(network)
    monkeypatch.setattr(chat_network, "pack", masked)
    with pytest.raises(TrainError, match=r"Qwen3ForCausalLM .* mixes rows .* model\.packing = false"):
        check_network(network)


def write(folder, model):
    model.save_pretrained(folder)
    byte_tokenizer(TEMPLATES["qwen3"]).save_pretrained(folder)
    return ModelSection(**model_settings(folder, max_prompt_tokens=300, attention="eager"))


SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
ENDS: dict[str, Any] = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}


def test_logits_capped_after_the_output_layer_are_refused(chat_line, tmp_path):
    config = Gemma2Config(**SMALL, **ENDS, vocab_size=262, num_key_value_heads=1, head_dim=16, initializer_range=0.5,
                          final_logit_softcapping=1.0)  # fmt: skip
    with pytest.raises(TrainError, match="Gemma2ForCausalLM .* changes its logits"):
        build_network(chat_line, write(tmp_path, Gemma2ForCausalLM(config)), 0)


def test_models_that_are_not_causal_are_refused(chat_line, tmp_path):
    bert = BertLMHeadModel(BertConfig(**SMALL, vocab_size=262, is_decoder=True))
    bert.config.is_decoder = False
    with pytest.raises(TrainError, match="BertLMHeadModel .* looks at later tokens, so it is not causal"):
        build_network(chat_line, write(tmp_path / "bert", bert), 0)
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=262, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    with pytest.raises(ConfigError, match="'t5' is no causal language model") as caught:
        build_network(chat_line, write(tmp_path / "t5", t5), 0)
    assert caught.value.field == "model.path"


def test_paths_that_hold_no_model_are_refused(chat_line, tmp_path):
    for path, problem in (
        (tmp_path / "nowhere", "not found or no model"),
        ("someone/some-model", "allow_download = true"),
        (tmp_path, "not found or no model"),
        (tmp_path / "nowhere", "there is no such folder"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            build_network(chat_line, ModelSection(**model_settings(path)), 0)
        assert caught.value.field == "model.path"
    folder = write_model(tmp_path / "m", "llama")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="tokenizer"):
        build_network(chat_line, ModelSection(**model_settings(folder)), 0)


def test_files_that_lack_weights_are_refused(chat_line, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path / "m", "qwen3")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 weights, the first is model\.layers\.1\.mlp\.up_proj"):
        build_network(chat_line, ModelSection(**model_settings(folder)), 0)


def test_files_that_are_cut_off_are_refused(chat_line, tmp_path):
    folder = write_model(tmp_path / "m", "qwen3")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (4, 2000, len(whole) - 100):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="its weights cannot be loaded") as caught:
            build_network(chat_line, ModelSection(**model_settings(folder)), 0)
        assert caught.value.field == "model.path"


def test_too_small_models_and_too_long_rows_are_refused(chat, chat_line, folders, tmp_path):
    with pytest.raises(ConfigError, match=r"max_prompt_tokens \(1100\) .* 1024 tokens"):
        chat(max_prompt_tokens=1100)
    network = chat()
    with pytest.raises(TrainError, match=r"a row of 1025 tokens is longer than model .* \(1024\)"):
        network.hidden(network.model, [row(1025)])
    small = write_model(tmp_path / "m", "qwen3", vocab_size=200)
    with pytest.raises(ConfigError, match="tokenizer has 262 tokens, its weights know 200"):
        build_network(chat_line, ModelSection(**model_settings(small)), 0)


def test_dropout_is_off_and_weights_are_float32_whatever_the_file_says(chat_line, tmp_path):
    folder = write_model(tmp_path / "m", "gpt2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5)
    network = build_network(chat_line, ModelSection(**model_settings(folder, gradient_checkpointing=True)), 0)
    batch = make_micro_batches(ROWS, 10_000, CPU)[0]
    first, second = (score(network, network.model, batch, 1.0).logp_N for _ in range(2))
    assert torch.equal(first, second)
    half = tmp_path / "half"
    model: Any = causal(network.model)
    model.to(torch.bfloat16).save_pretrained(half)
    byte_tokenizer(TEMPLATES["gpt2"]).save_pretrained(half)
    again = build_network(chat_line, ModelSection(**model_settings(half)), 0)
    assert {value.dtype for value in again.parameters()} == {torch.float32}


@pytest.mark.parametrize("shape", SHAPES)
def test_adapters_alone_are_trained_and_begin_by_changing_nothing(chat, shape):
    whole, adapted = chat(shape), chat(shape, lora_rank=4)
    batch = make_micro_batches(ROWS, 10_000, CPU)[0]
    before = score(adapted, adapted.model, batch, 1.0).logp_N.detach()
    assert torch.allclose(before, score(whole, whole.model, batch, 1.0).logp_N, atol=1e-5)
    base = {name: value.clone() for name, value in adapted.model.state_dict().items() if "lora" not in name}
    Learner(adapted, TrainingSection(learning_rate=0.05), 1.0).update(ROWS, 6)
    assert all(torch.equal(adapted.model.state_dict()[name], value) for name, value in base.items())
    assert not torch.allclose(score(adapted, adapted.model, batch, 1.0).logp_N, before, atol=1e-3)
    assert sum(value.numel() for value in adapted.parameters()) < sum(value.numel() for value in whole.parameters())


def test_adapters_depend_on_the_seed_and_their_layers_can_be_named(chat):
    first, same, other = (chat(lora_rank=2, seed=seed).parameters() for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len(chat(lora_rank=2, lora_targets=["q_proj"]).parameters()) == 2 * 2
    with pytest.raises(ConfigError, match=r"lora_targets \['nothing'\]") as caught:
        chat(lora_rank=2, lora_targets=["nothing"])
    assert caught.value.field == "model.lora_targets"


@torch.no_grad()
def test_the_reference_of_adapters_is_the_model_without_them(chat):
    network = chat(lora_rank=4)
    batch = make_micro_batches(ROWS, 10_000, CPU)[0]
    reference = network.reference()
    with torch.enable_grad():
        Learner(network, TrainingSection(learning_rate=0.05), 1.0).update(ROWS, 6)
    now = score(network, network.model, batch, 1.0).logp_N
    with network.model.disable_adapter():
        off = score(network, network.model, batch, 1.0).logp_N
    assert torch.equal(score(network, reference, batch, 1.0).logp_N, off)
    assert torch.equal(score(network, network.model, batch, 1.0).logp_N, now)
    assert not torch.allclose(now, off, atol=1e-3)


def test_a_kl_penalty_pulls_adapters_back(chat):
    distance = []
    for coefficient in (0.0, 5.0):
        network = chat(lora_rank=4)
        settings = TrainingSection.model_validate({"learning_rate": 0.02, "objective": {"kl_coefficient": coefficient}})
        learner = Learner(network, settings, 1.0)
        metrics = [learner.update(ROWS, 6) for _ in range(4)]
        batch = make_micro_batches(ROWS, 10_000, CPU)[0]
        with torch.no_grad(), network.model.disable_adapter():
            off = score(network, network.model, batch, 1.0).logp_N
        logp = score(network, network.model, batch, 1.0).logp_N.detach()
        distance.append(float((logp - off).square().mean()))
        assert (metrics[-1]["train/kl_reference"] or 0) > 0 or not coefficient
    assert distance[1] < 0.5 * distance[0]


def test_the_embedded_network_is_built_without_a_path(line):
    assert isinstance(build_network(line, ModelSection(), 0), embedded.EmbeddedNetwork)


def test_running_out_of_memory_says_what_to_lower():
    with (
        pytest.raises(TrainError, match=r"lower training\.micro_batch_tokens"),
        memory_guard("training.micro_batch_tokens"),
    ):
        torch.empty(2**55)
    with pytest.raises(TrainError, match=r"lower model\.sampler_rows"), memory_guard("model.sampler_rows"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError, match="otherwise"), memory_guard("x"):
        raise RuntimeError("otherwise")


def test_a_backward_pass_out_of_memory_is_told_too(chat, monkeypatch):
    network = chat()
    learner = Learner(network, TrainingSection(), 1.0)

    def exhausted(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", exhausted)
    with pytest.raises(TrainError, match=r"out of memory: lower training\.micro_batch_tokens"):
        learner.update(ROWS, 6)
