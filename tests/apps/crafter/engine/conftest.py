"""The engine under test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from task_app.apps.crafter.engine.protocol import Engine
from tests.apps.crafter.engine.scenes import ENGINES, engine_name


@pytest.fixture(params=ENGINES, ids=engine_name)
def make(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """Make an engine: each that can be used here, one after the other."""
    return request.param
