"""A task app's scripted player as a policy: one agent per episode, seeded by the episode's noise key."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from task_app.core.task import Agent, AgentFactory, PlanningAgent, TaskApp
from task_app.core.types import Completion, DecisionRequest

__all__ = ["ScriptedPolicy"]


class ScriptedPolicy:
    """Plays `name`, one of the app's baselines. Safe to call from many threads, one per episode."""

    batched = False

    def __init__(self, app: TaskApp, name: str, factory: AgentFactory) -> None:
        self.name = name
        self.version = f"{app.name}-{app.version}"
        self._app = app
        self._factory = factory
        self._agents: dict[str, Agent | PlanningAgent] = {}

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """One completion per request; the episode's agent sees its observation, a planning one its world."""
        return [self._decide(request) for request in requests]

    def end_episode(self, episode_id: str) -> None:
        """Forget the episode's agent."""
        self._agents.pop(episode_id, None)

    def _decide(self, request: DecisionRequest) -> Completion:
        start = time.perf_counter()
        agent = self._agents.get(request.episode_id)
        if agent is None:
            episode_key = request.noise_key.rsplit("/", 1)[0]
            agent = self._agents[request.episode_id] = self._factory(_seed(episode_key))
        if isinstance(agent, PlanningAgent):
            actions = agent.plan(request.environment)
        else:
            actions = agent.act(request.observation)
        message = self._app.say(actions)
        return Completion(
            message=message,
            completion_id=f"{self.name}-{request.noise_key}",
            model=self.name,
            latency_s=time.perf_counter() - start,
        )


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
