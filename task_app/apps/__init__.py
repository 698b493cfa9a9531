"""Task apps, one folder each, found by discovery: a subpackage here that exports `APP`, or an
installed distribution's entry point in the group `task_app.apps`.

Apps do not know each other. This file finds them; it imports one only when it is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean
from task_app.core.task import TaskApp

__all__ = ["FoundApp", "find_apps", "get_app"]

ENTRY_POINT_GROUP = "task_app.apps"


@dataclass(frozen=True, slots=True)
class FoundApp:
    """A task app and where it came from (`built-in` or the distribution's name)."""

    app: TaskApp[Any]
    source: str


@cache
def find_apps() -> dict[str, FoundApp]:
    """Every task app by its name, sorted. Raises ConfigError when one cannot be loaded or two claim a name."""
    found = [
        FoundApp(importlib.import_module(f"{__name__}.{m.name}").APP, "built-in")
        for m in pkgutil.iter_modules(__path__)
        if m.ispkg
    ]
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        source = entry.dist.name if entry.dist else entry.value
        try:
            found.append(FoundApp(entry.load(), source))
        except Exception as error:  # whatever a stranger's module raises while it is imported
            raise ConfigError(f"task app {entry.name!r} of {source} cannot be loaded: {error}") from error
    claimed: dict[str, str] = {}
    for item in found:
        for name in (item.app.name, *item.app.aliases):
            if name in claimed:
                raise ConfigError(f"task app name {name!r} is claimed by both {claimed[name]} and {item.source}")
            claimed[name] = item.source
    return {item.app.name: item for item in sorted(found, key=lambda item: item.app.name)}


def get_app(name: str) -> TaskApp[Any]:
    """The app called `name`, aliases included. Raises ConfigError naming the nearest known one."""
    apps = find_apps()
    for item in apps.values():
        if name == item.app.name or name in item.app.aliases:
            return item.app
    known = sorted({*apps, *(alias for item in apps.values() for alias in item.app.aliases)})
    hint = did_you_mean(name, known)
    allowed = f"known task apps: {', '.join(known)}"
    raise ConfigError(f"unknown task app {name!r}{hint} ({allowed})", field="task.app", public=allowed)
