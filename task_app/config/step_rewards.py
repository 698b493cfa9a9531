"""The step-reward flags: their keys, defaults and legal combinations, in one place.

They come under `[training]` or `[rollout]` of a TOML by their long names, or in a request's
`step_rewards{…}` by long or short names. `resolve` turns either into `StepRewardFlags`, after which
code knows only the mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from task_app.core.errors import ConfigError
from task_app.core.types import EventRewardsKind, Horizon, StepRewardFlags, StepRewardsMode

__all__ = ["SHORT_NAMES", "StepRewardSettings", "from_request", "merge_sections", "resolve"]

SHORT_NAMES: Final[Mapping[str, str]] = {
    "enabled": "step_rewards_enabled",
    "mode": "step_rewards_mode",
    "kind": "event_rewards_kind",
    "indicator_lambda": "step_rewards_indicator_lambda",
    "step_beta": "step_rewards_beta",
    "horizon": "step_rewards_horizon",
}
"""The names existing clients send, and the keys they stand for."""


class StepRewardSettings(BaseModel):
    """The six keys as written; None where a section does not set one. Base of `[training]` and `[rollout]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    step_rewards_enabled: bool | None = None
    """Master switch, default true; false is mode `off`."""
    step_rewards_mode: StepRewardsMode | None = None
    """off | decision_stepwise (default) | env_sparse."""
    event_rewards_kind: EventRewardsKind | None = None
    """unique (default) | absolute; absolute also pays repeats, which policies learn to exploit."""
    step_rewards_indicator_lambda: float | None = Field(default=None, ge=0)
    """Default 0: added to a decision's reward where unique_delta > 0."""
    step_rewards_beta: float | None = Field(default=None, ge=0)
    """Default 0: adds beta·(T − t) where unique_delta > 0, t the 0-based decision index."""
    step_rewards_horizon: Horizon | None = None
    """configured (default; T is the turn limit) | episode (T is the realised number of decisions)."""

    def written(self) -> dict[str, Any]:
        """The keys this section sets."""
        keys = StepRewardSettings.model_fields
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}


def merge_sections(training: StepRewardSettings, rollout: StepRewardSettings) -> dict[str, Any]:
    """The keys set in either section. Raises ConfigError where both set one differently."""
    first, second = training.written(), rollout.written()
    for key in first.keys() & second.keys():
        if first[key] != second[key]:
            raise ConfigError(
                f"{key} is {first[key]!r} under [training] and {second[key]!r} under [rollout]; set it once",
                field=f"training.{key}",
            )
    return first | second


def from_request(body: Mapping[str, Any], *, field: str = "step_rewards") -> dict[str, Any]:
    """A request's `step_rewards{…}` by long names. Raises ConfigError when a key comes under both names."""
    renamed: dict[str, Any] = {}
    for key, value in body.items():
        name = SHORT_NAMES.get(key, key)
        if name in renamed:
            raise ConfigError(f"{field} sets {name} twice, by its long and its short name", field=f"{field}.{key}")
        renamed[name] = value
    return renamed


def resolve(written: Mapping[str, Any], *, field: str = "training") -> StepRewardFlags:
    """The flags in force. Raises ConfigError for lambda or beta in a mode that has no use for them."""
    enabled = written.get("step_rewards_enabled", True)
    flags = StepRewardFlags(
        mode=written.get("step_rewards_mode", "decision_stepwise") if enabled else "off",
        kind=written.get("event_rewards_kind", "unique"),
        indicator_lambda=float(written.get("step_rewards_indicator_lambda", 0.0)),
        beta=float(written.get("step_rewards_beta", 0.0)),
        horizon=written.get("step_rewards_horizon", "configured"),
    )
    if flags.mode != "decision_stepwise":
        for key, value in (("indicator_lambda", flags.indicator_lambda), ("beta", flags.beta)):
            if value:
                raise ConfigError(
                    f"step_rewards_{key} = {value} has no effect in mode {flags.mode!r}; "
                    "set it to 0 or use mode 'decision_stepwise'",
                    field=f"{field}.step_rewards_{key}",
                )
    return flags
