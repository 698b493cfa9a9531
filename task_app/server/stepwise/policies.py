"""The app's own policies, asked for the decision that a session is to make.

A policy may remember what it was shown (an expert keeps a map), so it is shown every turn of the session in order,
in a copy of the world made for it. What it decided at a turn is kept with the session: asked again, in whichever
worker, it says the same. Blocking; call it in threads.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any

from task_app.core.errors import ConfigError, PolicyError
from task_app.core.policy import Policy
from task_app.core.types import Completion
from task_app.http.errors import Busy, InfrastructureFailure
from task_app.http.logs import note
from task_app.policies.chat import completions_url
from task_app.policies.http_client import HttpClient
from task_app.rollout import EpisodeRun
from task_app.server.requests import EnvSpec, PolicySpec, RolloutRequest
from task_app.server.resolve import resolve_policy
from task_app.server.stepwise.bodies import PolicyBody, PolicyStepBody
from task_app.server.stepwise.sessions import COMPLETION, SessionProblem, Sessions, applied
from task_app.wiring import check

__all__ = ["SessionPolicies"]

_WITHOUT_MEMORY = ("chat",)
"""Policies that decide from one request alone: they need not see, and be paid for, earlier turns again."""


class SessionPolicies:
    """The policies of one server's sessions, as one of its workers sees them."""

    def __init__(self, sessions: Sessions, client: HttpClient, environ: Mapping[str, str]) -> None:
        self._sessions, self._client, self._environ = sessions, client, environ
        self._shadows: dict[tuple[str, str], _Shadow] = {}  # other threads add to it: look at a list of it

    def create(self, body: PolicyBody) -> dict[str, Any]:
        """Keep a policy for later. Raises ConfigError for one that cannot play, Busy, SessionProblem."""
        policy = body.as_policy()
        name = self._make(policy).name
        if body.bound_env_id is not None and self._sessions.table.session(body.bound_env_id) is None:
            raise SessionProblem(404, "not_found", "there is no session with this id", "bound_env_id")
        policy_id = uuid.uuid4().hex
        kept = policy.model_dump(mode="json", exclude_none=True)
        server = self._sessions.config.server
        self._sessions.expire()
        if not self._sessions.table.open_policy(policy_id, kept, body.bound_env_id, most=server.max_sessions):
            raise Busy(max(1, round(server.session_ttl_s / 10)))
        api_key = ["config.api_key"] if body.config.api_key is not None else []
        return {
            "policy_id": policy_id,
            "policy_name": name,
            "ignored": body.set_of("rl_run_id", "parent_policy_id", "mode") + api_key,
        }

    def step(self, body: PolicyStepBody) -> dict[str, Any]:
        """What the policy would say now. Raises SessionProblem, InfrastructureFailure; changes no session."""
        found = self._sessions.table.policy(body.policy_id)
        if found is None:
            raise SessionProblem(404, "not_found", "there is no policy with this id", "policy_id")
        kept, bound = found
        env_id = body.env_id or bound
        if env_id is None:
            raise SessionProblem(422, "invalid", "the policy is bound to no session; name one", "env_id")
        self._sessions.table.touch(env_id)
        completion, turn = self._decide(body.policy_id, PolicySpec.model_validate(kept), env_id)
        self._sessions.table.touch(env_id)
        message = completion.message.to_wire()
        return {
            "tool_calls": message.get("tool_calls", []),
            "message": message | {"finish_reason": completion.message.finish_reason},
            "meta": {
                "policy_id": body.policy_id,
                "env_id": env_id,
                "turn": turn,
                "model": completion.model,
                "completion_id": completion.completion_id,
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.completion_tokens,
                "latency_s": completion.latency_s,
                "ignored": body.set_of("observation", "state", "metadata", "dry_run"),
            },
        }

    def _decide(self, policy_id: str, spec: PolicySpec, env_id: str) -> tuple[Completion, int]:
        shadow = self._shadows.get((policy_id, env_id))
        if shadow is None:
            _, run, _ = self._sessions.snapshot(env_id)
            shadow = self._shadows.setdefault((policy_id, env_id), _Shadow(run, self._make(spec)))
        with shadow.lock:
            row = self._sessions.table.session(env_id)
            if row is None or row.ending is not None:
                self._forget(env_id)
                ending = row.ending if row else None
                raise SessionProblem(409, "over", "the episode of this session has ended", ending=ending)
            note(env_id=env_id)
            try:
                return self._shown(shadow, policy_id, env_id)
            except PolicyError as error:
                raise InfrastructureFailure(f"the policy failed: {_without_host(str(error), spec)}") from error
            finally:
                self._prune()

    def _shown(self, shadow: _Shadow, policy_id: str, env_id: str) -> tuple[Completion, int]:
        """Bring the copy up to date, then take what was decided there before, or decide."""
        table, run = self._sessions.table, shadow.run
        for answer in table.answers(env_id, run.turn - 1):
            if shadow.remembers:
                shadow.decided(run)
            applied(run, answer)
        if run.over:
            raise SessionProblem(409, "over", "the episode of this session has ended")
        before = table.decided(policy_id, env_id, run.turn)
        completion = COMPLETION.validate_python(before) if before is not None else shadow.decided(run)
        if before is None:
            said = COMPLETION.dump_python(completion, mode="json")
            completion = COMPLETION.validate_python(table.keep_decided(policy_id, env_id, run.turn, said))
        return completion, run.turn

    def _make(self, spec: PolicySpec) -> Policy:
        config = self._sessions.config
        request = RolloutRequest(run_id="policy", env=EnvSpec(seed=0), policy=spec)
        try:
            return resolve_policy(request, config, check(config), self._client, self._environ)
        except ConfigError as error:
            raise ConfigError(str(error), field=error.field.removeprefix("policy."), public=error.public) from error

    def _forget(self, env_id: str) -> None:
        for key in [key for key in list(self._shadows) if key[1] == env_id]:
            self._shadows.pop(key, None)

    def _prune(self) -> None:
        """Let go of the copies of sessions that are over."""
        if len(self._shadows) > self._sessions.config.server.max_sessions:
            still = self._sessions.table.open_ids()
            for key in [key for key in list(self._shadows) if key[1] not in still]:
                self._shadows.pop(key, None)


class _Shadow:
    """A policy and the copy of a session it looks at; `lock` lets one request use them at a time."""

    def __init__(self, run: EpisodeRun, policy: Policy) -> None:
        self.run, self.policy = run, policy
        self.lock = threading.Lock()
        self.remembers = policy.name not in _WITHOUT_MEMORY
        self._last: tuple[int, Completion] | None = None

    def decided(self, run: EpisodeRun) -> Completion:
        """What the policy says at the run's turn; asked once a turn."""
        if self._last is None or self._last[0] != run.turn:
            self._last = (run.turn, self.policy.decide([run.request()])[0])
        return self._last[1]


def _without_host(sentence: str, spec: PolicySpec) -> str:
    """The endpoint's host is the client's own input, which no answer repeats."""
    url = spec.config.inference_url
    return sentence.replace(completions_url(url).host, "(inference_url)") if url else sentence
