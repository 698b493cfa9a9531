"""What all sections of a TOML have in common. Knows none of them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["PATH_OR_NAME", "Section"]

PATH_OR_NAME: dict[str, Any] = {"resolved": "with a leading dot"}
"""Marks a text that is a path, relative to its file, when it begins with a dot, and a name otherwise."""


class Section(BaseModel):
    """Base of all sections: frozen, strict types, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
