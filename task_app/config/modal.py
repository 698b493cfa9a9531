"""The section about machines at Modal: what one container is, how many there may be, what trains on a GPU there.

Shape only; it imports nothing of Modal's and names no secret's value.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from task_app.config.section import Section

__all__ = ["ModalSection"]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""What Modal takes as the name of an object: up to 63 letters, digits, dots, dashes and underscores."""
_NAME_OR_NONE = rf"{_NAME}|^$"


class ModalSection(Section):
    """The app at Modal (docs/deploy.md): its endpoint, its training and the workers of `rollout --executor modal`."""

    name: str = Field(default="", pattern=_NAME_OR_NONE)
    """Name of the deployment; empty: task-app-<app>."""
    secret: str = Field(default="", pattern=_NAME_OR_NONE)
    """Name of a secret kept at Modal that sets the keys; empty: they are handed over from here."""
    volume: str = Field(default="task-app", pattern=_NAME)
    """Name of the volume for traces and run folders; made where there is none."""
    cpu: float = Field(default=2.0, ge=0.125, le=64)
    """Physical cores kept for one container of the endpoint or of rollouts."""
    memory_mb: int = Field(default=2048, ge=256, le=344_064)
    """Memory kept for it, in MiB."""
    min_containers: int = Field(default=0, ge=0, le=100)
    """Endpoint: containers kept warm, which costs while nobody calls; 0: the first caller waits for a start."""
    max_containers: int = Field(default=1, ge=1, le=1000)
    """Endpoint: the most containers there may be; one, since sessions, aborts, idempotency keys and limits are known to
    the container alone that was asked."""
    scaledown_window_s: int = Field(default=300, ge=2, le=3600)
    """Endpoint: seconds an idle container stays before it ends."""
    max_inputs: int = Field(default=64, ge=1, le=1000)
    """Endpoint: requests one container takes at once; more go to another."""
    target_inputs: int = Field(default=8, ge=1, le=1000)
    """Endpoint: requests per container from which another one is started."""
    commit_every_s: float = Field(default=10.0, ge=1, le=3600)
    """Seconds between copies of new episodes to the volume; a container that ends copies once more."""
    gpu: str = Field(default="L4", pattern=r"^$|^[A-Za-z0-9!+-]+(:[1-8])?$")
    """Training: the GPU, such as L4, A100-80GB or H100; empty: none, training on the CPU."""
    gpu_timeout_s: int = Field(default=86_400, ge=60, le=86_400)
    """Training: seconds one attempt may take; the next resumes from the last checkpoint."""
    gpu_retries: int = Field(default=3, ge=0, le=10)
    """Training: attempts after the first."""
    rollout_containers: int = Field(default=16, ge=1, le=1000)
    """Rollouts: the most containers groups are spread over."""
    rollout_timeout_s: int = Field(default=3600, ge=60, le=86_400)
    """Rollouts: seconds one group may take."""

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        for lower, upper in (("min_containers", "max_containers"), ("target_inputs", "max_inputs")):
            low, high = getattr(self, lower), getattr(self, upper)
            if low > high:
                raise ValueError(f"{lower} {low} is above {upper} {high}")
        return self
