"""A modal command line that is none, and processes whose network fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FAKE = """#!{python}
import json, os, signal, sys, time
with open({record!r}, "a") as file:
    file.write(json.dumps({{"argv": sys.argv[1:], "environ": dict(os.environ), "pid": os.getpid()}}) + "\\n")
def interrupted(number, frame):
    print("Stopping app - user stopped from CLI.", flush=True)
    sys.exit(0)
signal.signal(signal.SIGINT, interrupted)
{body}
"""
DEPLOYED = """
print("├── 🔨 Created web function endpoint => https://someone--task-app-crafter-endpoint.modal.run")
print("✓ App deployed in 1.2s! 🎉")
print("the secret is", os.environ.get("ENVIRONMENT_API_KEY"))
"""


@dataclass(frozen=True)
class FakeModal:
    """The program, and what it was called with."""

    path: Path
    record: Path

    def calls(self) -> list[dict]:
        return [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []


@pytest.fixture
def fake_modal(tmp_path) -> Callable[..., FakeModal]:
    """Make a program that records its call and then does what `body` says."""

    def make(body: str = DEPLOYED) -> FakeModal:
        fake = FakeModal(tmp_path / "modal-fake", tmp_path / "calls.jsonl")
        fake.path.write_text(FAKE.format(python=sys.executable, record=str(fake.record), body=body))
        fake.path.chmod(0o755)
        return fake

    return make


@pytest.fixture
def without_network(tmp_path_factory) -> dict[str, str]:
    """Variables for a Python process in which every attempt to connect or to look up a name ends it with code 99."""
    folder = tmp_path_factory.mktemp("no-network")
    (folder / "sitecustomize.py").write_text(
        "import os, socket\n"
        "def refuse(*arguments, **named):\n"
        "    os.write(2, b'CONNECTED\\n')\n"
        "    os._exit(99)\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.fixture
def task_app(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a folder of the test's own, without keys in the environment unless given."""

    def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        own = ("ENVIRONMENT_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY")
        inherited = {k: v for k, v in os.environ.items() if k not in own and not k.startswith(("MODAL", "TASK_APP"))}
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-m", "task_app", *map(str, arguments)],
            cwd=folder,
            env=inherited | {"PYTHONPATH": str(ROOT)} | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
