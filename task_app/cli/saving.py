"""The command line of `scripts/run_rl_and_save.py` and `run_fft_and_save.py`. No logic lives here."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Literal

__all__ = ["save_main"]


def save_main(kind: Literal["rl", "sft"], about: str) -> None:
    """Read the arguments, train, save, say where; leaves with the verdict as exit code."""
    from task_app.cli.choosing import secrets_for
    from task_app.cli.output import console, errors
    from task_app.config import parse_overrides
    from task_app.jobs.launch import headline, needed_secrets, prepare
    from task_app.jobs.saved import run_and_save, train_here

    given, overrides = _parser(kind, about).parse_known_args()
    if given.backend is None:
        settings = {"sft.dataset": given.dataset, "sft.validation": given.validation} if kind == "sft" else {}
        told = {key: str(value) for key, value in settings.items() if value is not None}
        saved = train_here(kind, given.config, parse_overrides(overrides) | told, given.output, note=errors.print)
        console.print(f"{saved.status}: {saved.checkpoint} · {given.output}", soft_wrap=True)
        return
    launch = prepare(
        kind,
        given.config,
        given.backend,
        overrides=parse_overrides(overrides),
        dataset=given.dataset if kind == "sft" else None,
        validation=given.validation if kind == "sft" else None,
        idempotency=given.idempotency,
    )
    environ = secrets_for(needed_secrets(launch), given.env_file, environ=os.environ).environ
    saved = run_and_save(
        launch, environ, given.output, timeout_s=given.poll_timeout, progress=lambda job: errors.print(headline(job))
    )
    console.print(f"{saved.status}: {saved.checkpoint or saved.reason} · {given.output}", soft_wrap=True)
    if saved.exit_code:
        sys.exit(saved.exit_code)


def _parser(kind: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--config", type=Path, required=True, help="TOML file")
    parser.add_argument("--output", type=Path, default=Path(f"runs/{kind}_result.json"), help="file for the result")
    parser.add_argument("--backend", help="training service, …/api [default: train here]")
    parser.add_argument("--idempotency", help="backend: the same key gives the same job")
    parser.add_argument("--env-file", type=Path, help="backend: file of variables with the keys")
    parser.add_argument("--poll-timeout", type=float, default=3600.0, help="backend: seconds; exit code 3 after these")
    if kind == "sft":
        parser.add_argument("--dataset", type=Path, help="JSON lines from `traces export-sft`")
        parser.add_argument("--validation", type=Path, help="JSON lines whose loss is watched")
    return parser
