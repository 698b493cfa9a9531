"""`deploy` and `modal-serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task_app.cli.common import CONTEXT, ConfigFile, Json, config_from, overrides_from

if TYPE_CHECKING:
    from task_app.deploy.command import Action, ModalCall

__all__ = ["add_to"]

AppName = Annotated[str, typer.Argument(help="The task app, by name or alias.")]
EnvFile = Annotated[
    Path | None, typer.Option(help="File that sets the keys; without one, they must be set, or are asked for.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the deployment [default: task-app-<app>].")]
ModalCli = Annotated[Path | None, typer.Option(help="The modal program [default: the one installed here].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command and the resolved app; touch nothing.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("deploy", context_settings=CONTEXT)(deploy)
    app.command("modal-serve", context_settings=CONTEXT)(modal_serve)


def deploy(
    ctx: typer.Context,
    app: AppName,
    env_file: EnvFile = None,
    dry_run: DryRun = False,
    modal_cli: ModalCli = None,
    name: Name = None,
    as_json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Deploy a task app to Modal, where it stays; prints the endpoint's address."""
    _call(ctx, "deploy", app, env_file, dry_run, modal_cli, name, as_json, config)


def modal_serve(
    ctx: typer.Context,
    app: AppName,
    env_file: EnvFile = None,
    dry_run: DryRun = False,
    modal_cli: ModalCli = None,
    name: Name = None,
    as_json: Json = False,
    config: ConfigFile = None,
) -> None:
    """Serve a task app at Modal until interrupted; follows changes of the package and the TOML, shows the logs."""
    _call(ctx, "serve", app, env_file, dry_run, modal_cli, name, as_json, config)


def _call(
    ctx: typer.Context,
    action: Action,
    app: str,
    env_file: Path | None,
    dry_run: bool,
    modal_cli: Path | None,
    name: str | None,
    as_json: bool,
    config: Path | None,
) -> None:
    options = {"task.app": app, "modal.name": name}
    settings = config_from(ctx, config, options)
    from task_app.cli.choosing import secrets_for
    from task_app.cli.output import console, errors, print_json
    from task_app.deploy.command import modal_call, run
    from task_app.deploy.deployment import needed_secrets

    overrides = overrides_from(ctx, options)
    call = modal_call(action, settings, config, overrides, modal_cli=modal_cli, env_file=env_file)
    if dry_run:
        _print_call(call, as_json)
        return
    needed = () if settings.modal.secret else needed_secrets(settings)
    secrets = secrets_for(needed, env_file, modal=True)
    if secrets.modal_secret:
        kept = {**overrides, "modal.secret": secrets.modal_secret}
        call = modal_call(action, config_from(ctx, config, kept), config, kept, modal_cli=modal_cli)
    said = errors if as_json else console
    address = run(call, secrets.environ, say=lambda line: said.print(line, soft_wrap=True))
    if as_json:
        print_json({"name": call.deployment.name, "address": address})


def _print_call(call: ModalCall, as_json: bool) -> None:
    import shlex

    from task_app.cli.output import console, print_json, print_table

    facts = call.describe()
    if as_json:
        print_json(facts)
        return
    console.print(shlex.join(call.argv), soft_wrap=True)
    print_table("variables it is told by", ("", ""), facts["variables"].items())
    resolved: dict[str, Any] = facts["app"]
    rows = [
        (function, key, value) for function, limits in resolved["functions"].items() for key, value in limits.items()
    ]
    print_table(f"functions of {resolved['name']}", ("function", "limit", "value"), [[*map(str, row)] for row in rows])
    secret = resolved["secret"] or ", ".join(resolved["secret_names"])
    print_table("", ("", ""), [("volume", resolved["volume"]["name"]), ("secret", secret)])
