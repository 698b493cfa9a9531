"""What a run will do, and every reason not to start it. Checked before anything is played or written."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from task_app.config.models import Config
from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean
from task_app.core.task import TaskSpec
from task_app.credit import CreditSettings, check_credit
from task_app.rollout.relabel import make_teacher
from task_app.train.tracker import check_tracking

__all__ = [
    "MAY_CHANGE",
    "before_changes",
    "changed_values",
    "check_config",
    "check_lessons",
    "check_worlds",
    "config_json",
    "credit_settings",
    "differing_keys",
    "differing_sft_keys",
    "flat",
    "unused_keys",
    "update_seeds",
    "warnings",
]

MAY_CHANGE = frozenset(
    {
        "training.updates",
        "training.checkpoint_every",
        "training.keep_checkpoints",
        "training.allow_changed",
        "training.rank_timeout_s",
        "training.run_dir",
        "training.hypothesis",
        "training.expectation",
        "training.note",
        "rollout.concurrency",
        "rollout.policy_host",
        "rollout.policy_port",
        "rollout.policy_url",
        "rollout.policy_wait_s",
        "rollout.seeds.stop",
        "rollout.task_timeout_s",
        "rollout.task_url",
        "sampler.api_key_env",
        "sampler.base_url",
        "sampler.handover",
        "sampler.handover_timeout_s",
        "sampler.max_mismatch",
        "sampler.timeout_s",
        "eval.every",
    }
)
"""Keys that may differ when a run is resumed: none of them changes an update already made."""

_MAY_CHANGE_SECTIONS = ("training.guards.", "tracking.")
"""Sections that watch a run and change nothing in it."""

_UNUSED_SECTIONS = ("type", "server", "prices", "forwarded", "policy", "sft", "jobs")
_USED_POLICY_KEYS = ("temperature", "top_p")
_OPEN_TABLES = ("task.options.", "model.template_options.")

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
    updates, groups = config.training.updates, config.training.groups_per_update
    check_worlds(config, updates * groups, f"{updates} updates of {groups} groups need")
    _check_allowed(config)
    _check_sampler(config)
    _check_hosted(config)
    check_tracking(config.tracking)


def check_lessons(config: Config, spec: TaskSpec) -> None:
    """Refuse settings that name no data, or two kinds of it. Raises ConfigError naming the field."""
    sft, teacher = config.sft, config.sft.teacher
    if config.rollout.task_url:
        raise ConfigError(
            f"rollout.task_url {config.rollout.task_url} cannot be used in supervised training: a teacher corrects "
            "play in worlds of this process, and so is the outcome measured here; leave it out",
            field="rollout.task_url",
        )
    if not teacher.name:
        if sft.dataset is None:
            raise ConfigError(
                "sft needs a dataset (JSON lines from `task-app traces export-sft`) or a teacher (sft.teacher.name)",
                field="sft.dataset",
            )
        return
    make_teacher(spec, teacher.name, field="sft.teacher.name")
    for name, given in (("dataset", sft.dataset), ("validation", sft.validation)):
        if given is not None:
            raise ConfigError(
                f"sft.{name} {given} and the teacher {teacher.name!r} cannot both be used: a teacher makes its own "
                "data, and is judged by what the policy scores in each round; leave one out",
                field=f"sft.{name}",
            )
    if config.sampler.kind != "embedded":
        raise ConfigError(
            f'sampler.kind = "{config.sampler.kind}" cannot be used with a teacher: the policy plays its rounds in '
            'this process; use "embedded"',
            field="sampler.kind",
        )
    check_worlds(config, teacher.episodes + teacher.rounds * teacher.round_episodes, "the teacher's rounds play")


def check_worlds(config: Config, needed: int, why: str) -> None:
    """Refuse fewer training worlds than are needed, and worlds that are held out too. Raises ConfigError."""
    seeds, held_out = config.rollout.seeds, config.eval.seeds
    if needed > len(seeds):
        raise ConfigError(
            f"rollout.seeds {seeds} holds {len(seeds)} worlds, but {why} {needed}; write "
            f'"{seeds.start}:{seeds.start + needed}"',
            field="rollout.seeds",
        )
    if seeds.start < held_out.stop and held_out.start < seeds.stop:
        raise ConfigError(
            f"rollout.seeds {seeds} and eval.seeds {held_out} overlap: worlds trained on cannot be held out",
            field="eval.seeds",
        )


def _check_sampler(config: Config) -> None:
    """Refuse a server for a network that only this process can sample, and what only a server can do."""
    sampler = config.sampler
    if sampler.kind == "vllm" and not config.model.path:
        raise ConfigError(
            'sampler.kind = "vllm" needs model.path: the embedded policy made from scratch is sampled in this process',
            field="sampler.kind",
        )
    if sampler.kind == "embedded" and sampler.max_staleness:
        raise ConfigError(
            f'sampler.max_staleness = {sampler.max_staleness} needs sampler.kind = "vllm": the embedded sampler plays '
            "with the weights that are being learned",
            field="sampler.max_staleness",
        )


def _check_hosted(config: Config) -> None:
    """Refuse what cannot be played on a task app elsewhere, and addresses nobody can reach."""
    rollout = config.rollout
    if not rollout.task_url:
        return
    for name, url in (("task_url", rollout.task_url), ("policy_url", rollout.policy_url)):
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment):
            raise ConfigError(
                f"rollout.{name}: an http:// or https:// address is needed, got {url!r}", field=f"rollout.{name}"
            )
    if config.sampler.kind == "vllm":
        raise ConfigError(
            'sampler.kind = "vllm" cannot be used with rollout.task_url: decisions of the app are gathered and sampled '
            'in this process; use "embedded"',
            field="sampler.kind",
        )
    if rollout.policy_host in ("0.0.0.0", "::", "") and not rollout.policy_url:
        raise ConfigError(
            f"rollout.policy_host {rollout.policy_host!r} is no address the app could ask at; say where it reaches "
            "this machine in rollout.policy_url",
            field="rollout.policy_url",
        )


def _check_allowed(config: Config) -> None:
    """Refuse keys in `training.allow_changed` that no config has; those of open tables are taken as they are."""
    known = flat(_used(config_json(config)))
    for key in config.training.allow_changed:
        if key not in known and not key.startswith(_OPEN_TABLES):
            hint = did_you_mean(key, known)
            raise ConfigError(
                f"training.allow_changed names {key!r}, which is no key that training uses{hint}",
                field="training.allow_changed",
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


def differing_keys(stored: Mapping[str, Any], current: Mapping[str, Any], allowed: Collection[str] = ()) -> list[str]:
    """Dotted keys that differ between two resolved configs, matter to training and are not `allowed` to; sorted."""
    first, second = _identity(stored), _identity(current)
    return [key for key in _differing(first, second) if key not in allowed]


def changed_values(stored: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Every key of the sections training uses that differs: dotted key → [stored value, current value]."""
    first, second = flat(_used(stored)), flat(_used(current))
    return {key: [first.get(key), second.get(key)] for key in _differing(first, second)}


def before_changes(config: Mapping[str, Any], changes: Iterable[Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
    """A resolved config as it was before `changes` (of `changed_values`, in the order they were made)."""
    earlier = copy.deepcopy(dict(config))
    for change in reversed(list(changes)):
        for dotted, (value, _) in change.items():
            *sections, key = dotted.split(".")
            section = earlier
            for name in sections:
                section = section.setdefault(name, {})
            section[key] = value
    return earlier


def differing_sft_keys(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """The same for supervised runs: data, model, seed and how they are trained."""
    sections = ("seed", "task", "model", "sft")
    first, second = (flat({name: config.get(name) for name in sections}) for config in (stored, current))
    return _differing(first, second)


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _used(config: Mapping[str, Any]) -> dict[str, Any]:
    used = {name: section for name, section in config.items() if name not in _UNUSED_SECTIONS}
    return used | {"policy": {key: config["policy"][key] for key in _USED_POLICY_KEYS}}


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in flat(_used(config)).items()
        if key not in MAY_CHANGE and not key.startswith(_MAY_CHANGE_SECTIONS)
    }


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    values: dict[str, Any] = {}
    for key, item in value.items():
        values |= flat(item, f"{prefix}.{key}" if prefix else str(key))
    return values


def unused_keys(config: Config) -> list[str]:
    """Keys of older job files' sections, as written; they are for a training backend and do nothing here."""
    return sorted(f"{name}.{key}" for name, section in config.forwarded.items() for key in section)
