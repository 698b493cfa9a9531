"""The sign of life: whole at every moment, at most once a second, and honest about dead runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from task_app.core.errors import TrainError
from task_app.train.heartbeat import FILE, Heartbeat, beating, read_heartbeat
from task_app.train.policy import EmbeddedPolicy


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_what_was_beaten_is_read_with_its_age(tmp_path, clock):
    Heartbeat(tmp_path, clock=clock).beat(7, "learning")
    clock.now += 12.5
    pulse = read_heartbeat(tmp_path, clock=clock)
    assert (pulse.age_s, pulse.update, pulse.phase, pulse.status) == (12.5, 7, "learning", "running")
    assert (pulse.pid, pulse.process_gone) == (os.getpid(), False)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_at_most_once_a_second_and_at_every_change(tmp_path, clock):
    heart = Heartbeat(tmp_path, clock=clock)
    assert heart.beat(1, "playing")
    clock.now += 0.5
    assert not heart.beat(1, "playing")
    assert heart.beat(1, "learning")
    assert heart.beat(2, "learning")
    assert heart.beat(2, "learning", "done")
    clock.now += 0.9
    assert not heart.beat(2, "learning", "done")
    clock.now += 0.2
    assert heart.beat(2, "learning", "done")
    assert read_heartbeat(tmp_path, clock=clock).age_s == 0


def test_a_clock_set_back_does_not_silence_it(tmp_path, clock):
    heart = Heartbeat(tmp_path, clock=clock)
    heart.beat(1, "playing")
    clock.now -= 500
    assert heart.beat(1, "playing")


def test_a_reader_never_sees_half_a_file(tmp_path):
    heart, over, problems = Heartbeat(tmp_path, every_s=0), threading.Event(), []
    heart.beat(0, "playing")

    def read() -> None:
        while not over.is_set():
            try:
                read_heartbeat(tmp_path)
            except TrainError as error:
                problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for update in range(500):
        heart.beat(update, "playing")
    over.set()
    reader.join()
    assert not problems


def test_dead_is_a_process_that_is_gone_or_an_age_above_the_limit(tmp_path, clock):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    Heartbeat(tmp_path, clock=clock, pid=child.pid).beat(3, "playing")
    pulse = read_heartbeat(tmp_path, clock=clock)
    assert pulse.is_dead(600)
    assert not pulse.is_well(600)
    assert pulse.describe(600) == f"dead · update 3 · playing · last moved 0.0 s ago, process {child.pid} is gone"
    Heartbeat(tmp_path, clock=clock).beat(3, "playing")
    clock.now += 61
    pulse = read_heartbeat(tmp_path, clock=clock)
    assert (pulse.is_dead(60), pulse.is_dead(62)) == (True, False)
    assert pulse.describe(60).endswith("61.0 s ago, the limit is 60 s")


def test_a_run_elsewhere_is_judged_by_age_alone(tmp_path, clock):
    Heartbeat(tmp_path, clock=clock, pid=2**22 + 1).beat(3, "playing")
    content = json.loads((tmp_path / FILE).read_text())
    assert read_heartbeat(tmp_path, clock=clock).process_gone
    (tmp_path / FILE).write_text(json.dumps(content | {"host": "elsewhere"}))
    assert not read_heartbeat(tmp_path, clock=clock).is_dead(60)


@pytest.mark.parametrize(
    ("status", "well"), [("done", True), ("running", True), ("collapsed", False), ("failed", False)]
)
def test_a_finished_run_is_not_dead_however_old(tmp_path, clock, status, well):
    Heartbeat(tmp_path, clock=clock).beat(3, "over", status)
    clock.now += 0.0 if status == "running" else 1e6
    pulse = read_heartbeat(tmp_path, clock=clock)
    assert (pulse.is_dead(600), pulse.is_well(600)) == (False, well)


def test_no_heartbeat_and_no_such_thing_are_named(tmp_path):
    with pytest.raises(TrainError, match=r"has no heartbeat\.json: no run was started there"):
        read_heartbeat(tmp_path)
    for text in ("{", "[]", "{}", '{"at": "soon"}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(TrainError, match="is not a heartbeat"):
            read_heartbeat(tmp_path)


def test_a_disk_that_refuses_warns_once_and_nothing_stops(tmp_path, caplog):
    heart = Heartbeat(tmp_path / "gone", every_s=0)
    assert not heart.beat(1, "playing")
    assert not heart.beat(2, "playing")
    assert len(caplog.records) == 1
    assert "the run goes on" in caplog.text


def test_a_beating_policy_is_the_policy(network, request_for):
    policy, beats = EmbeddedPolicy(network), []
    watched = beating(policy, lambda: beats.append(1))
    policy.set_updates(5)
    assert (watched.name, watched.version, watched.batched) == ("embedded", "u5", True)
    expected = policy.decide([request_for("place 1")])[0]
    assert watched.decide([request_for("place 1")])[0].message == expected.message
    assert len(beats) == 1
    watched.end_episode("e")
