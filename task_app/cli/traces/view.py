"""`traces view`."""

from __future__ import annotations

from typing import Annotated

import typer

from task_app.cli.common import DEFAULT_DB, Db

__all__ = ["view"]


def view(
    db: Db = DEFAULT_DB,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65_535)] = 8011,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond 127.0.0.1 a key is needed.")] = "127.0.0.1",
) -> None:
    """Show the database in a browser, read-only, until interrupted; asks for ENVIRONMENT_API_KEY if it is set."""
    from task_app.cli.output import console
    from task_app.server.viewer.app import view as show

    def ready(address: str) -> None:
        console.print(f"showing {db} at {address} · stop with Ctrl-C", soft_wrap=True)

    show(db, host=host, port=port, ready=ready)
