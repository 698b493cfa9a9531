"""Sampling answers for many prompts at once, constrained to a grammar, with noise keyed per decision.

Every different prompt is read once, however many episodes share it, then one forward per undecided token. Forced
tokens (one legal choice) are not sampled: they get log-probability 0 and mask 0, and cost no forward at either end
of an answer. Each row draws from a generator of its own, seeded by its noise key, so what is sampled does not depend
on who else is in the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from task_app.config.training import ModelSection
from task_app.core.errors import ConfigError, TrainError
from task_app.train.decoder import KeyValues, read, step
from task_app.train.masks import GrammarTable
from task_app.train.model import Qwen3ForCausalLM
from task_app.train.network import AnswerSampler, autocast, memory_guard
from task_app.train.optimizer import NotFiniteError
from task_app.train.score import masked_log_softmax

__all__ = ["NOTHING_TO_SAMPLE", "Answer", "Sampler", "check_sampling", "noise", "noise_rows"]

NOTHING_TO_SAMPLE = "the model's log-probabilities are not finite; its weights are not usable, go back to a checkpoint"


@dataclass(slots=True)
class Answer:
    """One sampled answer: ids, log-probability and mask of each token, (C,) each."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)

    def add(self, token: int, logprob: float = 0.0, chosen: int = 0) -> None:
        """Append one token; forced ones by default."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.mask.append(chosen)


def check_sampling(temperature: float, top_p: float = 1.0, *, field: str = "policy.temperature") -> None:
    """Refuse settings under which sampled log-probabilities are not the policy's. Raises ConfigError."""
    if not temperature > 0:
        raise ConfigError(
            f"{field} = {temperature:g} cannot be used with the embedded policy: it samples, and at "
            "temperature 0 there is no distribution to sample from; use a small positive temperature",
            field=field,
        )
    if top_p != 1.0:
        raise ConfigError(
            f"policy.top_p = {top_p:g} cannot be used with the embedded policy: cutting the distribution changes "
            "the policy that is trained; set it to 1",
            field="policy.top_p",
        )


def noise(key: str, count: int) -> np.ndarray:
    """`count` uniform numbers in [0, 1) that depend on the key alone."""
    return noise_rows([key], count)[0]


def noise_rows(keys: Sequence[str], count: int) -> np.ndarray:
    """The noise of many keys, (B, count)."""
    philox = np.random.Philox(0)
    generator = np.random.Generator(philox)
    state: Any = philox.state
    uniform_B_C = np.empty((len(keys), count))
    for row, key in enumerate(keys):
        # A generator's state is far cheaper to set than a generator is to make: that asks the system for entropy.
        state["state"]["key"] = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], "<u8")
        philox.state = state
        uniform_B_C[row] = generator.random(count)
    return uniform_B_C


class Sampler(AnswerSampler):
    """Samples from one network under one grammar at one temperature."""

    def __init__(
        self, model: Qwen3ForCausalLM, table: GrammarTable, settings: ModelSection, temperature: float
    ) -> None:
        check_sampling(temperature)
        self._model, self._table, self._settings = model, table, settings
        self._temperature = temperature
        self._device = table.allowed_S_V.device
        self._lead, self._first_state = self._leading_tokens()

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], keys: Sequence[str]) -> list[Answer]:
        """One answer per prompt. Raises TrainError when a prompt and its answer do not fit the model."""
        answers = [Answer() for _ in prompts]
        for answer in answers:
            for token in self._lead:
                answer.add(token)
        if self._first_state == self._table.final or not prompts:
            return answers
        uniform_B_C = noise_rows(keys, self._table.longest)
        with autocast(self._settings, self._device), memory_guard("rollout.group_size or training.groups_per_update"):
            self._run([(*prompt, *self._lead) for prompt in prompts], uniform_B_C, answers)
        return answers

    def _run(self, rows: list[tuple[int, ...]], uniform_B_C: np.ndarray, answers: list[Answer]) -> None:
        length_B = np.array([len(row) for row in rows])
        self._check_length(int(length_B.max()))
        cache, hidden_B_H = self._read(rows)
        state_B = np.full(len(rows), self._first_state)
        for index in range(len(self._lead), self._table.longest):
            token_B = self._choose(hidden_B_H, state_B, uniform_B_C[:, index], answers)
            if (state_B == self._table.final).all():
                return
            position_B = length_B + index - len(self._lead)
            hidden_B_H = step(self._model, self._tensor(token_B), self._tensor(position_B), cache)

    def _read(self, rows: list[tuple[int, ...]]) -> tuple[KeyValues, Tensor]:
        """Keys and values, and the last hidden state (B, H), of each row; equal rows are read once."""
        number = {row: index for index, row in enumerate(dict.fromkeys(rows))}
        cache, hidden_U_H = read(self._model, list(number), self._table.longest - len(self._lead))
        if len(number) == len(rows):
            return cache, hidden_U_H
        which_B = self._tensor(np.array([number[row] for row in rows]))
        return cache.of_rows(which_B), hidden_U_H[which_B]

    def _choose(
        self, hidden_B_H: Tensor, state_B: np.ndarray, uniform_B: np.ndarray, answers: list[Answer]
    ) -> np.ndarray:
        """The next token of every row that is not finished, noted in its answer; moves `state_B` on.

        Finished rows get padding, which nothing reads.
        """
        table = self._table
        logit_B_V = self._model.lm_head(hidden_B_H)
        logp_B_V = masked_log_softmax(logit_B_V, table.allowed_S_V[self._tensor(state_B)], self._temperature)
        token_B = _inverse_cdf(logp_B_V.double().cpu().numpy(), uniform_B)
        logp_B = logp_B_V.gather(1, self._tensor(token_B)[:, None])[:, 0].tolist()
        for row, answer in enumerate(answers):
            state = int(state_B[row])
            if state == table.final:
                continue
            token = int(token_B[row])
            chosen = int(table.forced_S[state] < 0)
            answer.add(token, logp_B[row] if chosen else 0.0, chosen)
            state = int(table.next_S_V[state, token])
            tail = table.tails[state]
            for forced in tail or ():
                answer.add(forced)
            state_B[row] = table.final if tail is not None else state
        return token_B

    def _leading_tokens(self) -> tuple[list[int], int]:
        tokens: list[int] = []
        state = self._table.start
        while (token := int(self._table.forced_S[state])) >= 0:
            tokens.append(token)
            state = int(self._table.next_S_V[state, token])
        return tokens, state

    def _check_length(self, prompt: int) -> None:
        needed = prompt + self._table.longest - len(self._lead)
        if needed > self._settings.max_positions:
            raise TrainError(
                f"a prompt with its answer takes {needed} tokens, model.max_positions is "
                f"{self._settings.max_positions}; raise it or shorten the observation"
            )

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def _inverse_cdf(logp_B_V: np.ndarray, uniform_B: np.ndarray) -> np.ndarray:
    """The token at which each row's cumulative probability first exceeds its uniform number.

    Illegal tokens have probability 0, so the cumulative sum never rises at one. Raises NotFiniteError where there is
    nothing to sample from.
    """
    cdf_B_V = np.exp(logp_B_V).cumsum(1)
    total_B = cdf_B_V[:, -1]
    if not np.isfinite(total_B).all():
        raise NotFiniteError(NOTHING_TO_SAMPLE)
    target_B = np.minimum(uniform_B * total_B, np.nextafter(total_B, 0.0))
    return (cdf_B_V > target_B[:, None]).argmax(1)
