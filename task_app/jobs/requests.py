"""What the bodies of the routes may hold. Unknown fields are refused; those without effect here are known.

The fields are those that clients of such a service send (`job_type, compute, data, tags, metadata`; for supervised
jobs also `model, training_file_id, training_type, validation_file, hyperparameters`); `data` of a supervised job is
an addition, so that a whole TOML can be sent for it too.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from task_app.http.bodies import Body

__all__ = ["Hyperparameters", "JobData", "RlJobRequest", "SftJobRequest"]


class JobData(Body):
    """What is trained.

    endpoint_base_url  a task app elsewhere; its /health and /task_info must answer before the job is taken
    config             a TOML's content, key for key
    model              the id of a job that succeeded here, whose weights training starts from
    base_model         "embedded" or empty: the policy made from scratch; else a model as for `model.path`
    """

    endpoint_base_url: str | None = Field(default=None, max_length=2_000)
    config: dict[str, Any] = Field(default_factory=dict)
    model: str | None = Field(default=None, max_length=1_000)
    base_model: str | None = Field(default=None, max_length=1_000)


class RlJobRequest(Body):
    """`POST /api/rl/jobs`."""

    job_type: Literal["rl"] = "rl"
    compute: dict[str, Any] = Field(default_factory=dict)
    data: JobData
    tags: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Hyperparameters(BaseModel):
    """Those with an effect here; others are named as ignored."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None


class SftJobRequest(Body):
    """`POST /api/learning/jobs`."""

    job_type: Literal["sft"] = "sft"
    training_type: Literal["sft", "sft_offline", "fft"] = "sft_offline"
    model: str | None = Field(default=None, max_length=1_000)
    training_file_id: str | None = Field(default=None, max_length=200)
    validation_file: str | None = Field(default=None, max_length=200)
    hyperparameters: Hyperparameters = Hyperparameters()
    compute: dict[str, Any] = Field(default_factory=dict)
    data: JobData = JobData()
    tags: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
