"""Train by reinforcement as a TOML says, here or through a training service, and save the result as JSON.

    python scripts/run_rl_and_save.py --config configs/basic/crafter_rl.toml --output runs/rl_result.json
    python scripts/run_rl_and_save.py --config configs/basic/crafter_rl.toml --backend http://127.0.0.1:8000/api

Exit code 0 for a training that succeeded alone; 3 for one that was not over in time. A thin entry point:
`task_app.jobs.saved.run_and_save` does the work.
"""

from __future__ import annotations

from task_app.cli.common import run_guarded
from task_app.cli.saving import save_main


def main() -> None:
    save_main("rl", "Train by reinforcement and save the result.")


if __name__ == "__main__":
    run_guarded(main)
