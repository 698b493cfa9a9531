"""`__all__` of every module names exactly what the module defines for others."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import task_app.collect
import task_app.config
import task_app.core

PACKAGES = (task_app.collect, task_app.config, task_app.core)
MODULES = [
    importlib.import_module(f"{package.__name__}.{found.name}")
    for package in PACKAGES
    for found in pkgutil.iter_modules(package.__path__)
]


def defined(module: ModuleType) -> set[str]:
    """Public classes and functions whose home the module is."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_names_what_is_public(module):
    assert defined(module) <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
