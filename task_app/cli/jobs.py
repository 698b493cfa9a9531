"""`jobs serve`, and what `train` does with a `--backend` or for a `--dry-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from task_app.cli.common import CONTEXT, CommandGroup, ConfigFile, config_from

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    jobs = typer.Typer(cls=CommandGroup, help="Training as a service.", no_args_is_help=True, rich_markup_mode=None)
    jobs.command("serve", context_settings=CONTEXT)(serve)
    app.add_typer(jobs, name="jobs")


def serve(
    ctx: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on; beyond 127.0.0.1 a key is needed.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [default: 8000].")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Database, files and a folder per job [default: runs/jobs].")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Jobs that train at once [default: 1].")] = None,
    config: ConfigFile = None,
    env_file: Annotated[
        Path | None, typer.Option(help="File of variables: keys of this service and of task apps.")
    ] = None,
) -> None:
    """Take training jobs over HTTP and run them, until interrupted; jobs under way go on and are found again."""
    options = {"jobs.host": host, "jobs.port": port, "jobs.folder": folder, "jobs.concurrency": concurrency}
    settings = config_from(ctx, config, options)
    from task_app.cli.choosing import secrets_for
    from task_app.cli.output import console
    from task_app.http.auth import is_loopback
    from task_app.jobs.serve import serve_jobs

    needed = [] if is_loopback(settings.jobs.host) else [settings.jobs.api_key_env]
    secrets = secrets_for(needed, env_file)

    def ready(address: str) -> None:
        console.print(
            f"taking jobs at {address}/api · kept in {settings.jobs.folder} · stop with Ctrl-C, which ends no training",
            soft_wrap=True,
        )

    serve_jobs(settings, ready=ready, environ=secrets.environ)
