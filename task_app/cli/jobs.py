"""`jobs serve`, and what `train` does with a `--backend` or for a `--dry-run`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from task_app.cli.common import CONTEXT, CommandGroup, ConfigFile, config_from
from task_app.core.imports import extra_imports

if TYPE_CHECKING:
    from task_app.config import Config
    from task_app.jobs.launch import Launch, Outcome

__all__ = ["Backend", "add_to", "chosen_for_training", "show_plan", "train_there", "use_env_file"]


@dataclass(frozen=True, slots=True)
class Backend:
    """What `train` was told about the service it sends its job to."""

    url: str
    idempotency: str | None
    dry_run: bool
    no_poll: bool
    poll_timeout: float
    poll_interval: float
    env_file: Path | None
    as_json: bool


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
    log: Annotated[
        Literal["quiet", "text", "json"] | None, typer.Option(help="Lines on standard error [default: quiet].")
    ] = None,
    config: ConfigFile = None,
    env_file: Annotated[
        Path | None, typer.Option(help="File of variables: keys of this service and of task apps.")
    ] = None,
) -> None:
    """Take training jobs over HTTP and run them, until interrupted; jobs under way go on and are found again."""
    options = {"jobs.host": host, "jobs.port": port, "jobs.folder": folder, "jobs.concurrency": concurrency}
    options |= {"jobs.log": log}
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


def chosen_for_training(ctx: typer.Context, config: Path | None, kind: Literal["rl", "sft"]) -> Path | None:
    """The config named, or chosen; settings given one by one are a config too, over the defaults."""
    from task_app.cli.choosing import chosen_config

    return config if config is not None or ctx.args else chosen_config(None, [kind])


def use_env_file(path: Path) -> None:
    """Add a named file's variables to this process."""
    from task_app.config.found import read_env_file

    os.environ.update(read_env_file(path))


def show_plan(settings: Config, kind: str, as_json: bool) -> None:
    """What training here would do, and cost at most."""
    from task_app.cli.output import print_json, print_table

    with extra_imports("train"):
        from task_app.train.budget import budget

    plan = budget(settings, kind)
    if as_json:
        print_json(plan)
        return
    rows = [(name, ", ".join(value) or "–" if isinstance(value, list) else value) for name, value in plan.items()]
    print_table("nothing was done; training would be", ("", ""), rows)


def train_there(
    ctx: typer.Context,
    kind: Literal["rl", "sft"],
    config: Path | None,
    there: Backend,
    dataset: Path | None,
    validation: Path | None,
    model: str | None,
    task_url: str | None,
) -> None:
    """Send a job to a training service and end with its verdict."""
    from task_app.cli.choosing import chosen_config, secrets_for
    from task_app.cli.output import errors, print_json
    from task_app.config import parse_overrides
    from task_app.jobs.client import JobsClient
    from task_app.jobs.launch import follow, needed_secrets, post, prepare, preview

    launch = prepare(
        kind,
        chosen_config(config, [kind]),
        there.url,
        overrides=parse_overrides(ctx.args),
        dataset=dataset,
        validation=validation,
        model=model,
        task_url=task_url,
        idempotency=there.idempotency,
    )
    if there.dry_run:
        print_json(preview(launch))
        return
    environ = secrets_for(needed_secrets(launch), there.env_file).environ
    with JobsClient(launch.backend, api_key=environ.get(launch.key_env, "")) as client:
        job = post(launch, client, environ)
        errors.print(f"job {job['id']} is {job['status']} at {launch.backend}", soft_wrap=True)
        for name in job.get("ignored", ()):
            errors.print(f"no effect there: {name}", soft_wrap=True)
        if there.no_poll:
            _say(job, there.as_json)
            return
        told = _Told()
        found = follow(
            kind, job["id"], client, timeout_s=there.poll_timeout, interval_s=there.poll_interval, progress=told
        )
    _end(found, launch, there)


class _Told:
    """Tells of a job what changed since it was last told."""

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, job: dict[str, Any]) -> None:
        from task_app.cli.output import errors
        from task_app.jobs.launch import headline

        line = headline(job)
        if line != self._last:
            errors.print(line, soft_wrap=True)
        self._last = line


def _say(job: dict[str, Any], as_json: bool) -> None:
    from task_app.cli.output import console, print_json

    if as_json:
        print_json(job)
    else:
        console.print(f"job {job['id']}: {job['status']}")


def _end(found: Outcome, launch: Launch, there: Backend) -> None:
    """Print the verdict and leave with its exit code."""
    job = found.job
    _say(job, there.as_json)
    address, key = f"{launch.url}/{job['id']}", launch.idempotency
    if found.status == "timeout":
        print(
            f"error: not over after {there.poll_timeout:g} s; job {job['id']} goes on there. See {address}, "
            f"or wait on with the same command and --idempotency {key}",
            file=sys.stderr,
        )
    elif found.status != "succeeded":
        print(f"error: job {job['id']} {found.status}: {job.get('reason', '')}", file=sys.stderr)
    elif not there.as_json:
        from task_app.cli.output import console

        console.print(f"checkpoint {(job.get('result') or {}).get('checkpoint', '')}", soft_wrap=True)
    if found.exit_code:
        raise typer.Exit(found.exit_code)
