"""Sampling through a vLLM server: exact numbers, current weights, and a named outcome for all that goes wrong."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

import math
import shutil
import time
from typing import Any

import pytest
import torch

from task_app.config.training import SamplerSection
from task_app.core.errors import ConfigError, PolicyError, TrainError
from task_app.train.network import Network
from task_app.train.vllm_handover import Handover
from task_app.train.vllm_sampler import VllmSampler, seed_of
from task_app.train.vllm_wire import VllmServer
from tests.train.chat_fixtures import SYSTEM, chat, chat_line, folders
from tests.train.fake_vllm import BASE, FakeVllm
from tests.train.tiny_models import SHAPES

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # `peft` reads it by its old name

TEXTS = ["place 1", "place 2 and some more words", "x", "place 1"]
KEYS = [f"0/1/{index}/0/1" for index in range(len(TEXTS))]
TEMPERATURE = 0.8


@pytest.fixture
def serve(folders):
    """Start a fake of a shape."""
    running = []

    def make(shape="qwen3", **options):
        fake = FakeVllm(folders[shape], **options).__enter__()
        running.append(fake)
        return fake

    yield make
    for fake in running:
        fake.stop()


@pytest.fixture
def connect(tmp_path):
    """A sampler of a network at a fake; `[sampler]` keys by name."""
    servers = []

    def make(network, fake, temperature=TEMPERATURE, **changes):
        url = fake if isinstance(fake, str) else fake.url
        keys: dict[str, Any] = {"max_mismatch": 1e-4, "timeout_s": 5.0} | changes
        settings = SamplerSection(kind="vllm", base_url=url, **keys)
        servers.append(VllmServer(settings))
        handover = Handover(network, servers[-1], tmp_path / "handover")
        return VllmSampler(network, temperature, settings, servers[-1], handover)

    yield make
    for server in servers:
        server.close()


def prompts_of(network, texts=TEXTS):
    return [network.renderer.prompt_ids([SYSTEM, {"role": "user", "content": text}]) for text in texts]


def change(network: Network, seed=0, size=0.05):
    """Another version of the weights, as an update makes it."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += size * torch.randn(parameter.shape, generator=draw)


def worst_difference(network, prompts, answers, temperature=TEMPERATURE):
    """Largest |Δ log-probability| against a plain forward of the trainer's own model."""
    worst = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *answer.ids]])
            logits = network.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
        logp = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        worst = max(worst, float((logp - torch.tensor(answer.logprobs)).abs().max()))
    return worst


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
def test_answers_are_of_the_current_weights_and_their_numbers_exact(serve, chat, connect, shape, rank):
    fake, network = serve(shape, lora=bool(rank)), chat(shape, lora_rank=rank, max_new_tokens=20)
    sampler, prompts = connect(network, fake), prompts_of(network)
    seen = []
    for version in ("u0", "u1", "u2"):
        sampler.take_weights(version)
        answers = sampler.sample(prompts, KEYS)
        assert worst_difference(network, prompts, answers) < 1e-4
        seen.append([answer.ids for answer in answers])
        change(network)
        assert worst_difference(network, prompts, answers) > 1e-2, "other weights must show"
    assert seen[0] != seen[1] != seen[2]
    for answer in answers:
        ended = answer.ids[-1] in network.renderer.template.stops
        assert answer.mask == [1] * len(answer.ids)
        assert len(answer.ids) == 20 or ended
        reason = network.renderer.message(answer.ids).finish_reason
        assert (reason == "length") == (not ended)


def test_the_request_is_the_documented_one(serve, chat, connect):
    fake, network = serve(), chat()
    sampler, [prompt] = connect(network, fake), prompts_of(network, ["x"])
    sampler.take_weights("u7")
    sampler.sample([prompt], ["0/7/3/1/2"])
    body = fake.bodies("/v1/completions")[-1]
    assert body == {
        "model": BASE, "prompt": list(prompt), "n": 1, "max_tokens": 6, "seed": seed_of("0/7/3/1/2"),
        "temperature": TEMPERATURE, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "skip_special_tokens": False, "logprobs": 0,
        "stop_token_ids": sorted(network.renderer.template.stops), "return_token_ids": True,
        "cache_salt": fake.version,
    }  # fmt: skip
    assert fake.version.startswith("u7-")
    assert 0 <= body["seed"] < 2**63


def test_noise_is_keyed_and_seeds_use_all_their_bits(serve, chat, connect):
    fake, network = serve(), chat()
    sampler, prompts = connect(network, fake), prompts_of(network)
    sampler.take_weights("u0")
    first = sampler.sample(prompts, KEYS)
    assert [one.ids for one in sampler.sample(prompts[::-1], KEYS[::-1])] == [one.ids for one in first[::-1]]
    assert sampler.sample(prompts[:1], ["other"])[0].ids != first[0].ids
    seeds = [seed_of(f"k{index}") for index in range(400)]
    assert len(set(seeds)) == 400
    for bit in range(63):
        assert 100 < sum(seed >> bit & 1 for seed in seeds) < 300


# -- handing over --------------------------------------------------------------------------------------


def test_whole_weights_go_over_in_order_and_old_ones_are_deleted(serve, chat, connect, tmp_path):
    fake, network = serve(), chat()
    sampler = connect(network, fake)
    sampler.take_weights("u0")
    start = ["/health", "/server_info", "/v1/models"]
    given = ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/weight_info"]
    assert fake.paths[:8] == [*start, *given, "/v1/completions"]
    fake.received.clear()
    sampler.take_weights("u0")
    assert fake.received == [], "what was handed over is not handed over again"
    sampler.take_weights("u1")
    assert fake.paths[:5] == [*given, "/v1/completions"]
    [folder] = (tmp_path / "handover").iterdir()
    assert folder.name == fake.version
    assert folder.name.startswith("u1-")
    [body] = fake.bodies("/collective_rpc")
    assert body == {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {file.name for file in folder.iterdir()}


def test_adapters_get_a_new_name_each_time_and_older_ones_are_unloaded(serve, chat, connect, tmp_path, folders):
    fake, network = serve(lora=True), chat(lora_rank=4)
    sampler = connect(network, fake)
    sampler.take_weights("u0")
    change(network)
    sampler.take_weights("u1")
    [name] = fake.adapters
    assert name.startswith("u1-")
    assert [folder.name for folder in (tmp_path / "handover").iterdir()] == [name]
    assert len(fake.bodies("/v1/unload_lora_adapter")) == 1
    assert fake.paths.count("/reset_prefix_cache") == 2
    # A process that died leaves its adapter behind; one that is not ours stays.
    fake.adapters["elsewhere"] = (str(tmp_path / "elsewhere" / "x"), fake.adapters[name][1])
    second = connect(network, fake)
    second.take_weights("u1")
    assert "elsewhere" in fake.adapters
    assert name not in fake.adapters
    assert len(fake.adapters) == 2


def test_stale_prompts_are_out_of_reach_by_the_reset_and_by_the_salt(serve, chat, connect):
    for broken in ({"salted": False}, {"deaf_to_reset": True}):
        fake, network = serve(), chat()
        for name, value in broken.items():
            setattr(fake, name, value)
        sampler = connect(network, fake)
        sampler.take_weights("u0")
        change(network)
        sampler.take_weights("u1")
        assert worst_difference(network, prompts_of(network), sampler.sample(prompts_of(network), KEYS)) < 1e-4


def test_stale_prompts_that_are_in_reach_are_found(serve, chat, connect):
    fake, network = serve(), chat()
    fake.salted, fake.deaf_to_reset = False, True
    sampler = connect(network, fake)
    sampler.take_weights("u0")
    change(network)
    with pytest.raises(TrainError, match=r"differ from the trainer's by [\d.]+ nats per token"):
        sampler.take_weights("u1")


def test_a_reset_waits_for_requests_that_still_run(serve, chat, connect):
    fake, network = serve(), chat()
    fake.busy_resets = 2
    connect(network, fake).take_weights("u0")
    assert fake.paths.count("/reset_prefix_cache") == 3
    fake.busy_resets = 10**6
    with pytest.raises(TrainError, match="u1 could not be handed.*prefix cache could not be reset"):
        connect(network, fake, handover_timeout_s=2.0).take_weights("u1")


def test_raw_log_probabilities_are_refused_where_they_are_said_and_where_not(serve, chat, connect):
    fake, network = serve(), chat()
    fake.logprobs_mode = "raw_logprobs"
    with pytest.raises(TrainError, match=r"logprobs_mode is 'raw_logprobs'.*--logprobs-mode processed_logprobs"):
        connect(network, fake).take_weights("u0")
    fake.logprobs_mode, fake.numbers = "processed_logprobs", "raw_logprobs"
    with pytest.raises(TrainError, match="or its log-probabilities ignore the temperature"):
        connect(network, fake, max_mismatch=0.05).take_weights("u0")
    connect(network, fake, temperature=1.0).take_weights("u0")


def test_weights_that_did_not_arrive_are_found(serve, chat, connect, tmp_path):
    fake, network = serve(), chat()
    sampler = connect(network, fake)
    fake.deaf_to_reload = True
    sampler.take_weights("u0")
    change(network)
    with pytest.raises(TrainError, match="samples from other weights"):
        sampler.take_weights("u1")
    with pytest.raises(TrainError, match="u2 could not be handed.*max_model_len is 100.*--max-model-len 606"):
        connect(network, serve(max_model_len=100)).take_weights("u2")
    with pytest.raises(TrainError, match=r"u2 could not be handed.*/v1/load_lora_adapter|HTTP 404.*--enable-lora"):
        connect(chat(lora_rank=4), serve()).take_weights("u2")
    blocked = connect(network, serve())
    shutil.rmtree(tmp_path / "handover")
    (tmp_path / "handover").write_text("a file where a folder is needed")
    with pytest.raises(TrainError, match="u3 could not be handed.*could not be written"):
        blocked.take_weights("u3")


def test_a_refused_handover_says_what_the_server_says_and_is_made_anew(serve, chat, connect, monkeypatch):
    fake, network = serve(lora=True), chat(lora_rank=4)
    sampler = connect(network, fake)
    with monkeypatch.context() as patch:
        real = Handover._write
        patch.setattr(Handover, "_write", lambda self, name: real(self, name).with_name("unseen"))
        with pytest.raises(TrainError, match=r"u0 could not be handed.*No adapter found.*see .*handover at this path"):
            sampler.take_weights("u0")
    sampler.take_weights("u0")
    assert len(fake.adapters) == 1


# -- faults --------------------------------------------------------------------------------------------


@pytest.fixture
def ready(serve, chat, connect):
    """A fake with weights, its sampler, and one prompt."""

    def make(**changes):
        fake, network = serve(), chat()
        sampler = connect(network, fake, **changes)
        sampler.take_weights("u0")
        return fake, sampler, prompts_of(network, ["x"])

    return make


def test_a_busy_server_is_asked_again_after_the_pause_it_wants(ready):
    fake, sampler, prompt = ready()
    fake.statuses.extend([(503, {}), (429, {"retry-after": "1"}), (500, {})])
    start = time.monotonic()
    assert len(sampler.sample(prompt, ["k"])) == 1
    assert time.monotonic() - start > 1.0
    fake.statuses.extend([(503, {})] * 9)
    with pytest.raises(PolicyError, match=r"vLLM server http.*HTTP 503, it says .*busy.*tried 5 times") as caught:
        sampler.sample(prompt, ["k"])
    assert caught.value.retryable


def test_a_server_that_hangs_has_one_deadline(ready):
    fake, sampler, prompt = ready(timeout_s=0.5)
    fake.hangs.extend([True] * 3)
    start = time.monotonic()
    with pytest.raises(PolicyError, match="no whole answer within") as caught:
        sampler.sample(prompt, ["k"])
    assert time.monotonic() - start < 3
    assert caught.value.retryable


def test_a_dead_server_is_a_policy_error_while_playing_and_a_train_error_while_handing_over(ready):
    fake, sampler, prompt = ready(timeout_s=1.0, handover_timeout_s=1.0)
    fake.stop()
    with pytest.raises(PolicyError, match="cannot be reached"):
        sampler.sample(prompt, ["k"])
    with pytest.raises(TrainError, match=r"u1 could not be handed.*cannot be reached.*VLLM_SERVER_DEV_MODE=1"):
        sampler.take_weights("u1")


def test_a_restarted_server_is_not_taken_for_one_that_has_the_weights(ready, serve, chat, connect):
    fake, sampler, prompt = ready()
    fake.restart()
    with pytest.raises(TrainError, match=r"weight_version is 'default', expected was 'u0-.*restarted"):
        sampler.sample(prompt, ["k"])
    fake, network = serve(lora=True), chat(lora_rank=4)
    sampler = connect(network, fake)
    sampler.take_weights("u0")
    fake.restart()
    with pytest.raises(PolicyError, match="HTTP 404.*does not exist"):
        sampler.sample(prompt, ["k"])


def cut_last(choice):
    choice["logprobs"]["token_logprobs"].pop()


WRONG = {
    "model": (lambda answer: answer.update(model="u3-other"), r"model is 'u3-other', expected was 'served-base'"),
    "no-model": (lambda answer: answer.pop("model"), "model is None"),
    "two-answers": (lambda answer: answer.update(choices=answer["choices"] * 2), "number of choices is 2"),
    "no-choices": (lambda answer: answer.pop("choices"), "choices is None"),
}
WRONG_CHOICE = {
    "no-ids": (lambda choice: choice.update(token_ids=None), r"choices\.0\.token_ids is None"),
    "words": (lambda choice: choice.update(token_ids=["a"]), r"token_ids is \['a'\].*token ids from 0"),
    "huge-id": (lambda choice: choice.update(token_ids=[10**6]), r"token_ids is \[1000000\]"),
    "no-prompt": (lambda choice: choice.update(prompt_token_ids=None), "prompt_token_ids is None"),
    "other-prompt": (lambda choice: choice["prompt_token_ids"].append(1), "prompt_token_ids is"),
    "no-logprobs": (lambda choice: choice.update(logprobs=None), r"choices\.0\.logprobs is None"),
    "fewer-logprobs": (cut_last, "length of .*token_logprobs is"),
    "null": (lambda choice: choice["logprobs"].update(token_logprobs=[None]), "token_logprobs is None"),
    "positive": (lambda choice: choice["logprobs"].update(token_logprobs=[0.5]), r"token_logprobs is 0\.5"),
    "reason": (lambda choice: choice.update(finish_reason="repetition"), "finish_reason is 'repetition'"),
    "no-reason": (lambda choice: choice.update(finish_reason=None), "finish_reason is None"),
    "not-ended": (
        lambda choice: choice.update(finish_reason="stop" if choice["finish_reason"] == "length" else "length"),
        "token_ids is .* tokens ending in",
    ),
}


@pytest.mark.parametrize("case", [*WRONG, *WRONG_CHOICE])
def test_every_field_of_an_answer_is_checked_by_name(ready, case):
    fake, sampler, prompt = ready()
    if case in WRONG:
        fake.alter, problem = WRONG[case]
    else:
        spoil, problem = WRONG_CHOICE[case]
        fake.alter = lambda answer: spoil(answer["choices"][0])
    with pytest.raises(TrainError, match=f"the vLLM server's answer: .*{problem}"):
        sampler.sample(prompt, ["k"])


def test_an_answer_with_its_end_inside_is_refused(serve, chat, connect):
    fake, network = serve(), chat(max_new_tokens=6)
    sampler, prompt = connect(network, fake), prompts_of(network, ["x"])
    sampler.take_weights("u0")
    end = min(network.renderer.template.stops)
    spoiled = {"token_ids": [1, end, 1, 1, 1, 1], "finish_reason": "length"}
    fake.alter = lambda answer: answer["choices"][0].update(spoiled, logprobs={"token_logprobs": [-1.0] * 6})
    with pytest.raises(TrainError, match="an end at the first of"):
        sampler.sample(prompt, ["k"])


def test_an_answer_the_server_gave_up_on_is_its_failure(ready):
    fake, sampler, prompt = ready()
    fake.alter = lambda answer: answer["choices"][0].update(finish_reason="abort")
    with pytest.raises(PolicyError, match="finish_reason 'abort'"):
        sampler.sample(prompt, ["k"])


@pytest.mark.parametrize("path", ["/weight_info", "/v1/models", "/server_info"])
def test_control_answers_are_read_strictly(serve, chat, connect, path):
    fake, network = serve(), chat()
    route = next(route for route in fake._server.config.app.routes if getattr(route, "path", "") == path)
    route.dependant.call = lambda **anything: {"unknown": 1}
    with pytest.raises(TrainError, match=r"u0 could not be handed.*(weight_version|data|vllm_config) is None"):
        connect(network, fake).take_weights("u0")


def test_the_fake_refuses_what_the_real_one_does(serve, chat, connect):
    """So that the tests above mean something: unknown fields, wrong types and seeds of 64 bits are refused."""
    import httpx

    fake, network = serve(), chat()
    sampler = connect(network, fake)
    sampler.take_weights("u0")
    body = fake.bodies("/v1/completions")[-1]
    with httpx.Client() as client:
        for spoiled in ({"unknown": 1}, {"prompt": "text"}, {"seed": 2**63}, {"logprobs": "1"}, {"n": 2}):
            assert client.post(f"{fake.url}/v1/completions", json=body | spoiled).status_code == 400
        assert client.post(f"{fake.url}/v1/completions", json=body).status_code == 200
    assert math.isfinite(client.timeout.connect or 0.0)
