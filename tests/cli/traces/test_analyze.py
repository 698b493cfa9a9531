"""`traces analyze` and its script as a user runs them: in a process of their own, against real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.store import TraceStore
from tests.known_traces import write_known

ROOT = Path(__file__).parents[3]
TASK_APP = ("-m", "task_app", "traces", "analyze")
SCRIPT = (str(ROOT / "scripts/analyze_trace_db.py"),)


def run(*arguments: str | Path, command: tuple[str, ...] = TASK_APP) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *command, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


def test_tables_show_hand_counted_rows(known):
    done = run("--db", known)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines() if "│" in line]
    assert ["chat:gpt-4o-mini", "1", "4", "3", "10", "10", "1000", "100", "0.50", "0.50", "0.50"] in rows
    assert ["chat:gpt-4o-mini", "outcome", "3", "2.00", "2.00", "-0.48 to 4.48"] in rows
    assert ["collect_wood", "████████", "50 %", "1", "1", "2.00", "2.00", "2"] in rows
    assert ["3", "2", "3", "2", "1.50", "1.00", "████████████████"] in rows
    assert "warning: groups with a member missing or without reward: 1 (night/update 0/s2)" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("command", [TASK_APP, SCRIPT], ids=["task-app", "script"])
def test_json_is_one_document_with_the_same_numbers(known, command):
    done = run("--db", known, "--run-id", "night", "--run-id", "base", "--compare", "random", "gpt-4o-mini",
               "--json", "--prices.gpt-4o-mini.input=0.5", command=command)  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [player["label"] for player in report["players"]] == ["chat:gpt-4o-mini", "random"]
    assert report["players"][0]["cost"]["total"] == pytest.approx(0.0005)
    assert (report["comparison"]["losses"], report["comparison"]["difference"]["mean"]) == (2, -1.75)


def test_prices_come_from_the_toml(known, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[prices]\n"qwen/qwen3-32b" = { gpu_hour = 7200 }\n')
    done = run("--db", known, "--config", config)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "2,500" in line or "2.5 " in line)
    assert [cell.strip() for cell in line.split("│")] == ["chat:qwen/qwen3-32b", "2.5", "0", "2.5", "1.25", "0.833"]


def test_the_page_is_written(known, tmp_path):
    pytest.importorskip("matplotlib", reason="the page needs the extra `train`")
    page = tmp_path / "report.html"
    done = run("--db", known, "--html", page)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(page)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_an_endpoint_said_is_printed_and_not_taken_for_markup(tmp_path):
    path = tmp_path / "t.db"
    with TraceStore.open(path) as store:
        write_known(store)
        store._connection.execute("UPDATE episodes SET cause = 'said [/red] [bold]' WHERE status = 'infra_error'")
    done = run("--db", path)
    assert done.returncode == 0, done.stderr
    assert "1 × said [/red] [bold]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--db", "no/such.db"), 1, "no/such.db does not exist"),
        (("--db", "pyproject.toml"), 1, "pyproject.toml"),
        (("--db", "KNOWN", "--run-id", "nigth"), 2, "did you mean 'night'"),
        (("--db", "KNOWN", "--compare", "random", "chat"), 2, "could be any of"),
        (("--db", "KNOWN", "--prces.x.input=1"), 2, "did you mean 'prices'"),
        (("--db", "KNOWN", "--prices.x.inptu=1"), 2, "did you mean 'input'"),
        (("--db", "KNOWN", "--prices.x.input=-1"), 2, "prices.x.input"),
        (("--db", "KNOWN", "--htlm", "x"), 2, "--htlm"),
        (("--db", "KNOWN", "--html", "KNOWN"), 2, "is the database"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_named(known, arguments, code, said):
    before = known.read_bytes()
    done = run(*(known if argument == "KNOWN" else argument for argument in arguments))
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert known.read_bytes() == before


def test_an_empty_database_says_so(tmp_path):
    TraceStore.open(tmp_path / "empty.db").close()
    done = run("--db", tmp_path / "empty.db", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "empty.db holds no episodes yet" in done.stderr
