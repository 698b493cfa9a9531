"""Whole runs whose answers come from a vLLM server: fresh and stale, whole and by adapters, resumed, interrupted."""

# ruff: noqa: F401, F811  (fixtures are imported by name)

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError, TrainError
from task_app.store import TraceStore
from task_app.train.grpo import run_training
from task_app.train.load import build_network, make_samplers
from task_app.train.metrics import MetricsLog
from task_app.train.plan import check_config
from task_app.wiring import check
from tests.train.chat_fixtures import chat_line, folders, model_settings
from tests.train.fake_vllm import FakeVllm
from tests.train.tiny_models import write_model

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # `peft` reads it by its old name


@pytest.fixture
def fake(folders):
    with FakeVllm(folders["qwen3"], lora=True) as server:
        yield server


@pytest.fixture
def vllm_config(config_in, tmp_path, folders, fake):
    """A config of a few small updates against the fake."""

    def make(rank=0, name="run", **changes):
        settings = {f"model__{key}": value for key, value in model_settings(folders["qwen3"], lora_rank=rank).items()}
        settings |= {"rollout__group_size": 4, "training__updates": 2, "eval__seeds": "1000000:1000002"}
        settings |= {"sampler__kind": "vllm", "sampler__base_url": fake.url, "sampler__max_mismatch": 1e-3}
        settings |= {"sampler__timeout_s": 10.0, "rollout__max_decisions": 3, "training__checkpoint_every": 1}
        return config_in(tmp_path / name, **(settings | changes))

    return make


def train(config, spec, progress=None):
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store, progress=progress)


def updates(result):
    return [line for line in MetricsLog(result.metrics).lines() if line["kind"] == "update"]


def played(config, *, superseded=False):
    """(update, policy version) → episodes in the store."""
    with TraceStore.open(config.rollout.trace_db) as store:
        rows = store.query(
            """SELECT training_update, policy_version, count(*) AS n FROM episodes
               WHERE training_update IS NOT NULL AND run_id NOT LIKE '%-eval' AND superseded = ?
               GROUP BY training_update, policy_version""",
            (int(superseded),),
        )
        return {(row["training_update"], row["policy_version"]): row["n"] for row in rows}


@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
def test_a_run_learns_from_answers_of_its_own_weights(vllm_config, chat_line, fake, rank):
    config = vllm_config(rank)
    result = train(config, chat_line)
    lines = updates(result)
    assert [line["sampler/staleness"] for line in lines] == [0, 0]
    assert all(line["mismatch/logp_max"] < 1e-4 for line in lines)
    assert any(line["train/skipped"] == 0.0 for line in lines)
    size = 4 * config.training.groups_per_update
    assert played(config) == {(1, "u0"): size, (2, "u1"): size}
    handed = fake.bodies("/v1/load_lora_adapter" if rank else "/collective_rpc")
    assert len(handed) == 3, "before the first update, after each, and not again for the evaluations"
    assert result.after["n"] == 2
    assert fake.most_running > 1, "episodes are played side by side"


def test_with_staleness_one_the_next_episodes_are_played_while_learning(vllm_config, chat_line, fake):
    config = vllm_config(training__updates=3, sampler__max_staleness=1)
    lines = updates(train(config, chat_line))
    assert [line["sampler/staleness"] for line in lines] == [0, 1, 1]
    size = 4 * config.training.groups_per_update
    assert played(config) == {(1, "u0"): size, (2, "u0"): size, (3, "u1"): size}
    assert lines[0]["mismatch/logp_max"] < 1e-4
    assert lines[1]["mismatch/logp_max"] > 1e-3, "the trainer's weights are one update newer"
    assert all("sampling" in line["machine"]["seconds"] for line in lines)
    assert not any("play-ahead" in one.name for one in threading.enumerate())


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_resumes_and_supersedes_what_was_played_ahead(vllm_config, chat_line, fake, staleness):
    class Stop(BaseException):
        pass

    def stop(line):
        if line["kind"] == "update" and line["update"] == 2:
            raise Stop

    config = vllm_config(training__updates=3, sampler__max_staleness=staleness)
    with pytest.raises(Stop):
        train(config, chat_line, stop)
    assert not any("play-ahead" in one.name for one in threading.enumerate())
    fake.restart()
    result = train(config, chat_line)
    assert result.updates == 3
    size = 4 * config.training.groups_per_update
    assert sum(played(config).values()) == 3 * size
    assert [line["sampler/staleness"] for line in updates(result)] == [0, 0, 1 if staleness else 0]
    assert sum(played(config, superseded=True).values()) == size * (2 if staleness else 1)


def test_an_error_while_learning_ends_what_is_played_ahead(vllm_config, chat_line, fake, monkeypatch):
    from task_app.train.update import Updater

    def fail(*args):
        deadline = time.monotonic() + 20
        while not fake.running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert any("play-ahead" in one.name for one in threading.enumerate())
        raise TrainError("no gradient today")

    fake.delay_s = 0.05
    monkeypatch.setattr(Updater, "learn", fail)
    with pytest.raises(TrainError, match="no gradient today"):
        train(vllm_config(sampler__max_staleness=1), chat_line)
    assert not any("play-ahead" in one.name for one in threading.enumerate())


def test_a_group_lost_to_the_server_is_dropped_whole(vllm_config, chat_line, fake):
    """The server refuses one episode's decision for good: its group goes, the run goes on."""
    config = vllm_config(training__updates=1, rollout__concurrency=1, rollout__infra_tries=1)
    lines, lost = [], []

    def abort_once(answer):
        if lines and lines[-1]["kind"] == "eval" and not lost:
            lost.append(answer)
            answer["choices"][0]["finish_reason"] = "abort"

    fake.alter = abort_once
    [line] = updates(train(config, chat_line, lines.append))
    assert lost
    [why] = line["failures/groups"].values()
    assert "finish_reason 'abort'" in why or "infra_error" in why
    assert line["failures/episodes"] == 1
    assert line["episodes"] == 4 * (config.training.groups_per_update - 1)


def test_a_server_that_loses_the_weights_in_between_stops_the_run(vllm_config, chat_line, fake):
    def lose(line):
        if line["kind"] == "eval":
            fake.restart()

    with pytest.raises(TrainError, match="it was restarted, or another run hands it weights; run again to resume"):
        train(vllm_config(), chat_line, lose)


def test_the_shipped_config_trains(chat_line, tmp_path):
    folder = write_model(tmp_path / "model", "qwen3", max_position_embeddings=16_384)
    with FakeVllm(folder, max_model_len=16_384) as server:
        small = {
            "model.path": str(folder),
            "model.device": "cpu",
            "model.threads": 1,
            "model.max_new_tokens": 4,
            "sampler.base_url": server.url,
            "training.updates": 2,
            "training.groups_per_update": 1,
            "rollout.group_size": 2,
            "rollout.max_decisions": 2,
            "eval.seeds": "1000000:1000001",
            "rollout.trace_db": str(tmp_path / "t.db"),
            "training.run_dir": str(tmp_path / "run"),
        }
        config = load_config(Path(__file__).parents[2] / "configs/train/crafter_vllm.toml", small)
        lines = updates(train(config, check(config)))
    assert [line["sampler/staleness"] for line in lines] == [0, 1]
    assert all(line["mismatch/logp_max"] < 0.5 for line in lines)


# -- settings ------------------------------------------------------------------------------------------


def test_settings_that_cannot_work_are_refused_at_load(vllm_config, config_in, tmp_path):
    with pytest.raises(ConfigError, match=r'sampler\.kind = "vllm" needs model\.path') as caught:
        check_config(vllm_config(model__path=""))
    assert caught.value.field == "sampler.kind"
    with pytest.raises(ConfigError, match=r"max_staleness = 1 needs sampler\.kind") as caught:
        check_config(config_in(tmp_path, sampler__max_staleness=1))
    assert caught.value.field == "sampler.max_staleness"
    for url, problem in (
        ("127.0.0.1:8000", "http"),
        ("ftp://host", "http"),
        ("http://host:8000/v1", "without /v1"),
        ("http://host?x=1", "http"),
    ):
        with pytest.raises(ConfigError, match=f"sampler.base_url: .*{problem}"):
            vllm_config(sampler__base_url=url)
    check_config(vllm_config())


def test_the_key_goes_to_the_server_and_a_missing_one_is_named(vllm_config, chat_line, folders):
    with FakeVllm(folders["qwen3"], key="secret") as locked:
        config = vllm_config(sampler__base_url=locked.url, sampler__api_key_env="VLLM_KEY")
        network = build_network(chat_line, config.model, 0)
        with pytest.raises(ConfigError, match="variable VLLM_KEY is not set") as caught:
            make_samplers(config, network, {})
        assert caught.value.field == "sampler.api_key_env"
        with closing(make_samplers(config, network, {"VLLM_KEY": "secret"})(0.8)) as sampler:
            sampler.take_weights("u0")
            assert len(sampler.sample([(1, 2, 3)], ["k"])) == 1
        other = make_samplers(config, network, {"VLLM_KEY": "other"})(0.8)
        with closing(other), pytest.raises(TrainError, match="HTTP 401, it refused the key"):
            other.take_weights("u0")
