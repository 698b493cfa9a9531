"""`list`, `info` and `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from task_app.cli.common import CONTEXT, ConfigFile, Json, config_from, overrides_from

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("list")(list_apps)
    app.command("info")(info)
    app.command("serve", context_settings=CONTEXT)(serve)


def list_apps(as_json: Json = False) -> None:
    """List the task apps found: names, aliases, versions, and where they come from."""
    from task_app.apps import find_apps
    from task_app.cli.output import print_json, print_table

    found = find_apps().values()
    if as_json:
        print_json(
            [
                {"name": f.app.name, "aliases": list(f.app.aliases), "version": f.app.version, "source": f.source}
                for f in found
            ]
        )
        return
    rows = [(f.app.name, ", ".join(f.app.aliases), f.app.version, f.source, f.app.description) for f in found]
    print_table("", ("name", "aliases", "version", "from", "what it is"), rows)


def info(
    base_url: Annotated[
        str | None, typer.Option(help="A task app that is served there: its health, task, tools, policies and limits.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(help="File that sets its key, ENVIRONMENT_API_KEY.")] = None,
    as_json: Json = False,
) -> None:
    """Say what is installed here and which Crafter engine plays; with --base-url, what is served there."""
    from task_app.cli.output import print_json, print_table

    if base_url is None:
        from task_app.runs import installation

        facts = installation()
    else:
        from task_app.cli.choosing import secrets_for
        from task_app.runs import served_elsewhere

        facts = served_elsewhere(base_url, secrets_for([], env_file).environ.get("ENVIRONMENT_API_KEY", ""))
    if as_json:
        print_json(facts)
    else:
        print_table("", ("", ""), facts.items())


def serve(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The task app, by name or alias.")],
    host: Annotated[str | None, typer.Option(help="Address to listen on; beyond 127.0.0.1 a key is needed.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [default: 8010].")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that answer on it [default: 1].")] = None,
    force: Annotated[bool, typer.Option("--force", help="End a server of ours that holds the port first.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Begin anew when source or config changes.")] = False,
    trace_db: Annotated[
        Path | None, typer.Option(help="Database for the episodes [default: traces/task_app.db].")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Folder for each episode's SFT rows, as export-sft writes them.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(help="File that sets keys, such as .env.")] = None,
    log: Annotated[
        Literal["quiet", "text", "json"] | None, typer.Option(help="Lines on standard error [default: quiet].")
    ] = None,
    openenv: Annotated[
        bool, typer.Option("--openenv", help="Speak OpenEnv's wire instead (docs/integrations.md).")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Serve a task app over HTTP until interrupted; clients send their key (ENVIRONMENT_API_KEY)."""
    from task_app.core.errors import ConfigError

    options = {"task.app": name, "server.host": host, "server.port": port, "server.workers": workers}
    options |= {"rollout.trace_db": trace_db, "server.trace_dir": trace, "server.log": log}
    settings = config_from(ctx, config, options)
    from task_app.cli.choosing import secrets_for
    from task_app.cli.output import console
    from task_app.server.serve import Reload, needed_keys
    from task_app.server.serve import serve as run_server

    secrets = secrets_for(needed_keys(settings), env_file)

    def ready(address: str) -> None:
        folder = settings.server.trace_dir
        rows = f" · their SFT rows to {folder}" if folder else ""
        places = f"episodes go to {settings.rollout.trace_db}{rows}"
        console.print(f"serving {name} at {address} · {places} · stop with Ctrl-C", soft_wrap=True)

    if openenv:
        from task_app.server.openenv.serve import serve_openenv

        if settings.server.workers > 1 or reload or force:
            raise ConfigError(
                "--openenv serves in one process, without --workers, --reload or --force", field="openenv"
            )
        serve_openenv(settings, ready=ready, environ=secrets.environ)
        return
    run_server(
        settings,
        ready=ready,
        environ=secrets.environ,
        force=force,
        reload=Reload(config, overrides_from(ctx, options)) if reload else None,
    )
