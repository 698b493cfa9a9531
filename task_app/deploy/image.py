"""What a container holds: Python 3.11, the packages the project pins, and this very source, installed with pip.

The pins are a layer of their own, so that a changed line of code does not install them again; the source is copied
and installed, which also compiles the native engine. Nothing is built or fetched here: Modal does it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from task_app.core.errors import ConfigError
from task_app.deploy.deployment import Deployment

if TYPE_CHECKING:
    import modal

__all__ = ["ENDPOINT_EXTRAS", "PYTHON", "TRAINING_EXTRAS", "make_image", "pins", "project_folder"]

PYTHON = "3.11"
ENDPOINT_EXTRAS = ("modal",)
TRAINING_EXTRAS = ("modal", "train")
SOURCE = "/source"
LEFT_OUT = ["**/__pycache__", "**/*.pyc", "**/*.so", "**/*.pyd"]
"""Never copied: what was compiled for another machine."""
BUILD_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def make_image(deployment: Deployment, extras: Iterable[str]) -> modal.Image:
    """The image of a function. Raises ConfigError outside the project's folder."""
    import modal

    root = project_folder()
    image = modal.Image.debian_slim(PYTHON).pip_install(*pins(tuple(extras)))
    for name in BUILD_FILES:
        image = image.add_local_file(root / name, f"{SOURCE}/{name}", copy=True)
    image = image.add_local_dir(root / "task_app", f"{SOURCE}/task_app", copy=True, ignore=LEFT_OUT)
    image = image.run_commands(f"pip install --no-deps {SOURCE}")
    if deployment.watched:  # `modal serve` looks at files it mounts, not at those it copies into an image
        image = image.add_local_dir(root / "task_app", "/watched/task_app", ignore=LEFT_OUT)
        if deployment.config_file:
            image = image.add_local_file(deployment.config_file, "/watched/config.toml")
    return image


@cache
def pins(extras: tuple[str, ...]) -> tuple[str, ...]:
    """The requirements of the package and of its extras, as pyproject.toml pins them.

    Raises ConfigError outside the project's folder.
    """
    project = tomllib.loads((project_folder() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return (*project["dependencies"], *(pin for extra in extras for pin in optional[extra]))


def project_folder() -> Path:
    """The folder with this package's pyproject.toml. Raises ConfigError for an installation without its source."""
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        raise ConfigError(
            f"deploying sends the project's source along, and {root} has no pyproject.toml: "
            "run it from a checkout (pip install -e .)"
        )
    return root
