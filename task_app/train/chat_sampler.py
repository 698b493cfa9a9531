"""Sampling free text from a causal language model for many prompts at once, with noise keyed per decision.

What all prompts begin with is read once, the rest of each prompt once, padded on the left, however many episodes share
it; then one forward per token with keys and values kept. Every token is drawn by its row's own uniform number from the
whole distribution, so what a row says does not depend on who else is in the batch. Nothing is cut from the distribution
and nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from task_app.core.errors import TrainError
from task_app.train.chat_model import cache_argument, causal, decoder
from task_app.train.network import AnswerSampler, autocast, memory_guard
from task_app.train.optimizer import NotFiniteError
from task_app.train.roomy_cache import holds_everything, roomy_cache
from task_app.train.sampler import NOTHING_TO_SAMPLE, Answer, check_sampling, noise_rows
from task_app.train.score import masked_log_softmax

if TYPE_CHECKING:
    from task_app.train.chat_network import ChatNetwork

__all__ = ["ChatSampler"]

LEAST_SHARED = 16
"""Fewest leading tokens that are read apart from the rest: a forward pass of its own has a price."""


class ChatSampler(AnswerSampler):
    """Samples from one network at one temperature."""

    def __init__(self, network: ChatNetwork, temperature: float) -> None:
        """Raises ConfigError for a temperature at which there is nothing to sample."""
        check_sampling(temperature)
        self._network, self._temperature = network, temperature
        self._cache_argument = cache_argument(network.model)
        self._stops = network.renderer.template.stops

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[str]) -> list[Answer]:
        """One answer per prompt, up to an end token or `model.max_new_tokens`; every token was a choice.

        Raises TrainError when a prompt and its answer do not fit the model or its memory.
        """
        answers = [Answer() for _ in prompts]
        self._check_length(prompts)
        # Alike prompts together: equal ones are read once, and those of like length need little padding.
        order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), tuple(prompts[index])))
        size = self._network.settings.sampler_rows
        decoder(self._network.model).eval()
        for start in range(0, len(order), size):
            part = order[start : start + size]
            with autocast(self._network.settings, self._network.device), memory_guard("model.sampler_rows"):
                self._run(
                    [tuple(prompts[index]) for index in part],
                    [keys[index] for index in part],
                    [answers[index] for index in part],
                )
        return answers

    def _run(self, prompts: list[tuple[int, ...]], keys: list[str], answers: list[Answer]) -> None:
        most = self._network.settings.max_new_tokens
        uniform_B_C = self._tensor(noise_rows(keys, most))
        length_B = self._tensor(np.array([len(prompt) for prompt in prompts]))
        hidden_B_H, mask_B_L, cache = self._prefill(prompts)
        rows = np.arange(len(prompts))
        for index in range(most):
            token_B = self._choose(hidden_B_H, uniform_B_C[:, index], [answers[row] for row in rows])
            running = np.array([answers[row].ids[-1] not in self._stops for row in rows])
            if index + 1 == most or not running.any():
                return
            if running.sum() <= len(rows) // 2:  # carrying finished rows on costs more than taking them out
                kept = self._tensor(np.flatnonzero(running))
                cache.batch_select_indices(kept)
                mask_B_L, length_B, uniform_B_C = mask_B_L[kept], length_B[kept], uniform_B_C[kept]
                token_B, rows = token_B[kept], rows[running]
            mask_B_L = torch.cat([mask_B_L, mask_B_L.new_ones(len(rows), 1)], dim=1)
            hidden_B_H = self._forward(token_B[:, None], mask_B_L, (length_B + index)[:, None], cache)

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[Tensor, Tensor, DynamicCache]:
        """Read every different prompt once; the last hidden state (B, H), the mask and the cache of each row."""
        different = list(dict.fromkeys(prompts))
        longest = max(len(prompt) for prompt in different)
        cache = roomy_cache(causal(self._network.model).config, longest + self._network.settings.max_new_tokens)
        shared = self._read_shared(different, cache)
        input_U_T = np.zeros((len(different), longest - shared), np.int64)
        mask_U_L = np.zeros((len(different), longest), np.int64)
        mask_U_L[:, :shared] = 1
        for index, prompt in enumerate(different):
            input_U_T[index, longest - len(prompt) :] = prompt[shared:]
            mask_U_L[index, shared + longest - len(prompt) :] = 1
        position_U_T = np.maximum(mask_U_L.cumsum(1) - 1, 0)[:, shared:]
        mask = self._tensor(mask_U_L)
        hidden_U_H = self._forward(self._tensor(input_U_T), mask, self._tensor(position_U_T), cache)
        if len(different) == len(prompts):
            return hidden_U_H, mask, cache
        number = {prompt: index for index, prompt in enumerate(different)}
        which_B = self._tensor(np.array([number[prompt] for prompt in prompts]))
        cache.batch_select_indices(which_B)
        return hidden_U_H[which_B], mask[which_B], cache

    def _read_shared(self, different: Sequence[tuple[int, ...]], cache: DynamicCache) -> int:
        """Read what all prompts begin with and put it into the cache for each; how many tokens that were."""
        first, last = min(different), max(different)  # in order, so what these two share all do
        pairs = enumerate(zip(first, last, strict=False))
        shared = next((index for index, (one, other) in pairs if one != other), len(first))
        shared = min(shared, *(len(prompt) - 1 for prompt in different)) if len(different) > 1 else 0
        # Padding will stand between it and the rest, which a layer that counts back from a token would count.
        if shared < LEAST_SHARED or not holds_everything(cache):
            return 0
        ids = self._tensor(np.array([first[:shared]]))
        self._forward(ids, torch.ones_like(ids), self._tensor(np.arange(shared)[None]), cache)
        cache.batch_select_indices(self._tensor(np.zeros(len(different), np.int64)))
        return shared

    def _forward(self, input_B_T: Tensor, mask_B_L: Tensor, position_B_T: Tensor, cache: DynamicCache) -> Tensor:
        """The last column's hidden states (B, H); these tokens are added to the cache."""
        said = decoder(self._network.model)(
            input_ids=input_B_T,
            attention_mask=mask_B_L,
            position_ids=position_B_T,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        return said.last_hidden_state[:, -1]

    def _choose(self, hidden_B_H: Tensor, uniform_B: Tensor, answers: Sequence[Answer]) -> Tensor:
        """The next token of every row; noted in the answers that have not ended."""
        logit_B_V = self._network.logits(self._network.model, hidden_B_H)
        logp_B_V = masked_log_softmax(logit_B_V, None, self._temperature)
        token_B = _inverse_cdf(logp_B_V, uniform_B)
        logp_B = logp_B_V.gather(1, token_B[:, None])[:, 0].tolist()
        for token, logp, answer in zip(token_B.tolist(), logp_B, answers, strict=True):
            if not answer.ids or answer.ids[-1] not in self._stops:
                answer.add(token, logp, 1)
        return token_B

    def _check_length(self, prompts: Sequence[Sequence[int]]) -> None:
        settings, longest = self._network.settings, self._network.longest
        needed = max((len(prompt) for prompt in prompts), default=0) + settings.max_new_tokens
        if needed > longest:
            raise TrainError(
                f"a prompt with its answer takes {needed} tokens, model {settings.path!r} reads {longest}; lower "
                "model.max_prompt_tokens or model.max_new_tokens"
            )

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._network.device)


def _inverse_cdf(logp_B_V: Tensor, uniform_B: Tensor) -> Tensor:
    """The token at which each row's cumulative probability, in float64, first exceeds its uniform number. Raises
    NotFiniteError where there is nothing to sample from."""
    cdf_B_V = logp_B_V.double().exp().cumsum(1)
    total_B = cdf_B_V[:, -1]
    if not total_B.isfinite().all():
        raise NotFiniteError(NOTHING_TO_SAMPLE)
    target_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cdf_B_V, target_B[:, None], right=True)[:, 0]
