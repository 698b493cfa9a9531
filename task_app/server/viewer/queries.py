"""What a page may ask: strict query models, an unknown or ill-typed parameter is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from task_app.core.types import Status

__all__ = ["ChoicesQuery", "EpisodeQuery", "EpisodesQuery", "FrameQuery", "GroupQuery", "GroupsQuery", "RunsQuery"]

MOST_ROWS = 200

Id = Annotated[str, Field(min_length=1, max_length=1_000)]
Limit = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Offset = Annotated[int, Field(ge=0, lt=2**31)]
Update = Annotated[int, Field(ge=0, lt=2**31)]
Amount = Annotated[float, Field(allow_inf_nan=False)]

Sort = Literal[
    "order",
    "newest",
    "return",
    "-return",
    "outcome",
    "-outcome",
    "decisions",
    "-decisions",
    "steps",
    "-steps",
    "seed",
    "-seed",
]
"""`order` is (run, update, group, member); a minus sorts the largest first."""


class _Query(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunsQuery(_Query):
    """A page of runs, newest first."""

    limit: Limit = 50
    offset: Offset = 0


class GroupsQuery(_Query):
    """A page of one run's groups, in order of (update, group)."""

    run: Id
    limit: Limit = 50
    offset: Offset = 0


class GroupQuery(_Query):
    """One group; without `update`, one that no training update made."""

    run: Id
    group: Id
    update: Update | None = None


class ChoicesQuery(_Query):
    """What the episodes, of one run or of all, can be filtered by."""

    run: Id | None = None


class EpisodesQuery(_Query):
    """A page of episodes. Filters hold together; each `achievement` given must have happened."""

    run: Id | None = None
    group: Id | None = None
    update: Update | None = None
    policy: Id | None = None
    model: Id | None = None
    status: Status | None = None
    achievement: tuple[Id, ...] = Field(default=(), max_length=32)
    min_return: Amount | None = None
    max_return: Amount | None = None
    sort: Sort | None = None
    limit: Limit = 50
    offset: Offset = 0


class EpisodeQuery(_Query):
    """One episode, by its id or by what only one id begins with."""

    id: Id


class FrameQuery(_Query):
    """The picture of an episode's world after its first `step` steps.

    `key` names the actions played (an episode's `picture.key`); with it the answer may be kept for ever.
    """

    id: Id
    step: int = Field(ge=0, lt=2**31)
    key: Id | None = None
