"""Views made by hand, a field of grass with what a test puts on it; and another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from task_app.apps.crafter.rules import ACHIEVEMENTS, ITEM_MAX, VITALS
from task_app.apps.crafter.view import CrafterView, SeenObject

Place = tuple[int, int]


@pytest.fixture
def make_view() -> Callable[..., CrafterView]:
    """Make a view of grass; `tiles` and `things` put materials and objects at (x, y), `items` and `done` counts."""

    def make(
        tiles: Mapping[Place, str | None] | None = None,
        things: Mapping[Place, str] | None = None,
        items: Mapping[str, int] | None = None,
        done: Mapping[str, int] | None = None,
        **changes: Any,
    ) -> CrafterView:
        places = [(x, y) for x in range(-4, 5) for y in range(-3, 4)]
        fields: dict[str, Any] = {
            "step": 0,
            "materials": tuple((tiles or {}).get(place, "grass") for place in places),
            "objects": tuple(SeenObject(kind, x, y) for (x, y), kind in (things or {}).items()),
            "facing": (0, 1),
            "inventory": {name: 9 if name in VITALS else 0 for name in ITEM_MAX} | dict(items or {}),
            "achievements": dict.fromkeys(ACHIEVEMENTS, 0) | dict(done or {}),
            "offset": (0, 0),
            "daylight": 1.0,
            "sleeping": False,
        }
        return CrafterView(**(fields | changes))

    return make


@pytest.fixture
def said_elsewhere() -> Callable[[str], str]:
    """What code prints in another process whose strings hash otherwise; it may import this folder's modules."""

    def run(code: str) -> str:
        paths = [str(Path(__file__).parent), *sys.path]
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return answer.stdout.strip()

    return run
