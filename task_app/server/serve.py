"""The hosted app on a real port: checks first, then uvicorn, until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import uvicorn

from task_app.config import Config
from task_app.core.errors import ConfigError
from task_app.http.auth import is_loopback
from task_app.http.ports import check_port_free
from task_app.server.app import create_app

__all__ = ["serve"]


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and on which port."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{host}:{port}")


def serve(config: Config, *, ready: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
    """Serve until interrupted; `ready` is told the address once the port is open.

    Raises ConfigError when the port is taken (naming by whom), or when the address reaches beyond this
    machine and no key is set.
    """
    server = config.server
    if not is_loopback(server.host) and not environ.get(server.api_key_env):
        raise ConfigError(
            f"refusing to serve on {server.host} without a key: set {server.api_key_env}, or use --host 127.0.0.1",
            field="server.host",
        )
    app = create_app(config, environ=environ)
    check_port_free(server.host, server.port)
    settings = uvicorn.Config(app, host=server.host, port=server.port, log_level="warning", access_log=False)
    _Server(settings, ready).run()
