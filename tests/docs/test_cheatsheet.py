"""Every line of docs/cheatsheet.md is run as it stands, in order, in a folder of its own.

Sizes are cut down by appended overrides, ports and the model endpoint are replaced by this machine's own. What needs
the outside world or minutes is asked for its plan (--dry-run) or its --help.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import typer
from typer.core import TyperGroup

from task_app.cli import app
from task_app.http.ports import listen
from task_app.store import TraceStore
from tests.policies.stub_endpoint import StubEndpoint

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/cheatsheet.md").read_text(encoding="utf-8")
ELSEWHERE = ("At Modal (needs an account)", "Everything once (minutes)")
"""Sections that are not run for real."""
MODEL = ["--model.hidden_size=16", "--model.heads=2", "--model.kv_heads=2", "--model.intermediate_size=16"]
SHORT = ["--rollout.max_decisions=3"]
FEW = ["--eval.seeds=1000000:1000001", *SHORT]
TINY = {
    "rollout": ["--rollout.group_size=2", *SHORT],
    "eval": FEW,
    "train --type rl": [*MODEL, *FEW, "--rollout.group_size=2", "--training.groups_per_update=1", "--rollout.seeds=0:9",
                        "--training.updates=1"],
    "train --type sft": [*MODEL, *FEW, "--sft.epochs=1", "--sft.teacher.episodes=2", "--sft.teacher.steps=2",
                         "--sft.teacher.rounds=1", "--sft.teacher.round_episodes=1", "--sft.teacher.round_steps=1"],
}  # fmt: skip
PORTS = ("8000", "8010", "8011", "8012", "8013")
"""Ports the text names; free ones take their place."""
LAST = {"--training.updates=40": "--training.updates=2"}
"""What a line sets itself, cut down."""


def sections() -> dict[str, list[tuple[str, str]]]:
    """Heading → the command and the comment of each line of its blocks."""
    found = {}
    for heading, text in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", DOC, flags=re.MULTILINE):
        lines = "".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)).splitlines()
        found[heading] = [
            tuple(part.strip() for part in line.split("  #" if "  #" in line else " #", 1)) for line in lines
        ]
    return found


def leaves(command: TyperGroup, path: str = "") -> Iterator[str]:
    for name, child in command.commands.items():
        here = f"{path} {name}".strip()
        if isinstance(child, TyperGroup):
            yield from leaves(child, here)
        else:
            yield here


def test_every_line_says_what_it_does_and_every_command_has_a_line():
    lines = [line for block in sections().values() for line in block]
    assert all(len(line) == 2 and line[1] for line in lines)
    shown = [command.removeprefix("task-app ") for command, _ in lines]
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    missing = [name for name in leaves(group) if not any(f"{line} ".startswith(f"{name} ") for line in shown)]
    assert missing == []


def lanes(heading: str, commands: list[str]) -> list[list[str]]:
    """Commands of a section that need not wait for one another; its last line comes after all."""
    if heading == "Look at traces":
        return [[command] for command in commands]
    if heading == "Train":
        return [[one for one in commands if ("--type sft" in one) == imitation] for imitation in (False, True)]
    return [commands]


class Folder:
    """A project folder with its configs, in which commands are run as a user would."""

    def __init__(self, path: Path, endpoint: str) -> None:
        self.path, self.endpoint = path, endpoint
        shutil.copytree(ROOT / "configs", path / "configs")
        with ExitStack() as held:
            sockets = {port: held.enter_context(listen("127.0.0.1", 0)) for port in PORTS}
            self.ports = {port: str(one.getsockname()[1]) for port, one in sockets.items()}
        self.environ = os.environ | {"PYTHONPATH": str(ROOT), "ENVIRONMENT_API_KEY": "a-key", "OPENAI_API_KEY": "b-key"}
        self.background: list[subprocess.Popen[str]] = []

    def argv(self, command: str) -> list[str]:
        for port, free in self.ports.items():
            command = command.replace(port, free)
        command = command.replace("https://api.openai.com/v1", self.endpoint)
        if "EPISODE" in command:
            with TraceStore.open(self.path / "traces/task_app.db", read_only=True) as store:
                command = command.replace("EPISODE", next(store.episodes(run_id="mine")).episode_id[:8])
        program, *arguments = shlex.split(command)
        if program == "task-app":
            line = " ".join(arguments)
            extra = next((more for start, more in TINY.items() if f"{line} ".startswith(f"{start} ")), [])
            own = [LAST[argument] for argument in arguments if argument in LAST]
            whole = [sys.executable, "-m", "task_app", *arguments, *extra, *own]
            # a shell is found by its process, above the command
            return ["bash", "-c", f"{shlex.join(whole)}; exit $?"] if "completion" in line else whole
        return [program, *arguments]

    def run(self, command: str) -> tuple[str, int, str]:
        """The command, its exit code and what it said last; what stays up is left running."""
        if "--port" in command:
            return self.start(command)
        done = subprocess.run(
            self.argv(command), cwd=self.path, env=self.environ, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return command, done.returncode, done.stdout[-500:] + done.stderr[-1500:]

    def run_lane(self, commands: list[str]) -> list[tuple[str, int, str]]:
        """The commands, one after another."""
        return [self.run(command) for command in commands]

    def start(self, command: str) -> tuple[str, int, str]:
        """Something that runs until it is ended: up when its port answers."""
        port = re.findall(r"--port (\d+)", command)[0]
        process = subprocess.Popen(
            self.argv(command), cwd=self.path, env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.background.append(process)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                httpx.get(f"http://127.0.0.1:{self.ports[port]}/", timeout=5)
                return command, 0, ""
            except httpx.TransportError:
                time.sleep(0.1)
        return command, process.poll() or 1, "it did not come up"

    def end(self) -> list[int]:
        """Interrupt what runs in the background; the exit codes."""
        for process in self.background:
            process.send_signal(signal.SIGINT)
        codes = [process.wait(60) for process in self.background]
        for process in self.background:
            if process.stdout:
                process.stdout.close()
        return codes


@pytest.fixture
def folder(tmp_path) -> Iterator[Folder]:
    with StubEndpoint() as endpoint:
        folder = Folder(tmp_path, endpoint.url)
        try:
            yield folder
        finally:
            for process in folder.background:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def test_every_line_runs(folder):
    pytest.importorskip("torch", reason="training needs the extra `train`")
    pytest.importorskip("ray", reason="rollouts over workers need the extra `ray`")
    failed = []
    for heading, lines in sections().items():
        if heading in ELSEWHERE or not lines:
            continue
        *commands, last = [command for command, _ in lines]
        with ThreadPoolExecutor(2) as pool:
            results = [one for lane in pool.map(folder.run_lane, lanes(heading, commands)) for one in lane]
        failed += [result for result in [*results, folder.run(last)] if result[1]]
    assert failed == []
    assert set(folder.end()) <= {0, 130}


@pytest.mark.parametrize("command", [command for heading in ELSEWHERE for command, _ in sections()[heading]])
def test_what_needs_the_outside_world_is_known_and_its_options_are(folder, command):
    program, *arguments = shlex.split(command)
    if program != "task-app":
        pytest.importorskip("modal", reason="needs the extra `modal`")
        plan = [sys.executable, "-m", "modal", "run", "--help"]
    elif arguments[0] in ("deploy", "modal-serve"):
        arguments = ["/dev/null" if argument == ".env" else argument for argument in arguments]
        plan = [sys.executable, "-m", "task_app", *dict.fromkeys([*arguments, "--dry-run"]), "--modal-cli", "/bin/true"]
    else:
        plan = [sys.executable, "-m", "task_app", arguments[0], "--help"]
    done = subprocess.run(plan, cwd=folder.path, env=folder.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if plan[-1] == "--help":
        options = [argument for argument in arguments if argument.startswith("--") and argument != "--kind"]
        assert all(option in done.stdout for option in options)
