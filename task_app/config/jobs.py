"""The section of a TOML for the training service (`task-app jobs serve`). Says nothing of any one job."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from task_app.config.section import Section

__all__ = ["JobsSection"]


class JobsSection(Section):
    """The training service: where it listens, where jobs are kept, how many run at once."""

    host: str = "127.0.0.1"
    """The address to listen on; beyond loopback a key must be set."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """The port; 0 lets the system choose."""
    folder: Path = Path("runs/jobs")
    """Folder of the service: its database, uploaded files, and a folder per job."""
    concurrency: int = Field(default=1, ge=1, le=64)
    """Jobs that train at once; further ones wait in the order they came."""
    max_queued: int = Field(default=1_000, ge=1, le=1_000_000)
    """Jobs that may wait; more are refused with 429 and Retry-After."""
    api_key_env: str = "TASK_APP_JOBS_KEY"
    """The variable that holds the key clients must send, and which `train --backend` sends."""
    task_app_origins: list[str] = Field(default_factory=list)
    """Origins of task apps that jobs may name and that get the app's key; without any, addresses of this machine."""
    key_variables: list[str] = Field(default_factory=list)
    """Variables that a job may name as `policy.api_key_env` or `sampler.api_key_env`; it says where the key goes."""
    log: Literal["quiet", "text", "json"] = "quiet"
    """Lines on standard error, one a request: warnings alone, words, or JSON. Never what was sent."""
    max_body_bytes: int = Field(default=1_000_000, ge=1_000, le=100_000_000)
    """The largest request body that is no uploaded file; larger ones are refused with 413."""
    max_file_bytes: int = Field(default=1_000_000_000, ge=1_000, le=1_000_000_000_000)
    """The largest upload; larger ones are refused with 413."""
    max_line_bytes: int = Field(default=10_000_000, ge=1_000, le=1_000_000_000)
    """The longest line of an uploaded file; the line is held in memory while it is checked."""
    cancel_grace_s: float = Field(default=30.0, gt=0, le=3_600)
    """Seconds a cancelled training has to end by itself before it is killed."""
    max_deaths: int = Field(default=3, ge=1, le=1_000)
    """Times in a row, without a new line of metrics, that a training may be killed before its job has failed."""

    @field_validator("task_app_origins")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        """Raises ValueError for what is more or less than scheme, host and port."""
        if not all(map(_is_origin, origins)):
            raise ValueError(
                'origins such as "https://app.example" or "http://10.0.0.5:8010" are needed, without a path'
            )
        return origins


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # ValueError for what is no port
    except ValueError:
        return False
    plain = text == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)
