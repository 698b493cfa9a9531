"""One rollout: an episode played in a thread and stored once, by whoever ends it.

A thread that hangs in a model endpoint or a world cannot be ended, only given up: `give_up` records
its episode as aborted, and what the thread does afterwards changes nothing. Knows no HTTP.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

from task_app.core.types import Episode
from task_app.export import EpisodeFiles
from task_app.rollout import EpisodePlan, EpisodeRun, Stop, play_to_end
from task_app.server.requests import RolloutRequest
from task_app.server.resolve import ResolvedRequest
from task_app.store import TraceStore

__all__ = ["FinishedRollout", "Rollout"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A stored episode, the task's structured state after each of its decisions, and the name of its trace file."""

    resolved: ResolvedRequest
    episode: Episode
    states: tuple[Any, ...]
    trace_file: str | None = None


class Rollout:
    """One episode to be made. `play` it in a thread; `stop` and `give_up` end it from another.

    `stop` asks, and the episode ends at its next decision; `give_up` ends it now.
    """

    def __init__(self, resolved: ResolvedRequest, store: TraceStore, files: EpisodeFiles | None = None) -> None:
        self.resolved = resolved
        self.episode_id = uuid.uuid4().hex
        self.stop = Stop()
        self._store = store
        self._files = files
        self._run: EpisodeRun | None = None
        self._finished: FinishedRollout | None = None
        self._recording = threading.Lock()

    def play(self) -> FinishedRollout:
        """Play to the end, or until the server stops, and store the episode. Raises StoreError."""
        resolved, policy = self.resolved, self.resolved.policy
        started, episode_id = time.monotonic(), self.episode_id
        run = self._run = EpisodeRun(
            _plan(resolved.request, episode_id),
            resolved.spec,
            resolved.limits,
            resolved.flags,
            policy.name,
            policy.version,
            episode_id,
        )
        try:
            play_to_end(run, policy, self.stop)
        except Exception as error:  # a broken policy or world costs this episode, never the server
            logger.exception("episode %s broke", episode_id)
            run.fail(f"unexpected {type(error).__name__}")
        finally:
            policy.end_episode(episode_id)
        return self._record(run, self._cut_off_by(started) if run.episode().status == "infra_error" else "")

    def give_up(self, cause: str) -> FinishedRollout | None:
        """Record the episode as aborted, unless it has been recorded; None when it had not even begun."""
        return self._record(self._run, cause) if self._run is not None else None

    def _cut_off_by(self, started: float) -> str:
        """Which limit of ours a policy ran into when it failed; empty when the failure is its own."""
        limit_s = self.resolved.limits.max_time_s
        if self.stop.is_set():
            return self.stop.cause
        return f"took longer than {limit_s:g} s" if limit_s and time.monotonic() - started >= limit_s else ""

    def _record(self, run: EpisodeRun, abort_for: str = "") -> FinishedRollout:
        with self._recording:
            if self._finished is None:
                if abort_for:
                    run.abort(abort_for)
                states, episode = tuple(past.after for past in run.history), run.episode()
                # A thread that is given up may be adding a decision this very moment: that one is left out.
                episode = replace(episode, decisions=episode.decisions[: len(states)])
                self._store.write_episode(episode)
                file = self._files.write(episode) if self._files else None
                self._finished = FinishedRollout(self.resolved, episode, states, file)
            return self._finished


def _plan(request: RolloutRequest, episode_id: str) -> EpisodePlan:
    seed, member = request.env.seed, request.member
    said = {
        "mode": request.mode,
        "training_session_id": request.training_session_id,
        "trace_correlation_id": request.policy.config.trace_correlation_id,
        "provider": request.policy.config.provider,
    }
    return EpisodePlan(
        run_id=request.run_id,
        group_id=request.group_id or f"alone-{episode_id}",
        member=member,
        seed=seed,
        noise_key=request.noise_key or f"{request.noise_seed}/-/{seed}/{member}",
        details={key: value for key, value in said.items() if value is not None},
    )
