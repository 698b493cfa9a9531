"""The one place that decides from the settings which network is built, a model by its path or the embedded one, and
what samples it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from task_app.config.models import Config
from task_app.config.training import ModelSection
from task_app.core.task import TaskSpec
from task_app.policies.chat import provider_key
from task_app.train import embedded
from task_app.train.network import AnswerSampler, Network, memory_guard
from task_app.train.spread_sampler import sampler_of

__all__ = ["build_network", "make_samplers"]


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


def make_samplers(
    config: Config, network: Network, environ: Mapping[str, str] = os.environ
) -> Callable[[float], AnswerSampler]:
    """What samples `network` as `[sampler]` says: temperature → sampler. Those of a server share its weights.

    Raises ConfigError when the server's key is not there. Nothing is asked of a server yet.
    """
    settings = config.sampler
    if settings.kind == "embedded":
        return lambda temperature: sampler_of(network, temperature)
    from task_app.train.chat_network import ChatNetwork
    from task_app.train.vllm_handover import Handover
    from task_app.train.vllm_sampler import VllmSampler
    from task_app.train.vllm_wire import VllmServer

    assert isinstance(network, ChatNetwork)  # `plan.check_config` refuses others
    key = ""
    if settings.api_key_env:
        own, field = config.server.key_envs, "sampler.api_key_env"
        key = provider_key(settings.base_url, settings.api_key_env, environ, own_key_envs=own, field=field)
    server = VllmServer(settings, api_key=key)
    handover = Handover(network, server, settings.handover or config.training.run_dir / "handover")
    return lambda temperature: VllmSampler(network, temperature, settings, server, handover)
