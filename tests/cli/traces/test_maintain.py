"""`traces merge`, `prune`, `schema` and `datasette` as a user runs them, in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from task_app.store import TraceStore
from task_app.store.catalogue import CATALOGUE
from tests.known_traces import known_episodes


def run(*arguments, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "task_app", "traces", *map(str, arguments)]
    given = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **given)


@pytest.fixture
def half(tmp_path) -> Path:
    """Two episodes that `known` has too, and the run they belong to."""
    path = tmp_path / "half.db"
    with TraceStore.open(path) as store:
        for episode in known_episodes()[4:6]:
            store.write_episode(episode)
    return path


def ids(path) -> set[str]:
    with TraceStore.open(path, read_only=True) as store:
        return {row[0] for row in store.query("SELECT episode_id FROM episodes")}


def test_merge_says_what_came_from_where(known, half, tmp_path):
    done = run("merge", half, known, "--output", tmp_path / "all.db")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines() if "│" in line]
    assert rows == [[str(half), "2", "5", "0"], [str(known), "8", "19", "2"]]
    size = (tmp_path / "all.db").stat().st_size
    assert f"3 runs, 8 episodes, 19 decisions, {size:,} bytes in {tmp_path / 'all.db'}" in done.stdout.replace(
        "\n", " "
    )
    assert ids(tmp_path / "all.db") == ids(known)


def test_merge_dry_run_json_and_refusals(known, half, tmp_path):
    output = tmp_path / "all.db"
    told = json.loads(run("merge", known, half, "--output", output, "--dry-run", "--json").stdout)
    assert (told["episodes"], told["output"], output.exists()) == (8, None, False)
    done = json.loads(run("merge", known, half, "--output", output, "--json").stdout)
    assert (done["episodes"], done["output"], done["inputs"][1]["known"]) == (8, str(output), 2)
    again = run("merge", known, half, "--output", output)
    assert (again.returncode, again.stderr) == (2, f"error: {output} exists already; give the name of a new file\n")
    assert run("merge", known, "--output", tmp_path / "x.db").returncode == 2
    with TraceStore.open(half) as store:
        store.write_run("day", "rollout", {"other": True})
    clash = run("merge", known, half, "--output", tmp_path / "x.db")
    assert clash.returncode == 1
    assert "run 'day' has another config" in clash.stderr
    assert not (tmp_path / "x.db").exists()
    assert run("merge", known, half, "--output", tmp_path / "x.db", "--keep-first-run").returncode == 0


def test_prune_needs_a_filter_and_a_yes(known):
    before = known.read_bytes()
    without = run("prune", "--db", known, "--yes")
    assert (without.returncode, "at least one of --run-id, --older-than, --status, --superseded" in without.stderr) == (
        2,
        True,
    )
    unsure = run("prune", "--db", known, "--run-id", "day")
    assert unsure.returncode == 2
    assert re.search(r"2 episodes with 5 decisions \(about [\d,]+ bytes\), and 1 whole runs would be", unsure.stderr)
    assert "--yes is needed" in unsure.stderr
    told = run("prune", "--db", known, "--run-id", "day", "--dry-run")
    assert (told.returncode, "2 episodes with 5 decisions" in told.stdout) == (0, True)
    assert known.read_bytes() == before


def test_prune_deletes_what_matches_every_filter(known):
    done = run("prune", "--db", known, "--run-id", "night", "--run-id", "day", "--status", "truncated",
               "--older-than", "30m", "--yes", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["episodes"], told["decisions"], told["runs"], told["done"]) == (4, 10, 1, True)
    assert ids(known) == {"night-2a", "night-2b", "base-1", "base-2"}
    none = run("prune", "--db", known, "--superseded", "--yes")
    assert (none.returncode, "no episode in" in none.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--older-than", "soon"), "7d, 12h or 30m"),
        (("--status", "infra_eror"), "did you mean 'infra_error'"),
        (("--run-id", "nihgt"), "did you mean 'night'"),
    ],
)
def test_prune_names_a_wrong_filter(known, arguments, said):
    done = run("prune", "--db", known, *arguments, "--yes")
    assert (done.returncode, said in done.stderr) == (2, True)
    assert len(ids(known)) == 8


@pytest.mark.parametrize(("answer", "left"), [("n", 8), ("y", 6)])
def test_in_a_terminal_prune_asks(known, answer, left):
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        done = run("prune", "--db", known, "--run-id", "day", stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert "delete 2 episodes with 5 decisions" in done.stderr
    assert len(ids(known)) == left


def test_schema_names_every_column_and_counts(known):
    done = run("schema", "--db", known)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{known.stat().st_size:,} bytes" in done.stdout
    for name, told in CATALOGUE.items():
        assert f"\n{name} ({told.kind}" in done.stdout
        for column in told.columns:
            assert re.search(rf"^ {column} +│", done.stdout, re.MULTILINE), column
    assert "decisions (table, 19 rows)" in done.stdout
    assert json.loads(run("schema", "--db", known, "--json").stdout)["relations"][0]["rows"] == 3


def test_datasette_prints_a_command_to_paste(known, tmp_path):
    done = run("datasette", "--db", known, "--output", tmp_path / "a b.json")
    assert (done.returncode, done.stderr) == (0, "")
    command = done.stdout.splitlines()[-1].strip()
    assert command == f"datasette {known} --metadata '{tmp_path}/a b.json' --setting sql_time_limit_ms 30000"
    assert "known" in json.loads((tmp_path / "a b.json").read_text())["databases"]
