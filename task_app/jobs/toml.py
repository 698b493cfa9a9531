"""A document as TOML text that reads back as the same document. Writes no comments and no file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from task_app.core.errors import ConfigError, refusal

__all__ = ["to_toml"]


def to_toml(document: Mapping[str, Any]) -> str:
    """TOML of nested tables, lists, texts, numbers and truth values.

    Raises ConfigError, with the dotted key as its field, for what TOML cannot hold: null, and numbers that are not
    finite.
    """
    return "\n".join(_table(document, ())) + "\n"


def _table(table: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[str]:
    """A table's own lines, then its sections: what follows a header belongs to that."""
    if place:
        yield f"[{'.'.join(map(_text, place))}]"
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key, value in table.items():
        if key not in sections:
            yield f"{_text(key, place)} = {_value(value, (*place, key))}"
    for key, section in sections.items():
        yield from _table(section, (*place, key))


def _value(value: Any, place: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, Mapping):
        inside = (f"{_text(key, place)} = {_value(item, (*place, key))}" for key, item in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item, place) for item in value)}]"
    raise _refused(place, "a text, a number, true, false, a list or a table is needed")


def _text(text: str, place: tuple[str, ...] = ()) -> str:
    """A basic string: JSON's escapes are TOML's, which wants one more character escaped."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused(place, "the text holds half a character") from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _refused(place: tuple[str, ...], sentence: str) -> ConfigError:
    return refusal(".".join(place), sentence)
