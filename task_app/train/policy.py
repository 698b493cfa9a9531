"""The embedded policy: a small network that plays through the ordinary `Policy` protocol.

Token ids and log-probabilities are born here and travel with each completion; nothing downstream
ever encodes text again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from task_app.config.models import ModelSection
from task_app.core.errors import ConfigError
from task_app.core.task import TaskSpec
from task_app.core.types import Completion, DecisionRequest, TokenTrace
from task_app.train.masks import GrammarTable
from task_app.train.model import Qwen3ForCausalLM, build_model, prepare_torch
from task_app.train.renderer import Renderer
from task_app.train.sampler import Answer, Sampler
from task_app.train.tokenizer import WordTokenizer

__all__ = ["EmbeddedPolicy", "Network", "build_network"]


@dataclass(frozen=True)
class Network:
    """A network with all that is needed to read a task's prompts and write its answers."""

    spec: TaskSpec
    settings: ModelSection
    device: torch.device
    renderer: Renderer
    table: GrammarTable
    model: Qwen3ForCausalLM


def build_network(spec: TaskSpec, settings: ModelSection, seed: int) -> Network:
    """A freshly initialised network for a task. Raises ConfigError when the app has no grammar or vocabulary."""
    grammar, vocabulary = spec.app.grammar(spec.options), spec.app.vocabulary(spec.options)
    if grammar is None or not vocabulary:
        raise ConfigError(
            f"task app {spec.app.name!r} has no {'grammar' if grammar is None else 'vocabulary'}: "
            "the embedded policy cannot play it",
            field="policy.name",
        )
    device = prepare_torch(settings)
    tokenizer = WordTokenizer(vocabulary)
    return Network(
        spec=spec,
        settings=settings,
        device=device,
        renderer=Renderer(tokenizer),
        table=GrammarTable(grammar, tokenizer, device),
        model=build_model(settings, len(tokenizer), seed, device),
    )


class EmbeddedPolicy:
    """Plays a network. `version` is `u<updates>`; the trainer moves it on after each update.

    sampling_s  seconds spent in `decide` so far
    """

    name = "embedded"
    batched = True

    def __init__(self, network: Network, *, temperature: float = 1.0, updates: int = 0) -> None:
        self._network = network
        self._temperature = temperature
        self._sampler = Sampler(network.model, network.table, network.settings, temperature)
        self.version = ""
        self.sampling_s = 0.0
        self.set_updates(updates)

    def set_updates(self, updates: int) -> None:
        """Name the weights by how many updates made them."""
        self.version = f"u{updates}"

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """One completion per request, all sampled together; each is charged an equal share of the time.

        Raises TrainError for a prompt that cannot be read or does not fit.
        """
        start = time.perf_counter()
        prompts = [self._network.renderer.prompt_ids(request.messages) for request in requests]
        answers = self._sampler.sample(prompts, [request.noise_key for request in requests])
        seconds = time.perf_counter() - start
        self.sampling_s += seconds
        share = seconds / max(1, len(requests))
        return [
            self._completion(request, prompt, answer, share)
            for request, prompt, answer in zip(requests, prompts, answers, strict=True)
        ]

    def end_episode(self, episode_id: str) -> None:
        """Nothing is kept between decisions."""

    def _completion(
        self, request: DecisionRequest, prompt: tuple[int, ...], answer: Answer, seconds: float
    ) -> Completion:
        network = self._network
        identity = f"{self.name}/{self.version}/{request.episode_id}/{request.noise_key}"
        return Completion(
            message=network.spec.app.words_to_message(network.table.words(answer.ids)),
            completion_id=f"cmpl-{hashlib.sha256(identity.encode()).hexdigest()[:24]}",
            model=f"{self.name}-{self.version}",
            prompt_tokens=len(prompt),
            completion_tokens=len(answer.ids),
            latency_s=seconds,
            tokens=TokenTrace(
                prompt_ids=prompt,
                prefix_length=network.renderer.prefix_length,
                completion_ids=tuple(answer.ids),
                logprobs=tuple(answer.logprobs),
                mask=tuple(answer.mask),
                temperature=self._temperature,
                grammar_hash=network.table.hash,
                renderer_hash=network.renderer.hash,
            ),
        )
