"""One transaction per episode: failures leave nothing, concurrency loses nothing, a kill only what was in flight."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

import task_app.store.database
from task_app.core.errors import StoreError
from task_app.core.wire import episode_to_json
from task_app.store import TraceStore

NAN, INF = float("nan"), float("inf")


def with_step(episode, **changes):
    """The episode with its first step changed."""
    first, second = episode.decisions
    return replace(
        episode, decisions=(replace(first, steps=(replace(first.steps[0], **changes), *first.steps[1:])), second)
    )


def with_tokens(episode, **changes):
    """The episode with the token trace of its first completion changed."""
    first, second = episode.decisions
    completion = replace(first.completion, tokens=replace(first.completion.tokens, **changes))
    return replace(episode, decisions=(replace(first, completion=completion), second))


BROKEN = {
    "a taken id": lambda e: e,
    "a NaN reward": lambda e: with_step(replace(e, episode_id="e2"), reward=NAN),
    "an infinite reward": lambda e: with_step(replace(e, episode_id="e2"), reward=INF),
    "a NaN outcome": lambda e: replace(e, episode_id="e2", outcome=NAN),
    "an infinite lambda": lambda e: replace(e, episode_id="e2", flags=replace(e.flags, indicator_lambda=INF)),
    "a NaN log-probability": lambda e: with_tokens(replace(e, episode_id="e2"), logprobs=(0.0, NAN, 0.0)),
    "an infinite log-probability": lambda e: with_tokens(replace(e, episode_id="e2"), logprobs=(0.0, -INF, 0.0)),
    "a token id beyond int32": lambda e: with_tokens(replace(e, episode_id="e2"), completion_ids=(1, 2**31, 3)),
    "a mask beyond a byte": lambda e: with_tokens(replace(e, episode_id="e2"), mask=(0, 1, 256)),
    "a NaN in the details": lambda e: replace(e, episode_id="e2", details={"x": NAN}),
    "details that are no JSON": lambda e: replace(e, episode_id="e2", details={"x": object()}),
    "an unknown status": lambda e: replace(e, episode_id="e2", status="fine"),
    "a seed beyond 64 bits": lambda e: replace(e, episode_id="e2", task=replace(e.task, seed=2**70)),
    "one turn twice": lambda e: replace(e, episode_id="e2", decisions=(e.decisions[0], e.decisions[0])),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_failed_insert_leaves_nothing_and_the_store_usable(path, store, make_episode, broken):
    store.write_episode(make_episode(tokens=True))

    def rows() -> dict[str, int]:
        tables = store.query("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {name: store.query(f"SELECT count(*) FROM {name}")[0][0] for (name,) in tables}

    before = rows()
    with pytest.raises(StoreError, match=f"{path} was not written: "):
        store.write_episode(broken(make_episode(tokens=True)))
    assert rows() == before
    store.write_episode(make_episode("e3"))
    with TraceStore.open(path, read_only=True) as reader:
        assert [episode.episode_id for episode in reader.episodes()] == ["e1", "e3"]


def test_an_interrupt_in_the_middle_rolls_back(store, make_episode, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("task_app.store.writer._insert_steps", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.write_episode(make_episode())
    assert list(store.episodes()) == []
    store.write_episode(make_episode())
    assert store.episode("e1") == make_episode()


def test_eight_threads_of_five_episodes_keep_all_forty(path, store, make_episode):
    def write(thread: int) -> None:
        for index in range(5):
            store.write_episode(make_episode(f"{thread}-{index}", member=thread, tokens=True))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    with TraceStore.open(path, read_only=True) as reader:
        read = {episode.episode_id: episode for episode in reader.episodes()}
    assert read == {
        f"{thread}-{index}": make_episode(f"{thread}-{index}", member=thread, tokens=True)
        for thread in range(8)
        for index in range(5)
    }


def test_two_connections_that_write_at_once_keep_all(path, store, make_episode):
    def write(name: str) -> None:
        with TraceStore.open(path) as own:
            for index in range(10):
                own.write_episode(make_episode(f"{name}-{index}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert len(list(store.episodes())) == 40


def test_reading_while_writing_sees_whole_episodes_only(path, store, make_episode):
    done = threading.Event()

    def write() -> None:
        for index in range(60):
            store.write_episode(make_episode(str(index)))
        done.set()

    writer = threading.Thread(target=write)
    seen = [0]
    with TraceStore.open(path, read_only=True) as reader:
        writer.start()
        while not done.is_set():
            episodes = list(reader.episodes())
            assert all(replace(episode, episode_id="e1") == make_episode() for episode in episodes)
            seen.append(len(episodes))
        writer.join()
        assert len(list(reader.episodes())) == 60
    assert seen == sorted(seen)


LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


@contextmanager
def locked_by_another_process(path):
    """Hold the write lock in another process; gives the function that lets go of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    with process:
        yield lambda: process.communicate("go\n", timeout=30)
    assert process.returncode == 0


def test_a_lock_of_another_process_only_delays(path, store, make_episode):
    writer = threading.Thread(target=lambda: store.write_episode(make_episode()))
    with locked_by_another_process(path) as let_go:
        writer.start()
        writer.join(timeout=0.3)
        assert writer.is_alive()
        let_go()
        writer.join(timeout=30)
    assert store.episode("e1") == make_episode()


def test_a_lock_that_stays_is_a_store_error_and_the_store_goes_on_after_it(path, make_episode, monkeypatch):
    TraceStore.open(path).close()
    monkeypatch.setattr(task_app.store.database, "BUSY_TIMEOUT_S", 0.05)
    with TraceStore.open(path) as store:
        with locked_by_another_process(path) as let_go:
            with pytest.raises(StoreError, match="database is locked"):
                store.write_episode(make_episode())
            let_go()
        store.write_episode(make_episode())
        assert store.episode("e1") == make_episode()


WRITER = """
import json, sys
from dataclasses import replace
from itertools import count
from task_app.core.wire import episode_from_json
from task_app.store import TraceStore
episode = episode_from_json(json.load(sys.stdin))
store = TraceStore.open(sys.argv[1])
for index in count():
    store.write_episode(replace(episode, episode_id=str(index)))
    print(index, flush=True)
"""


def test_a_killed_process_loses_at_most_the_episode_in_flight(path, make_episode):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    json.dump(episode_to_json(make_episode(tokens=True)), process.stdin)
    process.stdin.close()
    told = [int(process.stdout.readline()) for _ in range(25)]
    process.send_signal(signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().split()]
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    with TraceStore.open(path) as store:
        read = {int(episode.episode_id): episode for episode in store.episodes()}
        assert set(told) <= set(read) <= {*told, told[-1] + 1}
        assert all(replace(e, episode_id="e1") == make_episode(tokens=True) for e in read.values())
        assert store.query("PRAGMA integrity_check")[0][0] == "ok"
        store.write_episode(make_episode("after"))


HUNDRED = """
import json, sys
from dataclasses import replace
from task_app.core.wire import episode_from_json
from task_app.store import TraceStore
episode = episode_from_json(json.loads(sys.stdin.readline()))
with TraceStore.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for index in range(100):
        store.write_episode(replace(episode, episode_id=f"{sys.argv[2]}-{index}"))
"""


def test_four_processes_of_a_hundred_episodes_keep_all_four_hundred(path, make_episode):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", HUNDRED, path, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in "abcd"
    ]
    told = json.dumps(episode_to_json(make_episode(tokens=True)))
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(f"{told}\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.communicate(timeout=120)[0] for writer in writers] == [""] * 4
    assert [writer.returncode for writer in writers] == [0] * 4
    with TraceStore.open(path, read_only=True) as store:
        read = {episode.episode_id: episode for episode in store.episodes()}
        assert set(read) == {f"{name}-{index}" for name in "abcd" for index in range(100)}
        assert all(replace(episode, episode_id="e1") == make_episode(tokens=True) for episode in read.values())
        assert store.query("SELECT count(*) FROM messages")[0][0] == 5  # each text once, whoever wrote it first
