"""Every reason not to take a job, and the command that trains one that is taken.

A job's config is its TOML with what the service decides over it: where the run, its episodes and its data are. It
writes the job's folder and starts nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task_app.config import load_config
from task_app.config.load import paths_in
from task_app.core.errors import ConfigError, PolicyError, StoreError, refusal
from task_app.jobs.keys import KeyRules
from task_app.jobs.requests import JobData, RlJobRequest, SftJobRequest
from task_app.jobs.rows import Job, JobKind, TrainingFile
from task_app.jobs.toml import to_toml
from task_app.rollout.client import HostedTaskApp
from task_app.train.plan import check_config
from task_app.wiring import check

__all__ = ["CONFIG", "RUN", "Accepted", "Known", "accept_rl", "accept_sft", "check_task_app"]

CONFIG, RUN = "config.toml", "run"
_OWN_PLACES = frozenset({"training.run_dir", "sft.run_dir", "rollout.trace_db", "sft.dataset", "sft.validation"})
"""Paths that the service decides, whatever a config says."""

_EMBEDDED = ("", "embedded")
_ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A job that can be trained: its command, and what of the request has no effect."""

    command: list[str]
    ignored: list[str]


@dataclass(frozen=True, slots=True)
class Known:
    """What the service has: jobs and files by id, and where; and the keys it allows."""

    keys: KeyRules
    jobs: Path
    job: Callable[[str], Job | None]
    file: Callable[[str], TrainingFile | None]
    path_of: Callable[[str], Path]


def accept_rl(request: RlJobRequest, folder: Path, known: Known) -> Accepted:
    """Check a request and write its folder. Raises ConfigError naming the field; then nothing is left."""
    settings = _places(folder, "training") | _weights(request.data, known)
    if request.data.endpoint_base_url:
        settings["rollout.task_url"] = request.data.endpoint_base_url
    ignored = ["compute"] if request.compute else []
    return _accepted("rl", request.data, settings, folder, known.keys, ignored)


def accept_sft(request: SftJobRequest, folder: Path, known: Known) -> Accepted:
    """The same for supervised training."""
    if request.model and request.data.base_model:
        raise refusal("data.base_model", "model and data.base_model say the same; one is taken")
    data = request.data
    if request.model is not None:
        field = "model" if known.job(request.model) else "base_model"
        data = data.model_copy(update={field: request.model})
    settings = _places(folder, "sft") | _weights(data, known)
    hashes = set[str]()
    for name, key, file_id in (
        ("training_file_id", "sft.dataset", request.training_file_id),
        ("validation_file", "sft.validation", request.validation_file),
    ):
        if file_id is not None:
            file = known.file(file_id)
            if file is None:
                raise refusal(name, "there is no such file; upload it first")
            settings[key] = str(known.path_of(file.sha256))
            hashes |= set(file.prompt_hashes)
    if "sft.dataset" not in settings and not _section(data.config, "sft", "teacher").get("name"):
        raise refusal("training_file_id", "a file is needed, or a teacher (data.config.sft.teacher.name)")
    settings |= _hyperparameters(request)
    extra = request.hyperparameters.model_extra or {}
    ignored = [f"hyperparameters.{name}" for name in sorted(extra)] + (["compute"] if request.compute else [])
    if data.endpoint_base_url:
        ignored.append("data.endpoint_base_url")
    return _accepted("sft", data, settings, folder, known.keys, ignored, hashes)


def check_task_app(url: str, key: str, keys: KeyRules) -> None:
    """Ask a task app for its health and its task, with its key.

    Raises ConfigError where one does not answer, and, before anything is sent, where the key may not go.
    """
    field = "data.endpoint_base_url"
    keys.check_origin(url, field)
    try:
        with HostedTaskApp(url, api_key=key, timeout_s=_ANSWER_S, tries=3) as app:
            app.health()
            app.task_info()
    except ConfigError as error:
        raise refusal(field, "an http:// or https:// address is needed") from error
    except PolicyError as error:
        sentence = "its /health and /task_info must answer 200 with the task app's key"
        raise ConfigError(f"{error}; {sentence}", field=field, public=sentence) from error


def _accepted(
    kind: JobKind,
    data: JobData,
    settings: Mapping[str, Any],
    folder: Path,
    keys: KeyRules,
    ignored: list[str],
    hashes: Collection[str] = (),
) -> Accepted:
    """Raises ConfigError naming the field, and StoreError where the folder cannot be written."""
    _check_paths(data.config)
    settings = {**settings, **keys.settings()}
    config_path = folder / CONFIG
    try:
        folder.mkdir(parents=True)
        config_path.write_text(to_toml(data.config), encoding="utf-8")
        config = load_config(config_path, settings)
        spec = check(config)
        keys.check_config(config)
        if kind == "rl":
            check_config(config)
    except ConfigError as error:
        shutil.rmtree(folder)
        field = f"data.config.{error.field}".rstrip(".")
        raise ConfigError(str(error), field=field, public=error.public) from error
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(f"the job's folder {folder} cannot be written: {error}") from error
    except BaseException:
        shutil.rmtree(folder)
        raise
    if set(hashes) - {spec.prompt_hash}:
        shutil.rmtree(folder)
        sentence = "the file was made by another prompt form; the same task app, version and options are needed"
        raise refusal("training_file_id", sentence)
    overrides = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "task_app", "train", "--type", kind, "--config", str(config_path), "--json"]
    return Accepted([*command, *overrides], ignored + keys.ignored(data.config))


def _places(folder: Path, section: str) -> dict[str, Any]:
    return {f"{section}.run_dir": str(folder / RUN), "rollout.trace_db": str(folder / "traces.db")}


def _weights(data: JobData, known: Known) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if data.model:
        earlier = known.job(data.model)
        if earlier is None or earlier.status != "succeeded":
            raise refusal("data.model", "the id of a job that succeeded here is needed; a model goes in base_model")
        settings["training.init_from"] = str(known.jobs / earlier.id / RUN)
    if data.base_model is not None and data.base_model not in _EMBEDDED:
        if data.base_model.startswith("."):
            raise refusal("data.base_model", _RELATIVE)
        if "\0" in data.base_model:
            raise refusal("data.base_model", "a name or a path without a NUL character is needed")
        settings["model.path"] = data.base_model
    return settings


def _hyperparameters(request: SftJobRequest) -> dict[str, Any]:
    given = request.hyperparameters
    values = {"epochs": given.n_epochs, "batch_rows": given.batch_size, "learning_rate": given.learning_rate}
    return {f"sft.{key}": value for key, value in values.items() if value is not None}


_RELATIVE = "a relative path means nothing on another machine; give an absolute one"


def _check_paths(document: Mapping[str, Any]) -> None:
    """Refuse relative paths: they were meant from a folder that is not here."""
    for dotted, path in paths_in(document):
        if dotted not in _OWN_PLACES and not Path(path).is_absolute():
            raise refusal(f"data.config.{dotted}", _RELATIVE)


def _section(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        document = document.get(name, {})
        if not isinstance(document, Mapping):
            return {}
    return document
