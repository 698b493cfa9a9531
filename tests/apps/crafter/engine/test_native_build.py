"""Building the extension: flags, the hash compiled in, sanitizers, and an installation without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from task_app.apps.crafter.engine import native, rules

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "task_app" / "apps" / "crafter" / "engine"
COMPILER = shutil.which("gcc")
INCLUDE = Path(sysconfig.get_paths()["include"])
needs_compiler = pytest.mark.skipif(
    COMPILER is None or not (INCLUDE / "Python.h").exists(), reason="no gcc or no Python headers"
)


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


def compile_extension(target: Path, *flags: str) -> Path:
    done = run(
        str(COMPILER), "-std=c99", "-shared", "-fPIC", "-ffp-contract=off", *flags, f"-I{INCLUDE}",
        f'-DTASK_APP_SOURCE_HASH="{native.source_hash()}"', FOLDER / "_native.c", "-o", target, "-lm",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


@needs_compiler
def test_the_c_code_compiles_without_a_warning(tmp_path: Path) -> None:
    compile_extension(
        tmp_path / "_native.so",
        "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-Wno-missing-field-initializers",
    )  # fmt: skip


@needs_compiler
def test_survives_fuzzing_under_sanitizers(tmp_path: Path) -> None:
    """Access out of bounds or after freeing, overflow, misaligned or undefined arithmetic: all fatal."""
    library = run(str(COMPILER), "-print-file-name=libasan.so").stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("gcc has no address sanitizer here")
    built = compile_extension(
        tmp_path / "_native.so", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    )
    rounds = os.environ.get("FUZZ_ROUNDS", "4")
    done = run(
        sys.executable, Path(__file__).with_name("fuzz_native.py"), built, rounds,
        LD_PRELOAD=library, ASAN_OPTIONS="detect_leaks=0", OMP_NUM_THREADS="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    assert f"{rounds} rounds" in done.stdout


def test_an_extension_that_does_not_fit_is_not_used() -> None:
    names = {name: getattr(rules, name) for name in ("MATERIALS", "ITEMS", "ACTIONS", "ACHIEVEMENTS")}
    fitting = SimpleNamespace(SOURCE_HASH="abc", **names)
    assert native.problem(fitting, "", "abc") == ""  # pyright: ignore[reportArgumentType]
    assert native.problem(fitting, "", "") == ""  # pyright: ignore[reportArgumentType]
    assert "older than the C files" in native.problem(fitting, "", "def")  # pyright: ignore[reportArgumentType]
    assert "no such file" in native.problem(None, "no such file", "abc")
    fitting.ITEMS = rules.ITEMS[1:]
    assert "other items" in native.problem(fitting, "", "abc")  # pyright: ignore[reportArgumentType]


def test_the_hash_follows_the_sources(tmp_path: Path) -> None:
    assert native.source_hash(tmp_path) == ""
    (tmp_path / "csrc").mkdir()
    (tmp_path / "_native.c").write_bytes(b"int a;\r\n")
    (tmp_path / "csrc" / "b.h").write_bytes(b"int b;\n")
    first = native.source_hash(tmp_path)
    (tmp_path / "_native.c").write_bytes(b"int a;\n")
    assert native.source_hash(tmp_path) == first
    (tmp_path / "csrc" / "b.h").write_bytes(b"int c;\n")
    assert native.source_hash(tmp_path) != first


def _copy_of_the_project(folder: Path) -> Path:
    shutil.copytree(FOLDER, folder / FOLDER.relative_to(ROOT), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


def _build(folder: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CC": compiler}
    return subprocess.run(
        (sys.executable, "setup.py", "build_ext", "--inplace"),
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@needs_compiler
def test_setup_builds_it_with_the_hash_of_its_sources(tmp_path: Path) -> None:
    folder = _copy_of_the_project(tmp_path)
    done = _build(folder, str(COMPILER))
    (built,) = (folder / FOLDER.relative_to(ROOT)).glob("_native*.so")
    assert native.source_hash().encode() in built.read_bytes()
    assert "-ffp-contract=off" in done.stdout + done.stderr
    assert "-march=native" not in done.stdout
    assert "-ffast-math" not in done.stdout


def test_without_a_compiler_the_build_succeeds(tmp_path: Path) -> None:
    folder = _copy_of_the_project(tmp_path)
    done = _build(folder, str(tmp_path / "no-compiler"))
    assert done.returncode == 0, done.stderr
    assert not list((folder / FOLDER.relative_to(ROOT)).glob("_native*.so"))


def test_without_the_extension_the_module_says_why() -> None:
    script = """
import sys
sys.modules["task_app.apps.crafter.engine._native"] = None
from task_app.apps.crafter.engine import native
assert "not built" in native.available(), native.available()
for make in (native.NativeEngine, lambda: native.NativeBatch(2)):
    try:
        make()
    except native.EnvError as error:
        print(error)
"""
    done = run(sys.executable, "-c", script, TASK_APP_REQUIRE_NATIVE="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be used") == 2
