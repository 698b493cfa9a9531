"""Which keys a job may use, and where the task app's key may go. Holds no key and sends nothing.

A job says which hosts its training asks, and the training has the service's environment. So the service decides, not
the job, which variables are read as keys: those of the task app are its own, and go to its own machine or to the
origins of `jobs.task_app_origins`; others must be named in `jobs.key_variables`. A provider's key that is found by
the provider's host (`OPENAI_API_KEY`, `GROQ_API_KEY`) goes to that host alone, whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from task_app.config import Config
from task_app.core.errors import refusal
from task_app.http.auth import is_loopback
from task_app.policies.chat import same_origin

__all__ = ["KeyRules"]


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What one service allows. `config` is the service's own, never a job's."""

    config: Config

    def check_origin(self, url: str, field: str) -> None:
        """Raises ConfigError about `field` unless the task app's key may go to the origin of `url`."""
        try:
            parts = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise refusal(field, "an http:// or https:// address is needed") from error
        if parts.scheme not in ("http", "https") or not parts.host:
            raise refusal(field, "an http:// or https:// address is needed")
        origins = self.config.jobs.task_app_origins
        if origins:
            if not any(same_origin(url, one) for one in origins):
                raise refusal(field, "the service's jobs.task_app_origins must list the address's origin")
        elif not is_loopback(parts.host):
            raise refusal(
                field, "without jobs.task_app_origins the service asks task apps on its own machine only (127.0.0.1)"
            )

    def check_config(self, job: Config) -> None:
        """Raises ConfigError, naming the key of the job's config, for a key or an address that is not allowed."""
        for field, variable in (
            ("policy.api_key_env", job.policy.api_key_env),
            ("sampler.api_key_env", job.sampler.api_key_env),
        ):
            if variable and variable not in self.config.jobs.key_variables:
                raise refusal(field, "the service's jobs.key_variables must name the variable; empty sends no key "
                               "but a known provider's, to that provider")  # fmt: skip
        if job.rollout.task_url:
            self.check_origin(job.rollout.task_url, "rollout.task_url")

    def settings(self) -> dict[str, Any]:
        """What the service decides over any job's config: the variables of the task app's keys."""
        server = self.config.server
        return {"server.api_key_env": server.api_key_env, "server.next_api_key_env": server.next_api_key_env}

    def ignored(self, document: Mapping[str, Any]) -> list[str]:
        """Dotted names of what a job's config says otherwise than `settings`, and which therefore has no effect."""
        section = document.get("server")
        given = section if isinstance(section, Mapping) else {}
        names = ((dotted, dotted.partition(".")[2], value) for dotted, value in self.settings().items())
        return [f"data.config.{dotted}" for dotted, name, value in names if given.get(name, value) != value]
