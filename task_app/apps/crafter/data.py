"""The `crafter` package's own data, read without running any of the package (which would pull in image libraries).

`DATA` holds the sections of its `data.yaml` as they stand there: the rules cannot drift from the package's.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from task_app.core.errors import EnvError

__all__ = ["DATA", "package_folder", "read_data"]


def package_folder() -> Path:
    """Where the installed `crafter` package lies: its data file and textures. Nothing of it is run."""
    spec = find_spec("crafter")
    if spec is None or not spec.submodule_search_locations:
        raise EnvError("the package crafter is not installed: its data.yaml holds the rules")
    return Path(spec.submodule_search_locations[0])


_SECTION = re.compile(r"(\w+):")
_ENTRY = re.compile(r"  - (\w+)")
_FIELD = re.compile(r"  (\w+): (\{.*\})")
_WORD = re.compile(r"[A-Za-z_]\w*")


def read_data(text: str) -> dict[str, Any]:
    """The sections of `data.yaml`: lists of words, and words with one-line `{…}` values. Any other line is an error."""
    data: dict[str, Any] = {}
    section = ""
    for line in filter(str.strip, text.splitlines()):
        if match := _SECTION.fullmatch(line):
            section = match[1]
        elif match := _ENTRY.fullmatch(line):
            data.setdefault(section, []).append(match[1])
        elif match := _FIELD.fullmatch(line):
            # With its words quoted, a one-line YAML value of this file is JSON.
            data.setdefault(section, {})[match[1]] = json.loads(_WORD.sub(r'"\g<0>"', match[2]))
        else:
            raise EnvError(f"crafter's data.yaml has a line that is not understood: {line!r}")
    return data


DATA: dict[str, Any] = read_data((package_folder() / "data.yaml").read_text())
