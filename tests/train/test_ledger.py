"""The ledger: strict records of every run, what differed from the one before, and nothing lost between two writers."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from task_app.analyze.stats import summarise
from task_app.codehash import code_hash
from task_app.core.errors import ConfigError, TrainError
from task_app.store import TraceStore
from task_app.train.grpo import run_training
from task_app.train.heartbeat import read_heartbeat
from task_app.train.launch import train_config
from task_app.train.ledger import COLUMNS, Ledger, changes, config_hash, ledger_of, ledger_rows, reward_keys, run_config
from task_app.train.metrics import MetricsLog
from task_app.train.paired import by_world, paired_interval
from task_app.train.report import RANDOM
from task_app.train.sft import run_sft
from tests.train.test_sft_data import line as data_line


def train(config, spec, progress=None):
    with TraceStore.open(config.rollout.trace_db) as store:
        return run_training(config, spec, store, progress=progress)


def records_of(config) -> list[dict]:
    return ledger_of(config.training.run_dir).records()


def starts(config) -> list[dict]:
    return [record for record in records_of(config) if record["event"] == "start"]


# -- a run's two records ---------------------------------------------------------------------------------


def test_a_run_has_a_start_and_an_end(config_in, line, tmp_path):
    config = config_in(tmp_path, training__hypothesis="rightward", training__expectation="above 2", training__note="n")
    result = train(config, line)
    start, end = records_of(config)
    assert (start["event"], start["status"], start["kind"], start["run_id"]) == (
        "start",
        "running",
        "rl",
        result.run_id,
    )
    assert (start["hypothesis"], start["expectation"], start["note"]) == ("rightward", "above 2", "n")
    assert start["code_hash"] == code_hash()
    assert start["config_hash"] == config_hash(run_config(config, "rl"))
    assert (start["compared_with"], start["changes"], start["resumed_at"]) == (None, {}, None)
    assert (end["event"], end["status"], end["run_id"], end["update"], end["why"]) == (
        "end", "done", result.run_id, 3, "",
    )  # fmt: skip
    gain = paired_interval(by_world(result.before), by_world(result.after))
    assert end["result"]["before"] == result.before["mean"]
    assert end["result"]["after"] == result.after["mean"]
    assert end["result"]["gain"] == gain.mean
    assert end["result"]["gain_interval"] == [gain.low, gain.high]
    lines = MetricsLog(result.metrics).lines()
    updates = [entry for entry in lines if entry["kind"] == "update"]
    assert end["cost"]["decisions"] == sum(entry["decisions"] for entry in updates) > 0
    assert end["cost"]["tokens"] == sum(entry["train/tokens"] for entry in updates) > 0
    assert end["cost"]["seconds"] == pytest.approx(
        sum(entry["machine"]["seconds"]["total"] for entry in lines if entry["kind"] in ("update", "eval"))
    )
    assert end["cost"]["peak_rss_mb"] > 0
    assert read_heartbeat(config.training.run_dir).status == "done"


def test_records_are_strict_json(tmp_path):
    book = Ledger(tmp_path / "deep" / "ledger.jsonl")
    book.append({"event": "end", "kind": "rl", "run_id": "a", "x": float("nan"), "y": [float("inf")]})

    def refuse(text: str) -> None:
        raise AssertionError(text)

    (record,) = [json.loads(text, parse_constant=refuse) for text in book.path.read_text().splitlines()]
    assert (record["x"], record["y"]) == (None, [None])


class Killed(BaseException):
    """Stands for an interrupt."""


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [(Killed(), "interrupted", "Killed"), (TrainError("no gradient"), "failed", "TrainError: no gradient")],
)
def test_how_a_run_ended_is_told(config_in, line, tmp_path, error, status, why):
    config = config_in(tmp_path)

    def progress(entry):
        if (entry["kind"], entry["update"]) == ("update", 2):
            raise error

    with pytest.raises(type(error)):
        train(config, line, progress)
    end = records_of(config)[-1]
    assert (end["event"], end["status"], end["why"], end["update"]) == ("end", status, why, 2)
    assert read_heartbeat(config.training.run_dir).status == status
    resumed = train(config, line)
    again, last = records_of(config)[-2:]
    assert (again["run_id"], again["resumed_at"], again["changes"]) == (resumed.run_id, 0, {})
    assert (last["status"], last["update"]) == ("done", 3)


def test_a_run_that_is_refused_leaves_no_record(config_in, line, tmp_path):
    config = config_in(tmp_path, policy__top_p=0.5)
    with pytest.raises(ConfigError):
        train(config, line)
    assert not ledger_of(config.training.run_dir).path.exists()


# -- collapse ------------------------------------------------------------------------------------------------


def collapsing(config_in, folder, **more):
    """A run in which nobody can earn anything: the only decision is the last and steps to the right are no event."""
    settings = {"training__updates": 9, "training__guards__collapse_warn_after": 2}
    settings |= {"training__guards__collapse_stop_after": 3, "task__options": {"width": 0}}
    return config_in(folder, **(settings | more))


def test_a_collapsed_run_stops_is_saved_and_can_go_on(config_in, line_of, tmp_path, caplog):
    spec, config = line_of(width=0), collapsing(config_in, tmp_path)
    result = train(config, spec)
    assert result.updates == 3
    assert "in 3 updates in a row" in result.collapse
    assert result.checkpoint.name == "u000003"
    assert result.after["update"] == 3
    end = records_of(config)[-1]
    assert (end["status"], end["update"]) == ("collapsed", 3)
    assert end["why"] == result.collapse
    assert read_heartbeat(config.training.run_dir).status == "collapsed"
    said = [record.message for record in caplog.records if "collapse" in record.message]
    assert [text.split(":")[0] for text in said] == ["update 2", "update 3"]
    again = train(config, spec)  # the count goes on from the log: one more update, not three
    assert again.updates == 4
    counts = [entry.get("guard/collapsed_updates") for entry in MetricsLog(result.metrics).lines()]
    assert [count for count in counts if count is not None] == [1, 2, 3, 4]


def test_without_the_stop_it_would_have_gone_on(config_in, line_of, tmp_path):
    config = collapsing(config_in, tmp_path, training__guards__collapse_stop_after=0)
    result = train(config, line_of(width=0))
    assert (result.updates, result.collapse) == (9, "")


def test_the_report_says_so_and_the_command_fails(config_in, line_of, tmp_path, monkeypatch):
    config = collapsing(config_in, tmp_path)
    monkeypatch.setattr("task_app.train.launch.check", lambda config: line_of(width=0))
    with pytest.raises(TrainError, match=r"stopped as COLLAPSED after update 3 \(collapse: in 3 updates in a row"):
        train_config(config, progress=lambda entry: None, note=lambda text: None, extra={RANDOM: summarise([])})
    page = (config.training.run_dir / "report.html").read_text()
    assert "COLLAPSED: stopped after update 3" in page


# -- what differs from the run before -----------------------------------------------------------------------------


def test_one_reward_setting_may_differ_two_need_a_note(config_in, line, tmp_path, caplog):
    train(config_in(tmp_path, training__run_dir=str(tmp_path / "a")), line)
    one = config_in(tmp_path, training__run_dir=str(tmp_path / "b"), training__credit__gamma=0.9, seed=1)
    train(one, line)
    assert starts(one)[-1]["changes"] == {"seed": [0, 1], "training.credit.gamma": [1.0, 0.9]}
    assert starts(one)[-1]["reward_changes"] == ["training.credit.gamma"]
    assert "affect rewards" not in caplog.text
    two = {"training__credit__gamma": 0.5, "training__step_rewards_indicator_lambda": 0.5, "seed": 1}
    train(config_in(tmp_path, training__run_dir=str(tmp_path / "c"), **two), line)
    expected = "2 settings that affect rewards differ from run"
    assert expected in caplog.text
    assert "step_rewards.indicator_lambda, training.credit.gamma; whatever comes" in caplog.text
    assert starts(one)[-1]["changes"]["step_rewards.indicator_lambda"] == [0.0, 0.5]
    assert len(starts(one)[-1]["warnings"]) == 1
    caplog.clear()
    back = config_in(tmp_path, training__run_dir=str(tmp_path / "d"), training__note="back to the start")
    train(back, line)
    assert expected not in caplog.text
    assert len(starts(back)[-1]["reward_changes"]) == 2


def test_a_run_is_compared_with_the_last_in_a_folder_of_its_name(config_in, line, tmp_path):
    configs = [config_in(tmp_path, seed=seed, training__run_dir=str(tmp_path / name))
               for seed, name in enumerate(("a", "b"))]  # fmt: skip
    ids = [train(config, line).run_id for config in configs]
    assert starts(configs[0])[1]["compared_with"] == ids[0]  # none of its name: the last of its kind
    resumed = config_in(tmp_path, training__run_dir=str(tmp_path / "a"), training__updates=4)
    train(resumed, line)
    assert starts(resumed)[2]["compared_with"] == ids[0]  # not b, which is later
    assert starts(resumed)[2]["changes"] == {"training.updates": [3, 4]}


def test_ways_to_write_the_same_flags_are_no_difference(config_in, tmp_path):
    plain, spelled = config_in(tmp_path), config_in(tmp_path, rollout__step_rewards_mode="decision_stepwise")
    assert changes(run_config(plain, "rl"), run_config(spelled, "rl")) == {}
    off = config_in(tmp_path, training__step_rewards_enabled=False)
    differing = changes(run_config(plain, "rl"), run_config(off, "rl"))
    assert differing == {"step_rewards.mode": ["decision_stepwise", "off"]}
    assert reward_keys(differing) == ["step_rewards.mode"]


def test_names_and_purpose_do_not_change_the_hash(config_in, tmp_path):
    one = run_config(config_in(tmp_path), "rl")
    other = run_config(config_in(tmp_path / "other", training__hypothesis="h", training__note="n"), "rl")
    assert config_hash(one) == config_hash(other)
    assert config_hash(one) != config_hash(run_config(config_in(tmp_path, seed=9), "rl"))


# -- the file ------------------------------------------------------------------------------------------------------


def test_two_processes_at_once_lose_nothing(tmp_path):
    program = """
        import sys
        from pathlib import Path
        from task_app.train.ledger import Ledger
        book = Ledger(Path(sys.argv[1]))
        for number in range(100):
            book.append({"event": "end", "kind": "rl", "run_id": sys.argv[2], "n": number, "pad": "x" * 5000})
    """
    path = tmp_path / "ledger.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    writers = [subprocess.Popen([*command, name]) for name in ("a", "b")]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    lines = path.read_text().splitlines()
    assert len(lines) == 200
    for name in ("a", "b"):
        assert [r["n"] for r in map(json.loads, lines) if r["run_id"] == name] == list(range(100))


def test_half_a_record_left_by_a_crash_costs_only_itself(tmp_path, caplog):
    book = Ledger(tmp_path / "ledger.jsonl")
    book.append({"event": "end", "kind": "rl", "run_id": "a"})
    with book.path.open("a") as file:
        file.write('{"event": "en')
    book.append({"event": "end", "kind": "rl", "run_id": "b"})
    assert [record["run_id"] for record in book.records()] == ["a", "b"]
    assert "line 2 is no record" in caplog.text


def test_a_ledger_that_cannot_be_written_stops_a_run_before_it_plays(config_in, line, tmp_path):
    config = config_in(tmp_path)
    (tmp_path / "ledger.jsonl").mkdir()
    with pytest.raises(TrainError, match=r"ledger\.jsonl could not be written"):
        ledger_of(config.training.run_dir).append({})
    with pytest.raises(TrainError, match=r"ledger\.jsonl cannot be read"):
        train(config, line)
    assert not (config.training.run_dir / "metrics.jsonl").exists()


def test_rows_tell_start_end_and_what_was_killed(config_in, line, tmp_path):
    config = config_in(tmp_path, training__hypothesis="h")
    result = train(config, line)
    book = ledger_of(config.training.run_dir)
    whole = book.records()
    (row,) = ledger_rows(whole)
    told = dict(zip(COLUMNS, row, strict=True))
    assert (told["run"], told["status"], told["updates"], told["hypothesis"]) == (result.run_id, "done", 3, "h")
    assert told["after"] == result.after["mean"]
    (row,) = ledger_rows(whole[:1])  # a start alone, whose process is there
    assert row[COLUMNS.index("status")] == "running"
    gone = [whole[0] | {"pid": 2**22 + 1}]
    assert dict(zip(COLUMNS, ledger_rows(gone)[0], strict=True))["status"] == "interrupted"
    twice = [whole[0], whole[0] | {"resumed_at": 2}, whole[1]]
    assert [row[COLUMNS.index("status")] for row in ledger_rows(twice)] == ["interrupted", "done"]


# -- the code ------------------------------------------------------------------------------------------------------


def test_resuming_with_other_code_warns(config_in, line, tmp_path, caplog):
    config = config_in(tmp_path)
    result = train(config, line)
    state = json.loads((result.checkpoint / "state.json").read_text())
    assert state["code_hash"] == code_hash()
    train(config, line)
    assert "other code" not in caplog.text
    (result.checkpoint / "state.json").write_text(json.dumps(state | {"code_hash": "0" * 64}))
    train(config, line)
    assert "made by other code (000000000000)" in caplog.text


def test_a_supervised_run_is_recorded_too(config_in, line_of, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(data_line("right")) + "\n" for _ in range(4)))
    config = config_in(tmp_path, sft__dataset=str(data), sft__epochs=1, sft__run_dir=str(tmp_path / "sft"))
    result = run_sft(config, line_of())
    start, end = ledger_of(config.sft.run_dir).records()
    assert (start["kind"], start["run_id"], end["status"]) == ("sft", result.run_id, "done")
    assert end["result"] == {"loss": result.loss, "validation_loss": None, "entropy": result.entropy}
    assert end["cost"]["seconds"] > 0
    assert start["config"]["sft.epochs"] == 1
    assert not any(key.startswith(("step_rewards.", "rollout.")) for key in start["config"])
    assert read_heartbeat(config.sft.run_dir).status == "done"


def test_commands_show_status_and_ledger(config_in, line, tmp_path):
    config = config_in(tmp_path)
    run_id = train(config, line).run_id

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "task_app", "train", *arguments]
        return subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False)

    done = command("--status", str(config.training.run_dir))
    assert (done.returncode, done.stdout.split(" · ")[:3]) == (0, ["done", "update 3", "over"])
    shown = command("--ledger", f"--training.run_dir={config.training.run_dir}")
    assert run_id in shown.stdout.replace("\n", "")
    told = json.loads(command("--ledger", f"--training.run_dir={config.training.run_dir}", "--json").stdout)
    assert told == records_of(config)
    beat = config.training.run_dir / "heartbeat.json"
    beat.write_text(json.dumps(json.loads(beat.read_text()) | {"status": "running", "pid": 2**22 + 1}))
    dead = command("--status", str(config.training.run_dir), "--json")
    assert (dead.returncode, json.loads(dead.stdout)["dead"]) == (1, True)
    nothing = command("--status", str(tmp_path / "nowhere"))
    assert nothing.returncode == 1
    assert "no run was started there" in nothing.stderr
