"""Sampling from a vLLM server that has the trained weights, one request per answer, each with a seed of its own.

Token ids go out and come back with the log-probabilities they were drawn with; nothing is encoded or decoded on the
way. After each handover a few answers are scored by the trainer itself: a server with other weights, other numbers
or a stale cache does not get past it. The weights are never changed here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from task_app.config.training import SamplerSection
from task_app.core.errors import PolicyError, TrainError
from task_app.train.chat_network import ChatNetwork
from task_app.train.network import AnswerSampler
from task_app.train.rows import FREE, Row, make_micro_batches
from task_app.train.sampler import Answer, check_sampling
from task_app.train.score import score
from task_app.train.vllm_handover import Handover
from task_app.train.vllm_wire import Expected, VllmServer, read_completion

__all__ = ["VllmSampler", "seed_of"]

PROBES, PROBE_TOKENS = 4, 32
"""Answers that are scored after a handover, and the most tokens of each."""
TOGETHER = 8
"""Requests at once where one call has several prompts; players call from threads of their own."""


class VllmSampler(AnswerSampler):
    """Samples the weights of a `Handover` at one temperature. Safe to use from many threads."""

    batched = False

    def __init__(
        self, network: ChatNetwork, temperature: float, settings: SamplerSection, server: VllmServer, handover: Handover
    ) -> None:
        """Raises ConfigError for a temperature at which there is nothing to sample."""
        check_sampling(temperature)
        self._network, self._temperature, self._settings = network, temperature, settings
        self._server, self._handover = server, handover
        self._stops = network.renderer.template.stops
        self._probed = ""

    def take_weights(self, version: str) -> None:
        """Hand the network's weights to the server under this version's name, and see that it samples from them.

        Raises TrainError; see `Handover.give`.
        """
        self._handover.give(version)
        if self._probed != self._handover.name:
            self._probe()
            self._probed = self._handover.name

    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[str]) -> list[Answer]:
        """One answer per prompt, up to an end token or `model.max_new_tokens`; every token was a choice.

        Raises PolicyError when the server fails, TrainError when it answers otherwise than the wire says or has other
        weights than were handed over.
        """
        if len(prompts) == 1:
            return [self._answer(prompts[0], keys[0])]
        with ThreadPoolExecutor(max_workers=TOGETHER) as pool:
            return list(pool.map(self._answer, prompts, keys))

    def close(self) -> None:
        """Close the connections, those of the handover's other samplers too."""
        self._server.close()

    def _answer(self, prompt: Sequence[int], key: str, most: int | None = None) -> Answer:
        expected = Expected(
            model=self._handover.model,
            prompt=tuple(prompt),
            stops=self._stops,
            most=most or self._network.settings.max_new_tokens,
            vocabulary=self._network.vocabulary,
        )
        answer = read_completion(self._server.complete(self._request(expected, key)), expected)
        self._handover.check_current()
        return answer

    def _request(self, expected: Expected, key: str) -> dict[str, Any]:
        return {
            "model": expected.model,
            "prompt": list(expected.prompt),
            "n": 1,
            "max_tokens": expected.most,
            "seed": seed_of(key),
            "temperature": self._temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": sorted(self._stops),
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
            "cache_salt": self._handover.name,
        }

    def _probe(self) -> None:
        """Compare a few answers' log-probabilities with the trainer's own."""
        template = self._network.renderer.template
        prompt = template.ids(template.text([]))
        most = min(PROBE_TOKENS, self._network.settings.max_new_tokens)
        try:
            answers = [self._answer(prompt, f"probe/{number}", most) for number in range(PROBES)]
        except PolicyError as error:
            raise TrainError(f"the vLLM server took the weights and does not answer: {error}") from error
        difference = self._mismatch(prompt, answers)
        if not difference <= self._settings.max_mismatch:
            raise TrainError(
                f"the vLLM server's log-probabilities differ from the trainer's by {difference:.3g} nats per token, "
                f"sampler.max_mismatch is {self._settings.max_mismatch:g}: it samples from other weights, another "
                "model.path or a coarser dtype, or its log-probabilities ignore the temperature"
            )

    @torch.no_grad()
    def _mismatch(self, prompt: tuple[int, ...], answers: Sequence[Answer]) -> float:
        """Mean |Δ log-probability| over the answers' tokens, in nats."""
        rows = [_row(prompt, answer) for answer in answers]
        total = 0.0
        for batch in make_micro_batches(rows, 2**15, self._network.device):
            logp_N = score(self._network, self._network.model, batch, self._temperature).logp_N
            total += float((logp_N - batch.sampler_logp_N).abs().sum())
        return total / sum(len(answer.ids) for answer in answers)


def seed_of(key: str) -> int:
    """The seed a noise key stands for: 63 bits, since the server's are signed."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little") >> 1


def _row(prompt: tuple[int, ...], answer: Answer) -> Row:
    count = len(answer.ids)
    return Row(
        input_ids=prompt + tuple(answer.ids[:-1]),
        positions=tuple(range(len(prompt) - 1, len(prompt) - 1 + count)),
        targets=tuple(answer.ids),
        states=(FREE,) * count,
        sampler_logprobs=tuple(answer.logprobs),
        spans=(count,),
        advantages=(0.0,),
    )
