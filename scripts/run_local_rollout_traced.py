"""Play one episode on a served task app, sum up what it earned, and keep its trace.

    python scripts/run_local_rollout_traced.py --api-key "$ENVIRONMENT_API_KEY" --base-url http://localhost:8010 \
        --model gpt-4o-mini --trace-format full --trace-path ./trace_full.json

Warns when the return does not line up with the event rewards. A thin entry point: `task_app.traced` does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from task_app.cli.common import run_guarded
from task_app.cli.output import console, print_table
from task_app.traced import Broken, Wanted, play_traced


def main() -> None:
    parser = argparse.ArgumentParser(description="Play one episode on a served task app and keep its trace.")
    parser.add_argument("--base-url", default="http://localhost:8010", help="the served task app")
    parser.add_argument("--api-key", default="", help="its key [default: $ENVIRONMENT_API_KEY]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the world")
    parser.add_argument("--policy", help="random | expert | chat | …; --model or --inference-url alone mean chat")
    parser.add_argument("--model", help="chat: the model's name at its endpoint")
    parser.add_argument("--inference-url", help="chat: the model endpoint's base URL [default: the server's own]")
    parser.add_argument("--max-llm-calls", type=int, help="the turn limit [default: the server's own]")
    parser.add_argument("--run-id", help="name of the run [default: a fresh one]")
    parser.add_argument("--trace-format", choices=("compact", "full"), default="compact", help="full: whole record")
    parser.add_argument("--trace-path", type=Path, help="file for the trace as JSON")
    given = parser.parse_args()
    wanted = Wanted(
        base_url=given.base_url,
        api_key=given.api_key or os.environ.get("ENVIRONMENT_API_KEY", ""),
        seeds=(given.seed,),
        run_id=given.run_id,
        policy=given.policy,
        model=given.model,
        inference_url=given.inference_url,
        max_llm_calls=given.max_llm_calls,
        trace_format=given.trace_format,
    )
    (summary,) = play_traced(wanted, trace_path=given.trace_path)
    assert not isinstance(summary, Broken)  # a single one that breaks is raised
    console.print(summary.heading(), soft_wrap=True)
    columns = ("turn", "executed", "AchΔ", "UniqueΔ", "new", "reward", "total")
    print_table("by turn", columns, summary.rows())
    print_table("achievements", ("event", "times"), summary.achievements.items())
    if given.trace_path:
        console.print(f"trace ({given.trace_format}) in {given.trace_path}", soft_wrap=True)
    for warning in summary.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if summary.outcome is None:
        sys.exit(1)


if __name__ == "__main__":
    run_guarded(main)
