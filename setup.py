"""Builds the optional native Crafter engine; everything else about the package stands in pyproject.toml.

Without a working compiler the installation succeeds all the same, and the reference engine is used. A hash of the C
files is compiled in, so that an editable installation can tell when they have changed since (see engine/native.py).
"""

import os
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("task_app", "apps", "crafter", "engine")
HERE = Path(__file__).parent


def sources() -> list[Path]:
    """The C files, the module's own first."""
    return [FOLDER / "_native.c", *sorted(path.relative_to(HERE) for path in (HERE / FOLDER / "csrc").glob("*.h"))]


def source_hash() -> str:
    """The same as engine/native.py computes; line ends do not count."""
    texts = [(HERE / path).read_bytes().replace(b"\r\n", b"\n") for path in sources()]
    return sha256(b"\0".join(texts)).hexdigest()


# Contraction would fuse a product and a sum into one rounding, and with it other worlds.
FLAGS = ["/O2", "/fp:strict"] if os.name == "nt" else ["-std=c99", "-O3", "-ffp-contract=off"]

setup(
    ext_modules=[
        Extension(
            "task_app.apps.crafter.engine._native",
            sources=[str(FOLDER / "_native.c")],
            depends=[str(path) for path in sources()[1:]],
            define_macros=[("TASK_APP_SOURCE_HASH", f'"{source_hash()}"')],
            extra_compile_args=FLAGS,
            optional=True,
        )
    ]
)
