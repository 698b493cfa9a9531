"""`traces export-sft` as a user runs it, and its page in docs/."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from task_app.cli import app
from task_app.core.rewards import rewards_from_events
from task_app.store import TraceStore
from tests.known_traces import known_episodes, write_known

DOC = (Path(__file__).parents[3] / "docs/sft_export.md").read_text(encoding="utf-8")

NOTE = r"""
export_trace_sft.py \
  --db traces/v3/synth_ai.db \
  --output traces/qwen32b_filtered.jsonl \
  --model qwen/qwen3-32b \
  --exclude-achievement collect_sapling \
  --exclude-achievement collect_drink \
  --min-unique 3 \
  --event-reward unique_achievement_delta:1.0 \
  --limit 100
"""
"""The command line of the design note, word for word after the program's name."""


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "task_app", "traces", "export-sft", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def with_events(episode_id: str, *turns: str):
    """day-2 under another id, with these events in its three turns."""
    episode = next(episode for episode in known_episodes() if episode.episode_id == "day-2")
    records = rewards_from_events(turn.split() for turn in turns)
    decisions = [
        replace(d, steps=(d.steps[0], replace(d.steps[1], events=tuple(turn.split()))), rewards=record)
        for d, turn, record in zip(episode.decisions, turns, records, strict=True)
    ]
    return replace(
        episode, episode_id=episode_id, decisions=tuple(decisions), outcome=float(sum(r.unique_delta for r in records))
    )


def test_the_notes_own_command_line(tmp_path):
    """Of the known episodes none passes; of two more the one whose third achievement is no sapling or drink."""
    db = tmp_path / "traces/v3/synth_ai.db"
    with TraceStore.open(db) as store:
        write_known(store)
        store.write_episode(with_events("easy", "collect_wood", "collect_sapling collect_drink", "eat_cow"))
        store.write_episode(with_events("hard", "collect_wood collect_drink", "place_table", "eat_cow"))
    done = run(*NOTE.replace("\\\n", " ").split()[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "traces/qwen32b_filtered.jsonl").read_text().splitlines()]
    assert [(row["metadata"]["episode_id"], row["metadata"]["turn"]) for row in rows] == [
        ("hard", 1), ("hard", 2), ("hard", 3),
    ]  # fmt: skip
    assert "3 rows of 1 seeds in traces/qwen32b_filtered.jsonl" in done.stdout


def test_the_tables_name_each_filter_and_what_was_left_out(known, tmp_path):
    done = run("--db", known, "--output", tmp_path / "o.jsonl", "--run-id", "day", "--min-outcome-reward", "1")
    assert done.returncode == 0, done.stderr
    cells = [line.split("│") for line in done.stdout.splitlines() if "│" in line]
    table = {name.strip(): count.strip() for name, count in cells}
    assert table == {
        "superseded by a resumed run": "0",
        "without a reward (infra_error, aborted)": "1",
        "--run-id day": "5",
        "--min-outcome-reward 1": "0",
        "the answer did not parse": "1",
    }
    assert "2 of 8 episodes" in done.stdout
    assert f"4 rows of 2 seeds in {tmp_path / 'o.jsonl'}" in done.stdout


def test_json_split_format_and_decisions_reach_the_library(known, tmp_path):
    done = run(
        "--db", known, "--output", tmp_path / "o.jsonl", "--json", "--dedupe", "--split", "1:1", "--format", "trl",
        "--decisions", "rewarded", "--policy", "chat", "--provider", "openai", "--require-achievement", "wake_up",
        "--max-unique", "3", "--max-outcome-reward", "3",
    )  # fmt: skip
    assert done.returncode == 1  # one seed cannot be on both sides
    assert "--split puts all 1 seeds into" in done.stderr
    done = run("--db", known, "--output", tmp_path / "o.jsonl", "--json", "--format", "trl", "--decisions", "rewarded")
    report = json.loads(done.stdout)
    assert [file["rows"] for file in report["files"]] == [10]
    row = json.loads((tmp_path / "o.jsonl").read_text().splitlines()[0])
    assert row["messages"][-1]["tool_calls"][0]["function"]["arguments"] == {"actions": ["noop", "do"]}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--model", "qwen"], 1, "--model qwen (no episode has it"),
        (["--require-achievement", "colect_wood"], 2, "did you mean 'collect_wood'?"),
        (["--format", "chatml"], 2, "--format 'chatml': must be one of openai, trl"),
        (["--min-unique", "3", "--max-unique", "1"], 2, "--min-unique 3 is above --max-unique 1"),
        (["--min-uniqe", "3"], 2, "--min-unique"),
        (["--limit", "many"], 2, "Invalid value for '--limit'"),
    ],
)
def test_what_fails_is_one_sentence_and_an_exit_code(known, tmp_path, arguments, code, says):
    done = run("--db", known, "--output", tmp_path / "o.jsonl", *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


# -- the page ---------------------------------------------------------------------------------------


def options() -> dict[str, Any]:
    """The command's options by their long name."""
    command: Any = typer.main.get_command(app)
    for name in ("traces", "export-sft"):
        command = command.commands[name]
    return {option.opts[-1]: option for option in command.params}


def flags_table() -> dict[str, list[str]]:
    found = re.search(r"^\| flag \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert found
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]
    return {row[0].strip("`| "): row for row in rows}


def test_every_flag_is_documented_with_its_default_and_whether_it_repeats():
    table, known = flags_table(), options()
    assert set(table) == set(known) - {"--help"}
    for name, (_, default, repeatable, _) in table.items():
        option = known[name]
        assert repeatable == ("yes" if option.multiple else "no"), name
        if option.required:
            assert default == "required", name
        elif option.is_flag:
            assert (default, option.default) == ("off", False), name
        else:
            assert default == (f"`{option.default}`" if option.default else "–"), name


def test_the_pages_command_line_runs_and_its_row_has_the_keys_of_a_row(known, tmp_path):
    block = re.search(r"```bash\ntask-app traces export-sft (.*?)```", DOC, re.DOTALL)
    assert block
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces/task_app.db").write_bytes(known.read_bytes())
    done = run(*block[1].replace("\\\n", " ").split(), cwd=tmp_path)
    assert (done.returncode, "--min-unique 3: 2" in done.stderr) == (1, True), done.stderr
    run("--db", known, "--output", tmp_path / "o.jsonl")
    row = json.loads((tmp_path / "o.jsonl").read_text().splitlines()[0])
    example = re.search(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert example
    shown = json.loads(example[1])
    assert list(shown) == list(row)
    assert list(shown["metadata"]) == list(row["metadata"])
    documented = re.search(r"^\| metadata key \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", DOC, re.MULTILINE)
    assert documented
    assert set(re.findall(r"`(\w+)`", "\n".join(line.split(" | ")[0] for line in documented[1].splitlines()))) == set(
        row["metadata"]
    )
