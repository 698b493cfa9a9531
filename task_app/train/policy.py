"""The embedded policy: the network being trained, which plays through the ordinary `Policy` protocol.

Token ids and log-probabilities are born with its sampler and travel with each completion; nothing downstream
ever encodes text again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence

from task_app.core.types import Completion, DecisionRequest, TokenTrace
from task_app.train.network import AnswerSampler, Network
from task_app.train.sampler import Answer

__all__ = ["EmbeddedPolicy"]


class EmbeddedPolicy:
    """Plays a network. `version` is `u<updates>`; the trainer moves it on after each update.

    sampling_s  seconds spent in `decide` so far, added up over threads
    """

    name = "embedded"

    def __init__(
        self, network: Network, *, temperature: float = 1.0, updates: int = 0, sampler: AnswerSampler | None = None
    ) -> None:
        """`sampler` is the network's own unless another is given, whose temperature must be the same."""
        self._network = network
        self._temperature = temperature
        self._sampler = sampler or network.sampler(temperature)
        self._conversation = network.conversation()
        self._lock = threading.Lock()
        self.batched = self._sampler.batched
        self.version = f"u{updates}"
        self.sampling_s = 0.0

    def set_updates(self, updates: int) -> None:
        """Name the weights by how many updates made them, once whatever samples has them. Raises TrainError."""
        self._sampler.take_weights(f"u{updates}")
        self.version = f"u{updates}"

    def decide(self, requests: Sequence[DecisionRequest]) -> list[Completion]:
        """One completion per request, all sampled together; each is charged an equal share of the time.

        Raises TrainError for a prompt that cannot be read or does not fit, ContextOverflow for episodes whose
        history has outgrown the prompt, PolicyError when another process samples and fails.
        """
        start = time.perf_counter()
        with self._lock:  # templates and tokenizers are not made for several threads
            prompts = self._conversation.prompts(requests)
        answers = self._sampler.sample(prompts, [request.noise_key for request in requests])
        seconds = time.perf_counter() - start
        with self._lock:
            for request, answer in zip(requests, answers, strict=True):
                self._conversation.answered(request, answer.ids)
            self.sampling_s += seconds
            share = seconds / max(1, len(requests))
            return [
                self._completion(request, prompt, answer, share)
                for request, prompt, answer in zip(requests, prompts, answers, strict=True)
            ]

    def close(self) -> None:
        """Close the sampler; nothing is played afterwards."""
        self._sampler.close()

    def end_episode(self, episode_id: str) -> None:
        """Forget what was said in it."""
        self._conversation.end(episode_id)

    def _completion(
        self, request: DecisionRequest, prompt: tuple[int, ...], answer: Answer, seconds: float
    ) -> Completion:
        network = self._network
        identity = f"{self.name}/{self.version}/{request.episode_id}/{request.noise_key}"
        return Completion(
            message=network.renderer.message(answer.ids),
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
                grammar_hash=network.grammar_hash,
                renderer_hash=network.renderer.hash,
            ),
        )
