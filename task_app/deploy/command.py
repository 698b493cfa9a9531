"""The command line that deploys or serves the app, and running it. Building it touches nothing.

Secrets reach the `modal` command line only as variables of its process, which hands them to Modal as a secret: they
stand in no argument and no file, and are blotted out should they appear in what it prints.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any, Literal

from task_app.config import Config
from task_app.config.found import read_env_file
from task_app.core.errors import ConfigError, TaskAppError
from task_app.deploy.deployment import CONFIG, OVERRIDES, SECRETS, WATCH, Deployment, next_key
from task_app.deploy.image import ENDPOINT_EXTRAS, PYTHON, TRAINING_EXTRAS, pins, project_folder
from task_app.policies.chat import KEY_OF_HOST

__all__ = ["Action", "ModalCall", "modal_call", "run"]

Action = Literal["deploy", "serve"]

APP = "task_app.deploy.modal_app"
STOP_S = 20.0
"""How long an interrupted `modal serve` may take to stop its app before it is killed."""
_ADDRESS = re.compile(r"https://[\w.-]+\.modal\.run\b[\w./-]*")
_NO_CREDENTIALS = re.compile(r"token missing|token id|not authenticated|unauthenticated|AuthError", re.IGNORECASE)
_SHORTEST_SECRET = 6
"""Shorter values are no keys, and blotting them out would hide words."""


@dataclass(frozen=True, slots=True)
class ModalCall:
    """One run of the `modal` command line: its arguments, the variables it is told by, the app that results."""

    argv: tuple[str, ...]
    settings: Mapping[str, str]
    deployment: Deployment

    def describe(self) -> dict[str, Any]:
        """The whole as plain JSON values; no secret's value."""
        image = {"python": PYTHON, "endpoint": list(pins(ENDPOINT_EXTRAS)), "train": list(pins(TRAINING_EXTRAS))}
        return {
            "command": list(self.argv),
            "variables": dict(self.settings),
            "app": self.deployment.describe() | {"image": image},
        }


def modal_call(
    action: Action,
    config: Config,
    file: Path | None,
    overrides: Mapping[str, Any],
    *,
    modal_cli: Path | None = None,
    env_file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ModalCall:
    """The call for a config that was read from `file` with `overrides`. Raises ConfigError; runs nothing.

    `modal_cli` is the program; without it the one installed beside this Python, or on the PATH. Keys of providers that
    requests may ask go along where `env_file` sets them, the app's next key where that or `environ` does.
    """
    offered = read_env_file(env_file) if env_file else {}
    extra = [name for name in KEY_OF_HOST.values() if offered.get(name, "").strip()]
    extra += next_key(config, {**environ, **offered})
    deployment = Deployment.of(config, file, extra, watched=action == "serve")
    argv = [str(_modal_cli(modal_cli)), action, "-m", APP, "--name", deployment.name]
    settings = {OVERRIDES: dumps(dict(overrides), default=str)}
    if file:
        settings[CONFIG] = str(file.resolve())
    if deployment.secret_names:
        settings[SECRETS] = ",".join(deployment.secret_names)
    if deployment.watched:
        settings[WATCH] = "1"
    return ModalCall(tuple(argv), settings, deployment)


def run(call: ModalCall, environ: Mapping[str, str], *, say: Callable[[str], None]) -> str | None:
    """Run the call until it ends, or is interrupted while it serves; the endpoint's address if it was printed.

    `say` gets every line as it comes. Raises TaskAppError, with what to do, when it fails.
    """
    secrets = _values(call, environ)
    address, said = None, ""
    with _started(call, environ) as process:
        try:
            for line in _lines(process, secrets):
                say(line)
                said = f"{said}\n{line}"[-20_000:]
                if found := _ADDRESS.search(line):
                    address = found[0]
                    say(f"endpoint: {address}")
            code = process.wait()
        except KeyboardInterrupt:
            if call.deployment.watched:
                _stop(process, secrets, say)
                return address
            raise
    if code:
        raise _failed(call, code, said)
    return address


@contextmanager
def _started(call: ModalCall, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The process, in a session of its own, so that an interrupt reaches it once: from here. Ended in any case."""
    paths = [str(project_folder()), environ.get("PYTHONPATH", "")]
    variables = {**environ, **call.settings, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    variables |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}  # lines come at once, and addresses are not wrapped
    try:
        process = subprocess.Popen(
            call.argv,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"{call.argv[0]} cannot be run: {error.strerror}", field="modal_cli") from error
    terminated = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield process
    finally:
        signal.signal(signal.SIGTERM, terminated)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            _wait_or_kill(process)
        if process.stdout:
            process.stdout.close()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _stop(process: subprocess.Popen[str], secrets: list[str], say: Callable[[str], None]) -> None:
    """Interrupt what serves and wait for its last words."""
    process.send_signal(signal.SIGINT)
    _wait_or_kill(process)
    for line in _lines(process, secrets):
        say(line)


def _wait_or_kill(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _lines(process: subprocess.Popen[str], secrets: list[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        for value in secrets:
            line = line.replace(value, "***")
        yield line.rstrip("\n")


def _values(call: ModalCall, environ: Mapping[str, str]) -> list[str]:
    names = [*call.deployment.secret_names, call.deployment.config.server.next_api_key_env, "MODAL_TOKEN_SECRET"]
    return [value for name in names if len(value := environ.get(name, "")) >= _SHORTEST_SECRET]


def _failed(call: ModalCall, code: int, said: str) -> TaskAppError:
    what = f"modal {call.argv[1]} failed (exit code {code}); what it said stands above"
    if _NO_CREDENTIALS.search(said):
        what += ". It has no credentials: run `modal setup`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
    return TaskAppError(what)


def _modal_cli(given: Path | None) -> Path:
    if given is not None:
        if not (given.is_file() and os.access(given, os.X_OK)):
            raise ConfigError(f"--modal-cli {given} is no program", field="modal_cli")
        return given.resolve()
    beside = Path(sys.executable).with_name("modal")
    found = str(beside) if beside.is_file() else shutil.which("modal")
    if found is None:
        needed = "the `modal` command is not installed: pip install 'crafter-task-app[modal]', or --modal-cli PATH"
        raise ConfigError(needed, field="modal_cli")
    return Path(found)
