"""A TOML file from its text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from task_app.config import Config, load_config


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Config]:
    """Load a config whose file holds the given text, with overrides."""

    def run(text: str, overrides: dict[str, object] | None = None) -> Config:
        path = tmp_path / "c.toml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, overrides)

    return run
