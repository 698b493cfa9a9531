"""The hosted task app on a real port, for the scripts that talk to one."""

from __future__ import annotations

from tests.rollout.conftest import served

__all__ = ["served"]
