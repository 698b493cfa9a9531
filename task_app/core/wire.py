"""Episodes as JSON: the full form that travels in responses, and the canonical form that is compared.

`episode_bytes` is what "the same episode" means: everything that seed, actions and answers determine,
without ids, times and machine-dependent counters.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from task_app.core.types import Episode

__all__ = ["episode_bytes", "episode_from_json", "episode_to_json"]

_EPISODE_IDENTITY = ("episode_id", "run_id", "group_id", "started_at", "finished_at", "details")
_DECISION_TIMES = ("started_at", "env_s")
_COMPLETION_IDENTITY = ("completion_id", "latency_s")


@cache
def _adapter() -> TypeAdapter[Episode]:
    return TypeAdapter(Episode)


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """The whole record as plain JSON values."""
    return _adapter().dump_python(episode, mode="json")


def episode_from_json(value: dict[str, Any]) -> Episode:
    """Inverse of `episode_to_json`. Raises pydantic's ValidationError for anything else."""
    return _adapter().validate_python(value)


def episode_bytes(episode: Episode) -> bytes:
    """The canonical bytes: equal for equal seed, options, policy and answers, in any process."""
    record = episode_to_json(episode)
    _drop(record, _EPISODE_IDENTITY)
    for decision in record["decisions"]:
        _drop(decision, _DECISION_TIMES)
        _drop(decision["completion"], _COMPLETION_IDENTITY)
    return json.dumps(record, sort_keys=True, allow_nan=False).encode()


def _drop(record: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        del record[key]
