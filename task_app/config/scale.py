"""The section about spreading rollouts over several processes or machines. Shape only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from task_app.config.section import Section

__all__ = ["ScaleSection"]


class ScaleSection(Section):
    """Where `task-app rollout` plays its groups (docs/deploy.md); the episodes are the same everywhere."""

    executor: Literal["inprocess", "ray", "modal"] = "inprocess"
    """inprocess: here | ray: a Ray cluster, needs the extra `ray` | modal: containers of the app deployed there."""
    workers: int = Field(default=0, ge=0, le=1024)
    """ray: worker processes of a local cluster; 0: one per CPU."""
    ray_address: str = ""
    """ray: a running cluster to join, such as ray://host:10001 or auto; empty: a local one for this run alone."""
    tries: int = Field(default=3, ge=1, le=10)
    """How often a group is played whose worker was lost, before the run fails."""
