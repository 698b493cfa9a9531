"""The queue with real processes that are no trainings: order, limits, ends of every kind, and being found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from task_app.config.jobs import JobsSection
from task_app.http.process import process_began
from task_app.jobs.process import EXIT, LOCK, PROCESS, is_held, send
from task_app.jobs.rows import Job, JobStatus
from task_app.jobs.runner import Runner
from task_app.jobs.store import JobStore

WAIT_S = 60
SLEEP = "import time\ntry:\n time.sleep(100)\nexcept KeyboardInterrupt:\n raise SystemExit(130)"
STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(100)"


class Queue:
    """A store, folders, and a runner that the test moves on."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.store = folder, JobStore(folder / "jobs.db")
        self._settings, self._runners = JobsSection(**settings), list[Runner]()
        self.runner = self.new_runner()

    def new_runner(self) -> Runner:
        """As a service that begins, which knows nothing but what is on disk."""
        self.runner = Runner(self.store, self.folder, self._settings, os.environ | {"TASK_APP_JOBS_KEY": "secret-key"})
        self._runners.append(self.runner)
        return self.runner

    def add(self, job_id: str, code: str, status: JobStatus = "queued") -> None:
        (self.folder / job_id).mkdir()
        command = [sys.executable, "-c", code]
        job = Job(job_id, "rl", status, "", time.time(), None, None, 0, 0, None, {}, command, [], "")
        self.store.add_job(job, None, max_queued=100)

    def job(self, job_id: str) -> Job:
        job = self.store.job(job_id)
        assert job is not None
        return job

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, [(job.id, job.status, job.reason) for job in self.store.jobs()]
            self.runner.tick()
            time.sleep(0.02)

    def over(self, *job_ids: str) -> list[JobStatus]:
        self.until(lambda: all(self.job(one).over for one in job_ids))
        return [self.job(one).status for one in job_ids]

    def pid(self, job_id: str) -> int:
        """Of the first process of a job, once it trains."""
        place = self.folder / job_id / PROCESS
        self.until(place.exists)
        self.until((self.folder / job_id / "log.txt").exists)
        return json.loads(place.read_text())["pid"]

    def close(self) -> None:
        """End what still runs; a process that has only just been started is waited for, or it would be missed."""
        deadline = time.monotonic() + 20
        for job in self.store.jobs(status="running"):
            while not (self.folder / job.id / PROCESS).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        for lock in self.folder.glob(f"*/{LOCK}"):
            send(lock.parent, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while any(is_held(lock) for lock in self.folder.glob(f"*/{LOCK}")) and time.monotonic() < deadline:
            time.sleep(0.02)
        for runner in self._runners:
            runner.stop()
        self.store.close()


@pytest.fixture
def queue(tmp_path) -> Iterator[Callable[..., Queue]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Queue:
            made = Queue(tmp_path, **settings)
            stack.callback(made.close)
            return made

        yield make


def test_three_jobs_one_at_a_time_in_the_order_they_came(queue, tmp_path):
    book = tmp_path / "book"
    one = queue(concurrency=1)
    for name in ("a", "b", "c"):
        code = (
            f"import time; f = open({str(book)!r}, 'a', buffering=1); f.write('<{name}'); time.sleep(.2); f.write('>')"
        )
        one.add(name, code)
    one.runner.tick()
    assert [job.status for job in one.store.jobs()] == ["running", "queued", "queued"]
    assert [one.store.ahead_of(one.job(name)) for name in "bc"] == [0, 1]
    assert one.over("a", "b", "c") == ["succeeded"] * 3
    assert book.read_text() == "<a><b><c>"


def test_two_at_a_time_where_two_are_allowed(queue):
    two = queue(concurrency=2)
    for name in ("a", "b", "c"):
        two.add(name, SLEEP)
    two.runner.tick()
    two.runner.tick()
    assert [job.status for job in two.store.jobs()] == ["running", "running", "queued"]


def test_a_failed_training_says_why_and_the_next_one_runs(queue):
    one = queue()
    one.add("bad", "import sys; print('noise', file=sys.stderr); sys.exit('error: the disk is full\\n')")
    one.add("silent", "raise SystemExit(7)")
    one.add("good", "print('{}')")
    assert one.over("bad", "silent", "good") == ["failed", "failed", "succeeded"]
    assert one.job("bad").reason == "the disk is full"
    assert one.job("silent").reason == "the training ended with code 7"
    told = [event.data["status"] for event in one.store.events("good") if event.event == "status"]
    assert told == ["queued", "running", "succeeded"]


def test_a_training_gets_no_key_of_the_service(queue):
    one = queue()
    one.add("a", "import os, sys; sys.exit('TASK_APP_JOBS_KEY' in os.environ)")
    assert one.over("a") == ["succeeded"]


def test_cancelled_while_it_waits_and_while_it_runs(queue):
    one = queue()
    one.add("running", SLEEP)
    one.add("waiting", SLEEP)
    one.pid("running")
    time.sleep(0.3)  # until the training itself sleeps
    assert one.store.move("waiting", ("queued",), "cancelled")
    one.store.ask_cancel("running")
    assert one.over("running", "waiting") == ["cancelled", "cancelled"]
    assert json.loads((one.folder / "running" / EXIT).read_text()) == {"code": 130}, "it was asked, not killed"
    assert not is_held(one.folder / "running" / LOCK)


def test_one_that_does_not_end_is_killed_after_the_grace(queue):
    one = queue(cancel_grace_s=0.5)
    one.add("a", STUBBORN)
    one.pid("a")
    time.sleep(0.3)
    one.store.ask_cancel("a")
    assert one.over("a") == ["cancelled"]
    assert not is_held(one.folder / "a" / LOCK)


def test_a_killed_training_is_tried_again_and_then_given_up(queue):
    one = queue(max_deaths=2)
    one.add("a", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert one.over("a") == ["failed"]
    assert (one.job("a").attempts, one.job("a").deaths) == (2, 1)
    assert one.job("a").reason == "killed by SIGKILL, 2 times without a new line of metrics"


def test_deaths_with_progress_between_do_not_add_up(queue, tmp_path):
    one = queue(max_deaths=2)
    code = (
        "import json, os, pathlib, signal\n"
        f"place = pathlib.Path({str(tmp_path / 'a')!r}) / 'run/metrics.jsonl'\n"
        "place.parent.mkdir(exist_ok=True)\n"
        "count = len(place.read_text().splitlines()) if place.exists() else 0\n"
        "place.open('a').write(json.dumps({'kind': 'update', 'update': count}) + '\\n')\n"
        "count < 3 and os.kill(os.getpid(), signal.SIGKILL)"
    )
    one.add("a", code)
    assert one.over("a") == ["succeeded"]
    assert one.job("a").attempts == 4
    assert [e.data["update"] for e in one.store.events("a") if e.event == "metrics"] == [0, 1, 2, 3]


ODD = """
from pathlib import Path
Path('run').mkdir(exist_ok=True)
Path('run/metrics.jsonl').write_text('{"kind": "\\\\ud800", "update": 1}\\n')
"""
"""Writes a line of metrics that no database takes."""


def test_a_fault_nobody_foresaw_ends_neither_the_queue_nor_the_job(queue, caplog):
    one = queue()
    code = ODD.replace("'run", f"'{one.folder}/a/run")
    one.add("a", code)
    one.add("b", "print('{}')")
    one.runner.start()
    deadline = time.monotonic() + WAIT_S
    while not (one.job("a").over and one.job("b").over and one.runner.runs):  # after its next look, which meets none
        assert time.monotonic() < deadline, [(job.id, job.status) for job in one.store.jobs()]
        time.sleep(0.05)
    assert [one.job(name).status for name in "ab"] == ["succeeded"] * 2
    noted = [record for record in caplog.records if "UnicodeEncodeError" in record.getMessage()]
    assert noted, "it is in the log"
    assert noted[0].exc_info


def test_a_job_that_cannot_be_started_keeps_no_other_from_it(queue):
    one = queue(concurrency=2)
    one.add("a", "\0")
    one.add("b", "print('{}')")
    with pytest.raises(ValueError, match="null byte"):
        one.runner.tick()
    assert one.job("b").status == "running"


def test_a_full_service_reads_no_waiting_job(queue, monkeypatch):
    """Bodies may be large and many wait: only what runs, and what may start, is read."""
    one = queue()
    one.add("a", SLEEP)
    for name in "bcd":
        one.add(name, SLEEP)
    read = list[str]()
    of = Job.of

    def counted(row: Any) -> Job:
        read.append(row["id"])
        return of(row)

    monkeypatch.setattr(Job, "of", counted)
    one.runner.tick()
    assert read == ["a"]
    one.runner.tick()
    assert read == ["a", "a"]
    assert (one.store.count("queued"), one.store.count("running")) == (3, 1)
    assert [job.id for job in one.store.first_queued(2)] == ["b", "c"]
    assert one.store.first_queued(0) == one.store.first_queued(-1) == []


def test_a_new_service_watches_what_still_runs(queue, tmp_path):
    one = queue()
    gate = tmp_path / "gate"
    one.add("a", f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(.02)")
    first = one.pid("a")
    one.new_runner()
    for _ in range(3):
        one.runner.tick()
    assert (one.job("a").status, one.pid("a")) == ("running", first)
    gate.touch()
    assert one.over("a") == ["succeeded"]
    assert one.job("a").attempts == 1


def test_a_new_service_learns_how_one_ended_that_nobody_watched(queue):
    one = queue()
    one.add("a", "raise SystemExit('error: no luck')")
    one.runner.tick()
    deadline = time.monotonic() + WAIT_S
    while not (one.folder / "a" / EXIT).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    one.new_runner()
    assert one.over("a") == ["failed"]
    assert (one.job("a").reason, one.job("a").attempts) == ("no luck", 1)


def test_a_new_service_queues_one_whose_processes_died_with_the_old(queue, tmp_path):
    one = queue()
    gate = tmp_path / "gate"
    one.add("a", f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(.02)")
    os.killpg(one.pid("a"), signal.SIGKILL)
    one.new_runner()
    one.until(lambda: one.job("a").attempts == 2)
    gate.touch()
    assert one.over("a") == ["succeeded"]


def test_killed_between_noting_that_a_job_runs_and_starting_it(queue):
    one = queue()
    one.add("a", "print('{}')")
    assert one.store.move("a", ("queued",), "running", attempts=1)
    assert one.over("a") == ["succeeded"]
    assert one.job("a").attempts == 2


def test_two_processes_for_one_job_run_it_once(queue, tmp_path):
    one = queue()
    book = tmp_path / "book"
    one.add("a", f"import time; open({str(book)!r}, 'a').write('x'); time.sleep(.5)")
    one.runner.tick()
    while not is_held(one.folder / "a" / LOCK):  # else the second may be the first
        time.sleep(0.01)
    command = [sys.executable, "-m", "task_app.jobs.keeper", str(one.folder / "a"), *one.job("a").command]
    second = subprocess.run(command, timeout=60, check=False)
    assert second.returncode == 75
    assert one.over("a") == ["succeeded"]
    third = subprocess.run(command, timeout=60, check=False)
    assert (third.returncode, book.read_text()) == (75, "x")


def test_a_process_id_that_is_anothers_by_now_gets_no_signal(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    try:
        (tmp_path / LOCK).touch()
        ticks = process_began(other.pid)
        assert ticks
        (tmp_path / PROCESS).write_text(json.dumps({"pid": other.pid, "start": f"{int(ticks) - 1}"}))
        send(tmp_path, signal.SIGKILL)
        (tmp_path / PROCESS).write_text(json.dumps({"pid": other.pid, "start": ticks}))
        send(tmp_path, signal.SIGKILL)  # the right process, but nobody holds the lock
        time.sleep(0.1)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
