"""`long` tests, skipped unless asked for with `-m long`, and the engine under test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from task_app.apps.crafter.engine.protocol import Engine
from tests.apps.crafter.engine.scenes import ENGINES, engine_name


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; run with -m long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "long" in (config.getoption("markexpr") or ""):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with -m long"))


@pytest.fixture(params=ENGINES, ids=engine_name)
def make(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """Make an engine: each that can be used here, one after the other."""
    return request.param
