"""What the bodies of requests have in common: strict types, no unknown field, no NaN, and nothing changes once read."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Body"]


class Body(BaseModel):
    """Base of bodies and of the objects in them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
