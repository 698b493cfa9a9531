"""Which engine plays: the native one where it can be used, else the reference.

TASK_APP_ENGINE=reference|native forces one; with TASK_APP_REQUIRE_NATIVE=1 a missing native one is an error.
"""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import Literal

from task_app.apps.crafter.engine import native
from task_app.apps.crafter.engine.protocol import Engine, NightDraws
from task_app.apps.crafter.engine.reference import ReferenceEngine
from task_app.core.errors import ConfigError, EnvError

__all__ = ["EngineName", "make_engine", "which_engine"]

EngineName = Literal["reference", "native"]


def which_engine() -> tuple[EngineName, str]:
    """The engine in force, and why. Raises ConfigError or EnvError where the environment variables forbid it."""
    forced = os.environ.get("TASK_APP_ENGINE", "")
    if forced not in ("", "reference", "native"):
        raise ConfigError(f"TASK_APP_ENGINE must be reference or native, got {forced!r}", field="TASK_APP_ENGINE")
    if forced == "reference":
        return "reference", "TASK_APP_ENGINE=reference"
    problem = native.available()
    if not problem:
        return "native", "TASK_APP_ENGINE=native" if forced else "the extension is built and matches its sources"
    if forced or os.environ.get("TASK_APP_REQUIRE_NATIVE") == "1":
        raise EnvError(f"the native Crafter engine is required, but {problem}")
    return "reference", problem


def make_engine(night_draws: NightDraws = "stock") -> Engine:
    """A new game of the engine in force, not yet reset. Warns where a built extension had to be left aside."""
    name, why = which_engine()
    if name == "native":
        return native.NativeEngine(night_draws)
    if why == native.available() and find_spec(f"{__package__}._native") is not None:
        warnings.warn(f"Crafter runs on the slower reference engine: {why}", RuntimeWarning, stacklevel=2)
    return ReferenceEngine(night_draws)
