"""The app as it will be at Modal: names, limits, what its containers are told. Pure; knows nothing of Modal's package.

Settings reach `modal_app.py` through variables, since the `modal` command line has no options for them:

    TASK_APP_CONFIG           a TOML file; without one, defaults
    TASK_APP_OVERRIDES        dotted keys and values over it, as a JSON object
    TASK_APP_MODAL_SECRETS    names of further variables to hand over as a secret, separated by commas
    TASK_APP_MODAL_WATCH      1: `modal serve` watches the package and the TOML
    TASK_APP_RESOLVED_CONFIG  set in containers: the whole config, which holds no secret

The values of secrets stand in none of them. In a container the volume is seen at /vol; paths of this machine are not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from task_app.config import Config, load_config
from task_app.core.errors import ConfigError
from task_app.policies.chat import KEY_OF_HOST, completions_url
from task_app.wiring import check

__all__ = [
    "CONFIG",
    "OVERRIDES",
    "RESOLVED",
    "ROLLOUTS",
    "SECRETS",
    "VOLUME",
    "WATCH",
    "Deployment",
    "EndpointLimits",
    "RolloutLimits",
    "TrainingLimits",
    "needed_secrets",
    "next_key",
]

CONFIG, OVERRIDES, SECRETS, WATCH, RESOLVED = (
    "TASK_APP_CONFIG", "TASK_APP_OVERRIDES", "TASK_APP_MODAL_SECRETS", "TASK_APP_MODAL_WATCH",
    "TASK_APP_RESOLVED_CONFIG",
)  # fmt: skip
VOLUME = Path("/vol")
"""Where containers see the volume."""

ENDPOINT, TRAIN, ROLLOUTS = "endpoint", "train", "play_group"
"""The app's functions."""

ROOM_S = 60
"""What a request may take beyond its rollout: a start, an answer, a copy."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Containers of the endpoint, in the words of `modal.App.function`; seconds and MiB."""

    cpu: float
    memory: int
    min_containers: int
    max_containers: int
    scaledown_window: int
    timeout: int


@dataclass(frozen=True, slots=True)
class TrainingLimits:
    """The container that trains."""

    gpu: str | None
    timeout: int
    max_containers: int = 1
    """One: two would write one run folder."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Containers that play groups; each plays one group at a time."""

    cpu: float
    memory: int
    max_containers: int
    timeout: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """A checked config, its file, the names of the variables handed over, and whether files are watched."""

    config: Config
    config_file: Path | None = None
    secret_names: tuple[str, ...] = ()
    watched: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Deployment:
        """The deployment that the variables describe. Raises ConfigError."""
        if resolved := environ.get(RESOLVED):
            return cls(Config.model_validate_json(resolved))
        file = Path(environ[CONFIG]) if environ.get(CONFIG) else None
        config = load_config(file, _overrides(environ.get(OVERRIDES) or "{}"))
        extra = [name.strip() for name in environ.get(SECRETS, "").split(",") if name.strip()]
        return cls.of(config, file, [*extra, *next_key(config, environ)], watched=environ.get(WATCH) == "1")

    @classmethod
    def of(
        cls, config: Config, file: Path | None = None, extra: Sequence[str] = (), *, watched: bool = False
    ) -> Deployment:
        """The deployment of a config. Raises ConfigError for what cannot work in a container."""
        check(config)
        replay = config.policy.replay_db
        if config.policy.name == "replay" and replay and not replay.is_relative_to(VOLUME):
            raise _elsewhere("policy.replay_db", replay)
        return cls(config, file, tuple(dict.fromkeys([*needed_secrets(config), *extra])), watched)

    @property
    def name(self) -> str:
        """Name of the deployment at Modal."""
        return self.config.modal.name or f"task-app-{check(self.config).app.name}"

    @property
    def container_variables(self) -> dict[str, str]:
        """What a container is told; no secret."""
        return {RESOLVED: self.config.model_dump_json()}

    @property
    def endpoint(self) -> EndpointLimits:
        """A request may wait for its turn as long as it may play."""
        modal, timeout = self.config.modal, math.ceil(2 * self.config.server.max_time_s) + ROOM_S
        size = (modal.cpu, modal.memory_mb, modal.min_containers, modal.max_containers)
        return EndpointLimits(*size, modal.scaledown_window_s, timeout)

    @property
    def concurrency(self) -> dict[str, int]:
        """Requests a container of the endpoint takes at once, in the words of `modal.concurrent`."""
        return {"max_inputs": self.config.modal.max_inputs, "target_inputs": self.config.modal.target_inputs}

    @property
    def training(self) -> TrainingLimits:
        """One container."""
        return TrainingLimits(self.config.modal.gpu or None, self.config.modal.gpu_timeout_s)

    @property
    def rollouts(self) -> RolloutLimits:
        """Containers of `rollout --executor modal`."""
        modal = self.config.modal
        return RolloutLimits(modal.cpu, modal.memory_mb, modal.rollout_containers, modal.rollout_timeout_s)

    def for_endpoint(self, database: Path) -> Config:
        """The config of the endpoint in a container: episodes to `database`, SFT rows to the volume."""
        config = self.config
        rollout = config.rollout.model_copy(update={"trace_db": database})
        server = config.server.model_copy(update={"trace_dir": VOLUME / "sft"} if config.server.trace_dir else {})
        return config.model_copy(update={"rollout": rollout, "server": server})

    def for_training(self, database: Path, volume: Path = VOLUME) -> Config:
        """The config of training in a container: run folders under `volume`/runs by their names, on the GPU if any.

        Raises ConfigError for files of the machine that deployed.
        """
        for field, path in _files_to_train_with(self.config):
            if not path.is_relative_to(volume):
                raise _elsewhere(field, path)
        config = self.config
        device = {"device": "cuda"} if config.modal.gpu else {}
        here = {
            "rollout": config.rollout.model_copy(update={"trace_db": database}),
            "model": config.model.model_copy(update=device),
        }
        for section in ("training", "sft"):
            values = getattr(config, section)
            here[section] = values.model_copy(update={"run_dir": volume / "runs" / values.run_dir.name})
        return config.model_copy(update=here)

    def describe(self) -> dict[str, Any]:
        """The whole as plain JSON values; secrets by their names."""
        return {
            "name": self.name,
            "app": check(self.config).app.name,
            "config": str(self.config_file) if self.config_file else None,
            "functions": {
                ENDPOINT: asdict(self.endpoint) | self.concurrency,
                TRAIN: asdict(self.training) | {"retries": self.config.modal.gpu_retries, "refused": self._refused()},
                ROLLOUTS: asdict(self.rollouts),
            },
            "volume": {"name": self.config.modal.volume, "at": str(VOLUME)},
            "secret": self.config.modal.secret or None,
            "secret_names": list(self.secret_names),
            "settings": self.config.model_dump(mode="json", exclude_defaults=True),
        }

    def _refused(self) -> str | None:
        """Why `train` would refuse this config; None where it would not."""
        try:
            self.for_training(Path("traces.db"))
        except ConfigError as error:
            return str(error)
        return None


def needed_secrets(config: Config) -> list[str]:
    """The variables without which the app cannot serve: its key, and the key of its own policy's endpoint."""
    names, policy = [config.server.api_key_env], config.policy
    if policy.name == "chat":
        url = completions_url(policy.inference_url) if policy.inference_url else None
        names.append(policy.api_key_env or (KEY_OF_HOST.get(url.host, "") if url and url.scheme == "https" else ""))
    return [name for name in names if name]


def next_key(config: Config, environ: Mapping[str, str]) -> list[str]:
    """The variable of the second valid key, where it is set: while keys are changed, both must open the endpoint."""
    name = config.server.next_api_key_env
    return [name] if name and environ.get(name, "").strip() else []


def _overrides(text: str) -> dict[str, Any]:
    try:
        overrides = json.loads(text)
    except ValueError:
        overrides = None
    if not isinstance(overrides, dict):
        raise ConfigError(f"{OVERRIDES} must be a JSON object of dotted keys and values, got {text!r}", field=OVERRIDES)
    return overrides


def _files_to_train_with(config: Config) -> Iterator[tuple[str, Path]]:
    sft, training, model = config.sft, config.training, config.model
    named = [
        ("sft.dataset", sft.dataset),
        ("sft.validation", sft.validation),
        ("training.init_from", training.init_from),
    ]
    if model.path.startswith(("/", ".")) or (model.path and Path(model.path).is_dir()):
        named.append(("model.path", Path(model.path)))
    yield from ((field, path) for field, path in named if path is not None)


def _elsewhere(field: str, path: Path) -> ConfigError:
    return ConfigError(
        f"{field}: {path} is on this machine, which a container does not see; put it on the volume "
        f"(modal volume put) and name it {VOLUME}/…",
        field=field,
    )
