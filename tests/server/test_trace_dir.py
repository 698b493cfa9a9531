"""`serve --trace DIR`: SFT rows of each episode as a file, and never an episode lost for it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from task_app.config import load_config
from task_app.core.errors import ConfigError
from task_app.export import EpisodeFilters, export_sft
from task_app.server.serve import serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "made" / "sft"


async def test_each_file_is_what_an_export_of_that_episode_gives(hosted, folder, endpoint, chat, tmp_path):
    endpoint.plan(
        endpoint.call("do"), endpoint.completion({"content": "I will not."}, "stop"), endpoint.call("noop", "do")
    )
    async with hosted(**{"server.trace_dir": str(folder)}) as app:
        answers = [
            await app.played(run_id="r0", env__seed=4),
            await app.played(run_id="r1", **chat),
            await app.played(run_id="r2", policy__policy_name="expert", env__config={"step_rewards": {"mode": "off"}}),
        ]
        for number in range(3):
            export_sft(app.db, tmp_path / f"{number}.jsonl", EpisodeFilters(run_id=(f"r{number}",)))
    ids = [answer["metrics"]["details"]["episode_id"] for answer in answers]
    assert [answer["metrics"]["details"]["trace_file"] for answer in answers] == [f"{one}.jsonl" for one in ids]
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{one}.jsonl" for one in ids)
    for number, one in enumerate(ids):
        assert (folder / f"{one}.jsonl").read_bytes() == (tmp_path / f"{number}.jsonl").read_bytes()
    rows = [json.loads(line) for line in (folder / f"{ids[1]}.jsonl").read_text().splitlines()]
    assert [row["metadata"]["turn"] for row in rows] == [1, 3]  # the refusal is no row


async def test_without_a_folder_nothing_is_written(hosted, tmp_path):
    async with hosted() as app:
        answer = await app.played()
    assert answer["metrics"]["details"]["trace_file"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.db", "t.serving.db"]


async def test_an_episode_without_a_reward_has_no_file(hosted, folder, endpoint, chat):
    endpoint.otherwise = endpoint.status(400)
    async with hosted(**{"server.trace_dir": str(folder)}) as app:
        answer = await app.rollout(**chat)
        (episode,) = app.episodes()
    assert (answer.status_code, episode.status) == (503, "infra_error")
    assert list(folder.iterdir()) == []


async def test_an_episode_without_a_readable_answer_has_no_file(hosted, folder, endpoint, chat):
    endpoint.otherwise = endpoint.completion({"content": "no"}, "stop")
    async with hosted(**{"server.trace_dir": str(folder)}) as app:
        answer = await app.played(**chat)
    assert answer["metrics"]["details"]["status"] == "truncated"
    assert answer["metrics"]["details"]["trace_file"] is None
    assert list(folder.iterdir()) == []


async def test_a_full_disk_costs_the_file_never_the_episode(hosted, folder, monkeypatch, caplog):
    async with hosted(**{"server.trace_dir": str(folder)}) as app:
        with monkeypatch.context() as full, caplog.at_level(logging.ERROR):
            full.setattr(os, "fsync", _no_space)
            answer = await app.played()
        after = await app.played()
        episodes = app.episodes()
    details = answer["metrics"]["details"]
    assert details["trace_file"] is None
    assert [episode.episode_id for episode in episodes] == [
        details["episode_id"],
        after["metrics"]["details"]["episode_id"],
    ]
    assert [path.name for path in folder.iterdir()] == [after["metrics"]["details"]["trace_file"]]
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert details["episode_id"] in record.getMessage()
    assert "No space left" in record.getMessage()


def _no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


async def test_a_folder_that_vanished_is_made_again(hosted, folder):
    async with hosted(**{"server.trace_dir": str(folder)}) as app:
        folder.rmdir()
        answer = await app.played()
    assert [path.name for path in folder.iterdir()] == [answer["metrics"]["details"]["trace_file"]]


async def test_a_folder_that_cannot_be_written_is_refused_at_start(hosted, tmp_path):
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "sft")
    with pytest.raises(ConfigError, match=r"trace folder .*file/sft cannot be written") as caught:
        async with hosted(**{"server.trace_dir": place}):
            pytest.fail("started")
    assert caught.value.field == "server.trace_dir"
    config = load_config(
        None, {"rollout.trace_db": str(tmp_path / "t.db"), "server.trace_dir": place, "server.port": 0}
    )
    with pytest.raises(ConfigError, match="name another with --trace"):
        serve(config, ready=lambda address: pytest.fail(f"served at {address}"), environ={})


def test_the_flag_of_serve_is_the_folder(folder, tmp_path, body_of):
    command = [sys.executable, "-m", "task_app", "serve", "crafter", "--port", "0", "--trace", str(folder),
               "--trace-db", str(tmp_path / "t.db")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        address = re.search(r"http://\S+", said)
        assert address is not None
        answer = httpx.post(f"{address[0]}/rollout", json=body_of(), timeout=60, trust_env=False).json()
    finally:
        process.kill()
        process.communicate()
    assert str(folder) in said
    (path,) = folder.iterdir()
    assert path.name == answer["metrics"]["details"]["trace_file"]
    assert path.read_text().count("\n") == 3
