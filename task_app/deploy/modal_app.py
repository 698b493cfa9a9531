"""The app at Modal, as the `modal` command line imports it: an endpoint, training, workers for rollouts.

    modal deploy -m task_app.deploy.modal_app             the endpoint stays; `task-app deploy` runs this
    modal serve  -m task_app.deploy.modal_app             until interrupted; `task-app modal-serve` runs this
    modal run --detach -m task_app.deploy.modal_app::train --kind rl      train, or go on with the run

Settings come from variables (deployment.py lists them). Importing it connects to nothing and needs no credentials.

Traces: a container of the endpoint writes to a SQLite database on its own disk, and whole copies of it go to the
volume as traces/<container>.db. There is no one database that all write to, because on a volume the last commit of a
file wins and locks are not shared; `task-app traces merge` makes one of them.
"""

from __future__ import annotations

import os
from typing import Any

import modal

from task_app.deploy.deployment import RESOLVED, VOLUME, Deployment
from task_app.deploy.image import ENDPOINT_EXTRAS, TRAINING_EXTRAS, make_image

__all__ = ["app", "deployment", "endpoint", "play_group", "train", "volume"]

deployment = Deployment.from_environ(os.environ)
app = modal.App(deployment.name, include_source=False)  # the source is part of the image
volume = modal.Volume.from_name(deployment.config.modal.volume, create_if_missing=True)


def _secret() -> modal.Secret:
    """The secret kept at Modal, or one made of the variables that are set here; their values go nowhere else."""
    if kept := deployment.config.modal.secret:
        return modal.Secret.from_name(kept)
    names = [name for name in deployment.secret_names if os.environ.get(name)]
    return modal.Secret.from_dict({name: os.environ[name] for name in names})


def _shared(extras: tuple[str, ...]) -> dict[str, Any]:
    """What every function gets.

    A container imports this module again, and Modal wants as many objects there, of the same kinds; it fills them with
    what was deployed, so what stands for an image there is never built, and its secret is empty.
    """
    local = RESOLVED not in os.environ
    told: dict[str, str | None] = dict(deployment.container_variables)
    return {
        "image": make_image(deployment, extras) if local else modal.Image.debian_slim(),
        "secrets": [_secret() if local else modal.Secret.from_dict({})],
        "env": told,
        "volumes": {str(VOLUME): volume},
    }


@app.function(
    cpu=deployment.endpoint.cpu,
    memory=deployment.endpoint.memory,
    min_containers=deployment.endpoint.min_containers,
    max_containers=deployment.endpoint.max_containers,
    scaledown_window=deployment.endpoint.scaledown_window,
    timeout=deployment.endpoint.timeout,
    **_shared(ENDPOINT_EXTRAS),
)
@modal.concurrent(**deployment.concurrency)
@modal.asgi_app()
def endpoint() -> Any:
    """The hosted task app."""
    from task_app.deploy.hosting import hosted_app

    container = os.environ.get("MODAL_TASK_ID", "container")
    return hosted_app(deployment, os.environ, volume.commit, container=container)


@app.function(
    gpu=deployment.training.gpu,
    timeout=deployment.training.timeout,
    max_containers=deployment.training.max_containers,
    retries=modal.Retries(max_retries=deployment.config.modal.gpu_retries, backoff_coefficient=1.0, initial_delay=10.0),
    **_shared(TRAINING_EXTRAS),
)
def train(kind: str = "rl") -> dict[str, Any]:
    """Train by the same TOML, or go on with the run of that name; an attempt that is cut short is made again."""
    from task_app.deploy.training import train_on_volume

    return train_on_volume(deployment, kind, volume.commit)


@app.function(
    cpu=deployment.rollouts.cpu,
    memory=deployment.rollouts.memory,
    max_containers=deployment.rollouts.max_containers,
    timeout=deployment.rollouts.timeout,
    **_shared(ENDPOINT_EXTRAS),
)
def play_group(job: str) -> str:
    """One group of `task-app rollout --executor modal`; the one who asked stores it."""
    from task_app.scale import play_group as play

    return play(job)
