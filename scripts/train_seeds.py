"""Train one config with several seeds; print the held-out score of each, their mean and its interval over seeds.

    python scripts/train_seeds.py --config configs/basic/crafter_rl.toml --seeds 0:3 --training.updates=20

A thin entry point: `task_app.train.launch.train_seeds` does the work.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from task_app.cli.common import run_guarded
from task_app.cli.output import print_table
from task_app.config import SeedRange, load_config, parse_overrides
from task_app.train.launch import train_seeds


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one config with several seeds.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file")
    parser.add_argument("--seeds", type=SeedRange.parse, default="0:3", help="training seeds A:B, B left out")
    arguments, overrides = parser.parse_known_args()
    config = load_config(arguments.config, parse_overrides(overrides))
    rows = train_seeds(config, arguments.seeds.seeds(), note=print)
    print_table(
        "held-out outcome by training seed", ("seed", "before", "after", "after − before", "seconds", "peak MB"), rows
    )


if __name__ == "__main__":
    run_guarded(main)
