"""Play episodes on a deployed task app, one for each seed, and sum up what they earned.

    python scripts/run_rollout_remote.py --base-url https://<modal-app-url> --api-key "$ENVIRONMENT_API_KEY" \
        --model gpt-4o-mini --max-llm-calls 10 --seed 0:8

Exit code 1 if any rollout broke. A thin entry point: `task_app.traced` does the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from task_app.cli.common import run_guarded
from task_app.cli.output import console, print_table, progress_bar
from task_app.config import SeedRange
from task_app.traced import Broken, Wanted, outcomes, play_traced


def seeds(text: str) -> range:
    try:
        return SeedRange.parse(text).seeds()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(description="Play episodes on a deployed task app.")
    parser.add_argument("--base-url", required=True, help="the deployed task app")
    parser.add_argument("--api-key", default="", help="its key [default: $ENVIRONMENT_API_KEY]")
    parser.add_argument("--seed", type=seeds, action="append", help="one seed or A:B, B left out; may be given again")
    parser.add_argument("--policy", help="random | expert | chat | …; --model or --inference-url alone mean chat")
    parser.add_argument("--model", help="chat: the model's name at its endpoint")
    parser.add_argument("--inference-url", help="chat: the model endpoint's base URL [default: the server's own]")
    parser.add_argument("--max-llm-calls", type=int, help="the turn limit [default: the server's own]")
    parser.add_argument("--run-id", help="name of the run [default: a fresh one]")
    parser.add_argument("--trace-format", choices=("compact", "full"), default="compact", help="full: whole record")
    parser.add_argument("--trace-path", type=Path, help="file for the trace as JSON; with several seeds, a list")
    given = parser.parse_args()
    every = dict.fromkeys(seed for some in given.seed or [range(1)] for seed in some)
    wanted = Wanted(
        base_url=given.base_url,
        api_key=given.api_key or os.environ.get("ENVIRONMENT_API_KEY", ""),
        seeds=tuple(every),
        run_id=given.run_id,
        policy=given.policy,
        model=given.model,
        inference_url=given.inference_url,
        max_llm_calls=given.max_llm_calls,
        trace_format=given.trace_format,
    )
    with progress_bar("rollouts", len(wanted.seeds)) as advance:
        played = play_traced(wanted, trace_path=given.trace_path, progress=advance)
    for one in played:
        if isinstance(one, Broken):
            print(f"error: seed {one.seed}: {one.cause}", file=sys.stderr)
            continue
        console.print(one.heading(), soft_wrap=True)
        for warning in one.warnings:
            print(f"warning: seed {one.seed}: {warning}", file=sys.stderr)
    numbers, shares, all_rewarded = outcomes(played)
    print_table("all rollouts", ("", ""), numbers.items())
    print_table("achievements", ("event", "share of episodes"), [(n, f"{share:.0%}") for n, share in shares.items()])
    if not all_rewarded:
        sys.exit(1)


if __name__ == "__main__":
    run_guarded(main)
