"""Reading a config file: TOML, overrides, and errors that name the key, the value and what is allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from task_app.config.models import FORWARDED_SECTIONS, Config
from task_app.config.section import PATH_OR_NAME
from task_app.core.errors import ConfigError
from task_app.core.names import did_you_mean

__all__ = ["describe_validation_error", "load_config", "parse_overrides", "paths_in", "read_document"]


def load_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read `path` (or only defaults), apply dotted `overrides`, and check everything that has a shape.

    Relative paths in the file resolve against its folder; those in overrides against the working
    directory. Raises ConfigError; no other file is touched.
    """
    document = _read(path) if path else {}
    if path:
        _resolve_paths(document, Config, path.parent)
    for dotted, value in (overrides or {}).items():
        _set(document, dotted, value)
    _resolve_paths(document, Config, Path())
    if "forwarded" in document:
        raise ConfigError("unknown key 'forwarded'", field="forwarded")
    forwarded = {name: document.pop(name) for name in FORWARDED_SECTIONS if name in document}
    try:
        config = Config.model_validate(document | {"forwarded": forwarded})
        _ = config.step_rewards
    except ValidationError as error:
        field, sentence = (text.removeprefix("forwarded.") for text in describe_validation_error(error, Config))
        raise _in_file(path, sentence, field) from error
    except ConfigError as error:
        raise _in_file(path, str(error), error.field) from error
    return config


def read_document(path: Path, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The TOML of `path` as it is written, dotted `overrides` set in it; nothing is checked, resolved or filled in.

    Raises ConfigError for a file that cannot be read.
    """
    document = _read(path)
    for dotted, value in (overrides or {}).items():
        _set(document, dotted, value)
    return document


def paths_in(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each path in a document: its dotted key, and the path as written."""
    return _paths_in(document, Config, "")


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn `--section.key=value` arguments into dotted keys and TOML values (bare words are strings).

    Raises ConfigError for an argument of any other form.
    """
    overrides: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or not name:
            raise ConfigError(f"unknown argument {argument!r}; overrides are written --section.key=value")
        try:
            parsed = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            parsed = {}
        overrides[name] = parsed["value"] if parsed.keys() == {"value"} else text
    return overrides


def describe_validation_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> tuple[str, str]:
    """The first problem as (dotted field, sentence): what is wrong and what is allowed.

    The sentence holds the offending value; leave it out of answers to strangers.
    """
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    field = ".".join(part for part in (prefix, where) if part)
    if problem["type"] == "extra_forbidden":
        known = sorted(_fields_at(model, problem["loc"][:-1]))
        return field, f"unknown key {field!r}{_nearest(str(problem['loc'][-1]), known)}"
    sentence = problem["msg"].removeprefix("Value error, ")
    return field, f"{field or 'the value'}: {sentence}, got {problem['input']!r}"


def _in_file(path: Path | None, sentence: str, field: str) -> ConfigError:
    return ConfigError(f"{path}: {sentence}" if path else sentence, field=field)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"config file {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {path} is not TOML: {error}") from error


def _set(document: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        document = document.setdefault(section, {})
        if not isinstance(document, dict):
            raise ConfigError(f"override {dotted!r}: {section!r} is not a section", field=dotted)
    document[key] = value


def _resolve_paths(section: dict[str, Any], model: type[BaseModel], folder: Path) -> None:
    """Make the path-typed values of one section, and of those inside it, relative to `folder`."""
    for dotted, value in list(_paths_in(section, model, "")):
        *sections, key = dotted.split(".")
        inside: dict[str, Any] = section
        kind: Any = model
        for name in sections:
            inside, kind = inside[name], kind.model_fields[name].annotation
        is_text = kind.model_fields[key].json_schema_extra == PATH_OR_NAME
        inside[key] = str(folder / value) if is_text else folder / value


def _paths_in(section: Mapping[str, Any], model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """A text that may be a name is a path when it begins with a dot."""
    for key, value in section.items():
        field = model.model_fields.get(key)
        if field is None:
            continue
        kind = field.annotation
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _paths_in(value, kind, f"{prefix}{key}.")
        elif isinstance(value, str) and (
            kind is Path or Path in get_args(kind) or (field.json_schema_extra == PATH_OR_NAME and value[:1] == ".")
        ):
            yield f"{prefix}{key}", value


def _fields_at(model: type[BaseModel], location: Sequence[int | str]) -> Sequence[str]:
    kind: Any = model
    for part in location:  # a table of tables, such as [prices], has keys of the user's own
        kind = get_args(kind)[1] if get_origin(kind) is dict else kind.model_fields[str(part)].annotation
    names = list(kind.model_fields)
    if kind is Config:
        names = [*(name for name in names if name != "forwarded"), *FORWARDED_SECTIONS]
    return names


def _nearest(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f" (known: {', '.join(known)})"
