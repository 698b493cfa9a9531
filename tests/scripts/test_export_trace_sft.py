"""scripts/export_trace_sft.py: the same flags and the same file as the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from task_app.export import EpisodeFilters, export_sft

SCRIPT = Path(__file__).parents[2] / "scripts/export_trace_sft.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_it_writes_what_the_library_writes(known, tmp_path):
    done = run("--db", known, "--output", tmp_path / "script.jsonl", "--provider", "openai", "--provider", "groq",
               "--exclude-achievement", "collect_wood", "--min-unique", "1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    filters = EpisodeFilters(provider=("openai", "groq"), exclude_achievement=("collect_wood",), min_unique=1)
    report = export_sft(known, tmp_path / "library.jsonl", filters)
    assert report.rows == (12,)  # day-2 3, night-1a 3, night-1b 2, night-2a 4
    assert (tmp_path / "script.jsonl").read_bytes() == (tmp_path / "library.jsonl").read_bytes()


def test_its_exit_codes_are_the_commands(known, tmp_path):
    assert run("--db", known, "--output", tmp_path / "o.jsonl", "--min-unique", "9").returncode == 1
    refused = run("--db", known, "--output", tmp_path / "o.jsonl", "--require-achievement", "wake_upp")
    assert refused.returncode == 2
    assert refused.stderr.strip().endswith("did you mean 'wake_up'?")
