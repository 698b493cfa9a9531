"""Stored answers, said again word for word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from task_app.core.errors import PolicyError
from task_app.core.types import Completion, DecisionRequest, Episode

__all__ = ["ReplayPolicy"]


class ReplayPolicy:
    """Says what the stored episode of the same seed and member said, turn by turn.

    Raises PolicyError (not worth retrying) for a seed and member it has no episode of, and for a turn
    the stored episode did not reach.
    """

    name = "replay"
    batched = False

    def __init__(self, episodes: Iterable[Episode]) -> None:
        self.version = "1"
        self._answers: dict[tuple[int, int], tuple[Completion, ...]] = {}
        for episode in episodes:
            key = (episode.task.seed, episode.member)
            self._answers.setdefault(key, tuple(decision.completion for decision in episode.decisions))

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """The stored completion of each request's seed, member and turn, its tokens left out."""
        return [self._answer(request) for request in requests]

    def end_episode(self, episode_id: str) -> None:
        """Nothing is kept per episode."""

    def _answer(self, request: DecisionRequest) -> Completion:
        answers = self._answers.get((request.seed, request.member))
        if answers is None:
            raise PolicyError(
                f"no stored episode of seed {request.seed}, member {request.member} to replay", retryable=False
            )
        if request.turn > len(answers):
            raise PolicyError(
                f"the stored episode of seed {request.seed}, member {request.member} has {len(answers)} decisions; "
                f"turn {request.turn} was asked for",
                retryable=False,
            )
        return replace(answers[request.turn - 1], tokens=None)
