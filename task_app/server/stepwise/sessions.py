"""Living sessions: an episode that a client drives, begun here, continued in any worker, stored once when it ends.

What a worker holds in memory is a copy that can be made again: a session is its seed, options and flags and what was
said so far, and playing that again gives the same world. Blocking; call it in threads. Knows no HTTP routes.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from task_app.config import Config
from task_app.core.errors import ConfigError, TaskAppError
from task_app.core.types import Completion, Episode
from task_app.export import EpisodeFiles
from task_app.http.errors import Busy, InfrastructureFailure
from task_app.http.logs import note
from task_app.rollout import EpisodePlan, EpisodeRun
from task_app.server.driving import POLICY, ending, message_of, refuse_unreadable, told
from task_app.server.requests import RolloutRequest, ignored_settings
from task_app.server.resolve import resolve_task
from task_app.server.stepwise.bodies import InitializeBody, StepBody
from task_app.server.stepwise.table import Answer, SessionRow, SessionTable
from task_app.store import TraceStore

__all__ = ["COMPLETION", "SessionProblem", "Sessions", "applied"]

logger = logging.getLogger(__name__)

COMPLETION = TypeAdapter(Completion)
"""A completion as plain JSON and back."""


class SessionProblem(Exception):
    """A session that is not there (404) or cannot take the request now (409); `field` names what points at it.

    `ending` is how its episode ended, if it has: the client may have missed it.
    """

    def __init__(
        self, status: int, code: str, message: str, field: str = "env_id", ending: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field, self.ending = status, code, field, ending


class Sessions:
    """The sessions of one server, as one of its workers sees them."""

    def __init__(self, config: Config, table: SessionTable, store: TraceStore, files: EpisodeFiles | None) -> None:
        self.config, self.table = config, table
        self._store, self._files = store, files
        self._live: dict[str, EpisodeRun] = {}

    # -- what clients ask for --------------------------------------------------------------------

    def initialize(self, name: str, body: InitializeBody) -> dict[str, Any]:
        """Begin an episode. Raises ConfigError, Busy, InfrastructureFailure (stored), StoreError."""
        env_id = uuid.uuid4().hex
        request = body.as_rollout(name, f"session-{env_id}")
        run = self._new_run(env_id, request)
        self.expire()
        stored = request.model_dump(mode="json", exclude_none=True)
        row = self.table.open_session(env_id, stored, run.spec.prompt_hash, most=self.config.server.max_sessions)
        if row is None:
            raise Busy(max(1, round(self.config.server.session_ttl_s / 10)))
        self._live[env_id] = run
        note(env_id=env_id)
        if run.over:
            self._finish(row, run)
            raise InfrastructureFailure("the world could not be made; it is stored without a reward", env_id=env_id)
        return {
            "env_id": env_id,
            "run_id": request.run_id,
            "tools": list(run.request().tools),
            "max_decisions": run.limits.max_decisions,
            "ignored": _ignored(body, request),
            **self._shown(run),
        }

    def step(self, body: StepBody) -> dict[str, Any]:
        """Play one decision, or answer one again that was asked for with the same request id.

        Raises SessionProblem, ConfigError (nothing executed), InfrastructureFailure.
        """
        with self._held(body.env_id) as row:
            note(env_id=row.env_id)
            run = self._run(row)
            if (before := self._turn_of(body)) is not None:
                return self._told_again(row.env_id, before)
            if run is None:
                raise self._over(row.env_id)
            message = message_of(run.spec, action=body.action, tool_calls=body.tool_calls, message=body.message)
            if body.form != "message":
                refuse_unreadable(run.spec, message, body.form)
            turn = run.turn
            completion = Completion(message, f"{POLICY}-{run.request().noise_key}")
            answer = Answer(turn, COMPLETION.dump_python(completion, mode="json"), time.time())
            run.apply(completion)
            if run.turn > turn:
                self.table.add_answer(row.env_id, answer, body.request)
            shown = self._shown(run)
            if run.over:
                shown["ending"] = self._finish(row, run)
                if shown["ending"]["status"] == "infra_error":
                    raise InfrastructureFailure(
                        "the environment failed; it is stored without a reward", env_id=row.env_id
                    )
            return {"env_id": row.env_id, **shown}

    def terminate(self, env_id: str) -> dict[str, Any]:
        """End a session; one that has ended already says how again. Raises SessionProblem, StoreError."""
        with self._held(env_id) as row:
            note(env_id=row.env_id)
            told_before = row.ending or self._abort(row, "terminated by its client")
            return {"ok": True, "env_id": env_id, "ending": told_before}

    # -- what happens by itself ------------------------------------------------------------------

    def expire(self) -> None:
        """End what nobody has used for too long. What cannot be ended now is tried again later."""
        ttl_s = self.config.server.session_ttl_s
        self._abort_all(self.table.idle(ttl_s), f"not used for {ttl_s:g} s")
        self.table.forget(ttl_s)
        for env_id in set(self._live) - self.table.open_ids():
            self._live.pop(env_id, None)

    def abort_own(self) -> None:
        """End the sessions that this worker served last, and those whose worker died: the server stops."""
        self._abort_all(self.table.owned(), "the server stopped")

    def _abort_all(self, env_ids: list[str], cause: str) -> None:
        for env_id in env_ids:
            try:
                with self._held(env_id) as row:
                    if row.ending is None:
                        self._abort(row, cause)
            except SessionProblem:
                pass  # somebody uses it after all
            except TaskAppError:
                logger.exception("session %s could not be ended", env_id)

    def _abort(self, row: SessionRow, cause: str) -> dict[str, Any]:
        run = self._run(row)
        if run is None:  # it had ended, and what is known of it was kept a moment ago
            again = self.table.session(row.env_id)
            assert again is not None
            assert again.ending is not None
            return again.ending
        run.abort(cause)
        return self._finish(row, run)

    # -- episodes --------------------------------------------------------------------------------

    def snapshot(self, env_id: str) -> tuple[SessionRow, EpisodeRun, list[Answer]]:
        """An open session, a fresh run of its episode without any answer, and all answers so far.

        For those who look at a session without changing it. Raises SessionProblem.
        """
        row = self.table.session(env_id)
        if row is None:
            raise _unknown()
        if row.ending is not None:
            raise self._over(env_id)
        return row, self._new_run(env_id, RolloutRequest.model_validate(row.request)), self.table.answers(env_id)

    def _over(self, env_id: str) -> SessionProblem:
        row = self.table.session(env_id)
        return SessionProblem(409, "over", "the episode of this session has ended", ending=row.ending if row else None)

    def _turn_of(self, body: StepBody) -> int | None:
        """The turn that was made of the same request before. Raises SessionProblem when it held another decision."""
        if body.request is None:
            return None
        request_id, said = body.request
        before = self.table.step_request(body.env_id, request_id)
        if before is not None and before[1] != said:
            raise SessionProblem(409, "conflict", "the request id came with another decision before", "request_id")
        return None if before is None else before[0]

    def _told_again(self, env_id: str, turn: int) -> dict[str, Any]:
        """What was answered when the decision at `turn` was played, made anew by playing the session again."""
        row = self.table.session(env_id)
        assert row is not None
        run = self._new_run(env_id, RolloutRequest.model_validate(row.request))
        if run.spec.prompt_hash != row.prompt_hash:
            raise self._over(env_id)
        for answer in self.table.answers(env_id):
            if answer.turn <= turn:
                applied(run, answer)
        return {"env_id": env_id, **self._shown(run)} | ({"ending": row.ending} if run.over else {})

    @contextmanager
    def _held(self, env_id: str) -> Iterator[SessionRow]:
        """The session, held by this request alone. Raises SessionProblem for an unknown one or one that is held."""
        token = self.table.hold(env_id)
        if token is None:
            raise SessionProblem(409, "in_use", "another request of this session is being played")
        try:
            row = self.table.session(env_id)
            if row is None:
                raise _unknown()
            yield row
        except (ConfigError, SessionProblem):
            raise
        except BaseException:
            self._live.pop(env_id, None)  # what is in memory may be ahead of what is kept
            raise
        finally:
            self.table.release(env_id, token)

    def _run(self, row: SessionRow) -> EpisodeRun | None:
        """The session's episode with all that was said, rebuilt where this worker lacks some of it.

        None when it has ended: a worker may have died between the last decision and the end, which is then made up
        for here.
        """
        if row.ending is not None:
            return None
        run = self._live.get(row.env_id)
        if run is None:
            request = RolloutRequest.model_validate(row.request)
            run = self._live[row.env_id] = self._new_run(row.env_id, request)
        if run.spec.prompt_hash != row.prompt_hash:
            run.abort("the task is not the one it was begun with")
        for answer in self.table.answers(row.env_id, run.turn - 1):
            applied(run, answer)
        if not run.over:
            return run
        self._finish(row, run)
        return None

    def _new_run(self, env_id: str, request: RolloutRequest) -> EpisodeRun:
        try:
            spec, flags, limits = resolve_task(request, self.config)
        except ConfigError as error:
            raise ConfigError(str(error), field=error.field.removeprefix("env."), public=error.public) from error
        plan = _plan(env_id, request)
        return EpisodeRun(plan, spec, replace(limits, max_time_s=None), flags, POLICY, "", env_id)

    def _finish(self, row: SessionRow, run: EpisodeRun) -> dict[str, Any]:
        """Store the episode, unless it is stored already, and keep what its client is told of it."""
        episode = self._with_times(row, run.episode())
        known = self._store.query("SELECT 1 FROM episodes WHERE episode_id = ?", (row.env_id,))
        if known:
            episode = self._store.episode(row.env_id)
        else:
            self._store.write_run(episode.run_id, "serve", self.config.model_dump(mode="json"))
            self._store.write_episode(episode)
        file = self._files.write(episode) if self._files else None
        told_now = ending(episode, file)
        self.table.end(row.env_id, told_now)
        self._live.pop(row.env_id, None)
        return told_now

    def _with_times(self, row: SessionRow, episode: Episode) -> Episode:
        """The times at which it happened, not those at which a copy was rebuilt."""
        said_at = {answer.turn: answer.said_at for answer in self.table.answers(row.env_id)}
        decisions = tuple(replace(d, started_at=said_at.get(d.turn, d.started_at)) for d in episode.decisions)
        return replace(episode, started_at=row.started_at, decisions=decisions)

    def _shown(self, run: EpisodeRun) -> dict[str, Any]:
        messages = [] if run.over else list(run.request().messages)
        return {**told(run), "step_idx": len(run.decisions), "messages": messages}


def applied(run: EpisodeRun, answer: Answer) -> None:
    """Say in `run` what was said before at its turn."""
    if not run.over:
        run.apply(COMPLETION.validate_python(answer.completion))


def _plan(env_id: str, request: RolloutRequest) -> EpisodePlan:
    seed, member = request.env.seed, request.member
    session = request.env.config.training_session_id
    return EpisodePlan(
        run_id=request.run_id,
        group_id=request.group_id or f"alone-{env_id}",
        member=member,
        seed=seed,
        noise_key=f"{request.noise_seed}/-/{seed}/{member}",
        details={"wire": "stepwise"} | ({"training_session_id": session} if session else {}),
    )


def _ignored(body: InitializeBody, request: RolloutRequest) -> list[str]:
    """What was sent and has no effect: a session's decisions are its client's, whatever policy it names."""
    paths = [path for path in ignored_settings(request, POLICY) if path != "env.config.training_session_id"]
    sent: Mapping[str, Any] = body.policy.config.model_dump(include={"api_key"}, exclude_none=True)
    named = ["policy.policy_name"] if body.policy.policy_name else []
    return sorted(
        {*(path.removeprefix("env.") for path in paths), *named, *(f"policy.config.{key}" for key in sent)}
        | set(body.set_of("parent_env_id"))
    )


def _unknown() -> SessionProblem:
    return SessionProblem(404, "not_found", "there is no session with this id; it may be long over")
