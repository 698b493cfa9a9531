"""A process that runs tests with faults in the code they test, one fault at a time.

    python tests/train/broken_runs.py FOLDER

A fault is a piece of source replaced as its module is imported; nothing on the disk changes. Every one is tried in a
fork of this process, which imports what is slow and nothing that is broken, so that it costs little more than its
tests do. A fork writes FOLDER/<number>.json: test → [phase in which it failed, or "", and how]. One that wrote nothing,
because the machine stood still or ended it, is tried once more, alone; FOLDER/<number>.first says where it stood.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.train.breaks import BREAKS, Break

ROOT = Path(__file__).parents[2]
HEALTHY = "healthy"
AT_ONCE = min(4, len(os.sched_getaffinity(0)))
"""How many forks run beside each other."""
LIMIT_S = 240.0
"""A fork that takes longer says where it stands, in its log, and ends."""

SLOW = (
    "torch", "peft", "transformers.models.qwen3", "transformers.models.llama", "transformers.models.gpt2",
    "transformers.models.bert", "transformers.models.t5", "transformers.models.gemma2", "hypothesis",
    "task_app.apps", "task_app.config", "task_app.policies", "task_app.core.wire", "task_app.rollout",
    "task_app.store", "task_app.analyze", "task_app.collect", "tests.policies.stub_endpoint",
)  # fmt: skip
"""What the tests import and no fault is in."""


class _BrokenLoader(SourceFileLoader):
    """Compiles a module's source with places replaced; caches nothing."""

    def __init__(self, name: str, path: str, edits: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in self._edits:
            assert source.count(old) == 1, f"{self.path} says {source.count(old)} times, not once: {old}"
            source = source.replace(old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Gives one module to `_BrokenLoader`."""

    def __init__(self, fault: Break) -> None:
        self._module = f"task_app.{fault.module}"
        self._edits = [(fault.old, fault.new), *([fault.also] if fault.also else [])]
        assert self._module not in sys.modules, f"{self._module} was imported before it could be broken"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        found = PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        return importlib.util.spec_from_loader(fullname, _BrokenLoader(fullname, found.origin, self._edits))


class _Outcomes:
    """A pytest plugin that keeps how every test ended."""

    def __init__(self) -> None:
        self.told: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.removeprefix("tests/")
        self.told.setdefault(name, ["", ""])
        if report.failed and not self.told[name][0]:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.told[name] = [report.when, crash.message if crash else str(report.longrepr)]


def run_tests(fault: Break | None, tests: Iterable[str], result: Path) -> None:
    """Run tests in this process, where no module of theirs was imported yet."""
    if fault is not None:
        sys.meta_path.insert(0, _Finder(fault))
    outcomes = _Outcomes()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they are imported already, which pytest warns of
    os.chdir(ROOT)
    with result.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        kept = os.fdopen(os.dup(log.fileno()), "w")  # pytest takes 1 and 2 for itself while a test runs
        faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=kept)
        arguments = ["-p", "no:cacheprovider", "--basetemp", str(result.with_suffix("")), "--tb=short"]
        pytest.main([*arguments, *(f"tests/{test}" for test in tests)], plugins=[outcomes])
    result.write_text(json.dumps(outcomes.told))


def start(fault: Break | None, tests: Iterable[str], result: Path) -> None:
    """Run tests in a child. Its exit code says nothing: what it wrote does."""
    if os.fork():
        return
    try:
        run_tests(fault, tests, result)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def main() -> None:
    folder = Path(sys.argv[1])
    for name in SLOW:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else every fork would search all that is imported for garbage, several times
    every = sorted({test for fault in BREAKS for test in fault.tests})
    jobs = [(None, every, HEALTHY), *((fault, fault.tests, str(number)) for number, fault in enumerate(BREAKS))]
    for index, (fault, tests, name) in enumerate(jobs):
        if index >= AT_ONCE:
            os.wait()
        start(fault, tests, folder / f"{name}.json")
    for _ in range(min(AT_ONCE, len(jobs))):
        os.wait()
    for fault, tests, name in jobs:
        result = folder / f"{name}.json"
        if not result.exists():
            log = result.with_suffix(".log")
            result.with_suffix(".first").write_text(log.read_text() if log.exists() else "it never began")
            start(fault, tests, result)
            os.wait()


if __name__ == "__main__":
    main()
