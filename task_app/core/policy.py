"""What a policy is: something that answers decision requests. Says nothing about how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from task_app.core.types import Completion, DecisionRequest

__all__ = ["Policy"]


class Policy(Protocol):
    """Answers decisions. `name` and `version` are stored with every episode it plays.

    `batched` tells the group runner how to call it: True means one call with the requests of all
    running episodes (a model with a KV cache); False means one request a call, from several threads.
    """

    name: str
    version: str
    batched: bool

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """One completion per request, in order. Raises PolicyError when the endpoint fails."""
        ...

    def end_episode(self, episode_id: str) -> None:
        """Forget what was kept for the episode; called once when it is over, however it ended."""
        ...
