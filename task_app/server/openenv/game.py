"""One OpenEnv environment: the episode of one connection. Blocking; call it in threads, one call at a time.

An episode is stored when it ends; one that its client leaves or resets is stored as aborted once a decision was made
in it. Knows no connection.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import replace
from typing import Any

from task_app.config import Config
from task_app.core.errors import ConfigError, EnvError
from task_app.core.types import Completion
from task_app.export import EpisodeFiles
from task_app.http.logs import note
from task_app.rollout import EpisodePlan, EpisodeRun
from task_app.server.driving import POLICY, ending, message_of, refuse_unreadable, told
from task_app.server.openenv.wire import ObservationData, ResetData, State, TaskAction, TaskObservation
from task_app.server.requests import EnvConfig, EnvSpec, PolicyConfig, PolicySpec, RolloutRequest
from task_app.server.resolve import resolve_task
from task_app.store import TraceStore

__all__ = ["RUN_ID", "Game", "NoEpisode"]

RUN_ID = "openenv"
"""The run that all episodes of this wire belong to."""

_FIELDS = {"env.config.": "", "policy.config.max_llm_calls": "max_decisions"}
"""Where `/rollout` has what a reset sets."""


class NoEpisode(Exception):
    """A step without an episode to play: none was begun, or it has ended."""


class Game:
    """An environment; `reset` begins an episode and ends the one before."""

    def __init__(self, config: Config, store: TraceStore, files: EpisodeFiles | None) -> None:
        self._config, self._store, self._files = config, store, files
        self._run: EpisodeRun | None = None
        self._given_id: str | None = None
        self._stored = True

    def reset(self, data: ResetData) -> dict[str, Any]:
        """Begin an episode. Raises ConfigError, EnvError when no world can be made, StoreError."""
        seed = secrets.randbelow(2**31 - 1) if data.seed is None else data.seed
        run = self._new_run(seed, data)
        self.leave("reset by its client")
        note(episode_id=run.episode_id)
        self._run, self._given_id, self._stored = run, data.episode_id, False
        if run.over:
            self._store_it()
            raise EnvError("the world could not be made; it is stored without a reward")
        return self._observed({"seed": seed, "max_decisions": run.limits.max_decisions}, tools=True)

    def step(self, action: TaskAction) -> dict[str, Any]:
        """Play one decision. Raises ConfigError (nothing executed), NoEpisode, EnvError, StoreError."""
        run = self._run
        if run is None or run.over:
            raise NoEpisode("no episode is running; reset begins one")
        spec = run.spec
        try:
            message = message_of(spec, action=action.actions, tool_calls=action.tool_calls, message=action.message)
        except ConfigError as error:
            raise ConfigError(
                str(error), field=error.field.replace("action", "actions"), public=error.public
            ) from error
        if action.form != "message":
            refuse_unreadable(spec, message, action.form)
        run.apply(Completion(message, f"{POLICY}-{run.request().noise_key}"))
        info = dict(told(run)["info"])
        if run.over:
            info["ending"] = self._store_it()
            if info["ending"]["status"] == "infra_error":
                raise EnvError("the environment failed; it is stored without a reward")
        return self._observed(info)

    def state(self) -> dict[str, Any]:
        """Where the episode stands; changes nothing."""
        run = self._run
        if run is None:
            return State().model_dump(mode="json")
        return State(
            episode_id=self._given_id or run.episode_id,
            step_count=len(run.decisions),
            trace_episode_id=run.episode_id,  # type: ignore[call-arg]
            seed=run.plan.seed,  # type: ignore[call-arg]
            done=run.over,  # type: ignore[call-arg]
        ).model_dump(mode="json")

    def leave(self, cause: str) -> None:
        """End the episode, if one is running; stored as aborted unless no decision was made in it."""
        run = self._run
        if run is None or self._stored:
            return
        if not run.over:
            run.abort(cause)
        if run.decisions:
            self._store_it()
        self._stored = True

    def _new_run(self, seed: int, data: ResetData) -> EpisodeRun:
        task = EnvSpec(seed=seed, config=EnvConfig(options=data.options, step_rewards=data.step_rewards))
        settings = PolicySpec(config=PolicyConfig(max_llm_calls=data.max_decisions))
        try:
            spec, flags, limits = resolve_task(RolloutRequest(run_id=RUN_ID, env=task, policy=settings), self._config)
        except ConfigError as error:
            field = error.field
            for there, here in _FIELDS.items():
                field = field.replace(there, here)
            raise ConfigError(str(error), field=field, public=error.public) from error
        episode_id = uuid.uuid4().hex
        details = {"wire": "openenv"} | ({"client_episode_id": data.episode_id} if data.episode_id else {})
        plan = EpisodePlan(RUN_ID, f"alone-{episode_id}", 0, seed, f"0/-/{seed}/0", details=details)
        return EpisodeRun(plan, spec, replace(limits, max_time_s=None), flags, POLICY, "", episode_id)

    def _observed(self, metadata: dict[str, Any], *, tools: bool = False) -> dict[str, Any]:
        run = self._run
        assert run is not None
        shown = told(run)
        request = run.request()
        metadata = {**metadata, "episode_id": run.episode_id, "truncated": shown["truncated"]}
        observation = TaskObservation(
            messages=[] if run.over else list(request.messages),
            tools=list(request.tools) if tools else [],
            state=shown["observation"],
            metadata=metadata,
        )
        return ObservationData(
            observation=observation.model_dump(mode="json"),
            reward=shown["reward"],
            done=shown["done"],
            metadata=metadata,
        ).model_dump(mode="json")

    def _store_it(self) -> dict[str, Any]:
        assert self._run is not None
        episode = self._run.episode()
        self._store.write_run(RUN_ID, "serve", self._config.model_dump(mode="json"))
        self._store.write_episode(episode)
        self._stored = True  # until then leaving tries again
        return ending(episode, self._files.write(episode) if self._files else None)
