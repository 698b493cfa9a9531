"""What a run will do, and every reason not to start it. Checked before anything is played or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from task_app.config.models import Config
from task_app.core.errors import ConfigError
from task_app.credit import CreditSettings, check_credit

__all__ = [
    "MAY_CHANGE",
    "check_config",
    "config_json",
    "credit_settings",
    "differing_keys",
    "unused_keys",
    "update_seeds",
    "warnings",
]

MAY_CHANGE = frozenset(
    {
        "training.updates",
        "training.checkpoint_every",
        "training.run_dir",
        "rollout.concurrency",
        "rollout.seeds.stop",
        "eval.every",
    }
)
"""Keys that may differ when a run is resumed: none of them changes an update already made."""

_UNUSED_SECTIONS = ("type", "server", "prices", "forwarded", "policy")
_USED_POLICY_KEYS = ("temperature", "top_p")

SMALL_GROUP = 8


def update_seeds(config: Config, update: int) -> range:
    """The world seeds of update 1, 2, …: consecutive stretches of `rollout.seeds`."""
    width = config.training.groups_per_update
    first = config.rollout.seeds.start + (update - 1) * width
    return range(first, first + width)


def credit_settings(config: Config) -> CreditSettings:
    """`[training.credit]` with the step-reward mode in force."""
    credit = config.training.credit
    return CreditSettings(credit.estimator, credit.gamma, credit.scale, credit.singleton, config.step_rewards.mode)


def check_config(config: Config) -> None:
    """Refuse a run that cannot finish or would not be honest. Raises ConfigError naming the key."""
    check_credit(credit_settings(config), config.step_rewards, config.rollout.group_size)
    seeds, held_out = config.rollout.seeds, config.eval.seeds
    needed = config.training.updates * config.training.groups_per_update
    if needed > len(seeds):
        raise ConfigError(
            f"rollout.seeds {seeds} holds {len(seeds)} worlds, but {config.training.updates} updates of "
            f"{config.training.groups_per_update} groups need {needed}; write "
            f'"{seeds.start}:{seeds.start + needed}"',
            field="rollout.seeds",
        )
    if seeds.start < held_out.stop and held_out.start < seeds.stop:
        raise ConfigError(
            f"rollout.seeds {seeds} and eval.seeds {held_out} overlap: worlds trained on cannot be held out",
            field="eval.seeds",
        )


def warnings(config: Config) -> list[str]:
    """What is allowed but unwise, one sentence each."""
    size = config.rollout.group_size
    if size >= SMALL_GROUP:
        return []
    return [f"rollout.group_size is {size}: below {SMALL_GROUP} an advantage is mostly noise"]


def config_json(config: Config) -> dict[str, Any]:
    """The resolved config as plain JSON values."""
    return config.model_dump(mode="json")


def differing_keys(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Dotted keys that differ between two resolved configs and matter to training, sorted."""
    first, second = _identity(stored), _identity(current)
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    used = {name: section for name, section in config.items() if name not in _UNUSED_SECTIONS}
    used["policy"] = {key: config["policy"][key] for key in _USED_POLICY_KEYS}
    return {key: value for key, value in _flat(used).items() if key not in MAY_CHANGE}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def unused_keys(config: Config) -> list[str]:
    """Keys of older job files' sections, as written; they are for a training backend and do nothing here."""
    return sorted(f"{name}.{key}" for name, section in config.forwarded.items() for key in section)
