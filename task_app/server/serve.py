"""The hosted app on a real port: checks first, then uvicorn, in one process or several, until it is told to stop."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from task_app.codehash import code_hash
from task_app.config import Config, load_config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.export import EpisodeFiles
from task_app.http.auth import check_guarded, is_loopback
from task_app.http.logs import log_to_stderr
from task_app.http.ports import address_of, listen
from task_app.http.previous import end_previous, remembered
from task_app.http.serving import ReadyServer
from task_app.server.app import SERVER_PID, create_app
from task_app.server.shared import Shared, shared_path
from task_app.server.workers import run_workers
from task_app.store import TraceStore

__all__ = ["Reload", "needed_keys", "serve"]

logger = logging.getLogger(__name__)

_M_ARENA_MAX = -8
_SWITCH_S = 0.0005
"""How long a rollout's thread may keep the interpreter while the event loop has an answer to give."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Where the config is read from, again each time that the package or the file's folder changes."""

    path: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> Config:
        """The config as the file says now. Raises ConfigError."""
        return load_config(self.path, self.overrides)

    def folders(self) -> list[str]:
        """What is watched."""
        return [str(Path(__file__).parents[1]), *([str(self.path.parent.resolve())] if self.path else [])]


class _Server(ReadyServer):
    """Stops the app's rollouts before it waits for their answers."""

    def __init__(self, app: FastAPI, ready: Callable[[], None]) -> None:
        super().__init__(app, ready, patience_s=10)
        self._service = app.state.service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)


def needed_keys(config: Config) -> list[str]:
    """The variables without which the config cannot be served."""
    own = [] if is_loopback(config.server.host) else [config.server.api_key_env]
    return own + ([config.policy.api_key_env] if config.policy.api_key_env else [])


def serve(
    config: Config,
    *,
    ready: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
    force: bool = False,
    reload: Reload | None = None,
) -> None:
    """Serve until interrupted; `ready` is told the address once requests are answered.

    `force` first ends a server of ours that holds the port. With `reload` one process serves, which begins anew when
    something changes; `ready` is then told before it answers.

    Raises ConfigError when the port is taken (naming by whom), when the address reaches beyond this
    machine and no key is set, or when the trace folder cannot be written; StoreError when the trace
    database cannot be opened.
    """
    server = config.server
    check_guarded(server.host, environ, server.key_envs)
    if reload is not None and server.workers > 1:
        raise ConfigError("--reload serves in one process; leave --workers out", field="server.workers")
    app = create_app(config, environ=environ)  # its errors are ours here; in a worker they would be a traceback
    if force and server.port:
        end_previous(server.host, server.port)
    with ExitStack() as stack:
        listener = stack.enter_context(listen(server.host, server.port))
        TraceStore.open(config.rollout.trace_db).close()  # likewise
        _forget_readers(config)
        if server.trace_dir:
            EpisodeFiles.open(server.trace_dir)
        stack.enter_context(remembered(listener.getsockname()[1]))
        os.environ[SERVER_PID] = str(os.getpid())
        stack.callback(os.environ.pop, SERVER_PID, None)

        def served() -> None:
            ready(address_of(listener))

        if reload is not None:
            served()
            _serve_reloading(listener, environ, reload)
        elif server.workers > 1:
            run_workers(_serve_here, config, environ, listener, served)
        else:
            _run(app, config, listener, served)


def _forget_readers(config: Config) -> None:
    """Whoever read the page of a server before this one gives the key again."""
    with Shared.opened(shared_path(config.rollout.trace_db), max_running=0, max_waiting=0) as shared:
        shared.end_sessions()


def _serve_here(config: Config, environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve in this process, a worker's or a reloader's."""
    _run(create_app(config, environ=environ), config, listener, ready)


def _run(app: FastAPI, config: Config, listener: socket.socket, ready: Callable[[], None]) -> None:
    sys.setswitchinterval(_SWITCH_S)
    _use_one_heap()
    log_to_stderr(config.server.log)
    code_hash()  # remembered, so that no request waits while every file is read
    gc.collect()
    gc.freeze()  # what is loaded stays: to look through it for garbage would stop everything for a tenth of a second
    _Server(app, ready).run(sockets=[listener])


def _use_one_heap() -> None:
    """Where the C library is glibc: else each rollout's thread would leave holes in one of many heaps, and memory grow
    for hours. One suffices where most of the work needs the interpreter (mallopt(3), M_ARENA_MAX)."""
    with suppress(OSError, AttributeError, TypeError):  # another library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _serve_reloading(listener: socket.socket, environ: Mapping[str, str], reload: Reload) -> None:
    """Serve in a child that is begun anew when a source file or a config changes."""
    from uvicorn.supervisors import ChangeReload

    settings = uvicorn.Config(
        "task_app.server:create_app",  # what runs is `target`; the reloader only wants to be told a name
        factory=True,
        reload=True,
        reload_dirs=reload.folders(),
        reload_includes=["*.py", "*.toml"],
        log_level="warning",
    )
    target = partial(_serve_anew, reload=reload, environ=dict(environ))
    ChangeReload(settings, target=target, sockets=[listener]).run()


def _serve_anew(sockets: list[socket.socket] | None, reload: Reload, environ: Mapping[str, str]) -> None:
    """One child's life; a config that is wrong for now is told, and the next change tried."""
    assert sockets is not None
    try:
        config = reload.config()
        check_guarded(sockets[0].getsockname()[0], environ, config.server.key_envs)
        _serve_here(config, environ, sockets[0], lambda: None)
    except TaskAppError as error:
        logger.error("%s; waiting for a change", error)
