"""The one place that decides from `[model]` which network is built: a model by its path, or the embedded one."""

from __future__ import annotations

from task_app.config.training import ModelSection
from task_app.core.task import TaskSpec
from task_app.train import embedded
from task_app.train.network import Network, memory_guard

__all__ = ["build_network"]


def build_network(spec: TaskSpec, settings: ModelSection, seed: int) -> Network:
    """The network that plays and learns `spec`. Raises ConfigError when there is no such model or it does not suit,
    TrainError when memory does not hold it.

    `seed` sets what is random at the start: the embedded network's weights, a real model's adapters.
    """
    with memory_guard("the size of the model (or use another model.device)"):
        if not settings.path:
            return embedded.build_network(spec, settings, seed)
        # `peft` and the model classes take a second to import; runs of the embedded network do without them.
        from task_app.train.chat_network import build_chat_network

        return build_chat_network(spec, settings, seed)
