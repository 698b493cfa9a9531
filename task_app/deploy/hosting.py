"""The endpoint in a container: the app that `serve` serves, with a database of its own that is copied to the volume.

Several containers never share a database: each has one, kept as traces/<container>.db; `task-app traces merge` makes
one of them. Copies are made every `modal.commit_every_s` seconds in which something was stored, and when the container
ends; a container that is killed outright loses what was stored since the last copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from task_app.core.errors import ConfigError
from task_app.deploy.deployment import VOLUME, Deployment
from task_app.deploy.keeping import Keeper
from task_app.server import create_app

__all__ = ["hosted_app"]

LOCAL = Path("/tmp/task-app/traces.db")


def hosted_app(
    deployment: Deployment,
    environ: Mapping[str, str],
    commit: Callable[[], object],
    *,
    container: str,
    local: Path = LOCAL,
    volume: Path = VOLUME,
) -> FastAPI:
    """The application of one container. Raises ConfigError where no key is set: the endpoint is open to the world."""
    config = deployment.for_endpoint(local)
    key = config.server.api_key_env
    if not environ.get(key, "").strip():
        raise ConfigError(f"{key} is not set in this container, and an endpoint without a key is not served", field=key)
    app = create_app(config, environ=environ)
    keeper = Keeper(local, volume / "traces" / f"{container}.db", commit)
    inner: Any = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: FastAPI) -> AsyncIterator[Any]:
        try:
            async with inner(served) as state, keeper.keeping(config.modal.commit_every_s):
                yield state
        finally:
            keeper.keep()

    app.router.lifespan_context = lifespan
    return app
