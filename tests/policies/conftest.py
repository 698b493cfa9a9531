"""A model endpoint to talk to."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Loaded by path: `tests` is no package, and some distributions install one of that name.
_spec = importlib.util.spec_from_file_location("stub_endpoint", Path(__file__).parents[1] / "policies/stub_endpoint.py")
assert _spec is not None
assert _spec.loader is not None
stub_endpoint = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stub_endpoint)


@pytest.fixture
def endpoint() -> Iterator[Any]:
    """A stub endpoint on a port of this machine, closed afterwards."""
    with stub_endpoint.StubEndpoint() as running:
        yield running


@pytest.fixture
def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
