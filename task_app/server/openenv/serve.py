"""The OpenEnv app on a real port, in one process: checks first, then uvicorn, until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from task_app.config import Config
from task_app.export import EpisodeFiles
from task_app.http.auth import check_guarded
from task_app.http.logs import log_to_stderr
from task_app.http.ports import address_of, listen
from task_app.http.serving import ReadyServer
from task_app.server.openenv.app import create_openenv_app
from task_app.store import TraceStore

__all__ = ["serve_openenv"]


def serve_openenv(config: Config, *, ready: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
    """Serve until interrupted; `ready` is told the address. Episodes of open connections are then stored as aborted.

    Raises ConfigError when the port is taken, when the address reaches beyond this machine and no key is set, or when
    the trace folder cannot be written; StoreError when the trace database cannot be opened.
    """
    server = config.server
    check_guarded(server.host, environ, server.key_envs)
    app = create_openenv_app(config, environ=environ)
    with listen(server.host, server.port) as listener:
        TraceStore.open(config.rollout.trace_db).close()  # here its error is ours; in uvicorn it would be a traceback
        if server.trace_dir:
            EpisodeFiles.open(server.trace_dir)  # likewise
        log_to_stderr(server.log)
        wire = {"ws": "websockets-sansio", "ws_max_size": server.max_body_bytes}
        ReadyServer(app, lambda: ready(address_of(listener)), patience_s=10, **wire).run(sockets=[listener])
