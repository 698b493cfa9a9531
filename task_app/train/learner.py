"""One update of the weights from one batch of rows: forward, loss, gradient, optimiser, and what to log.

It knows token ids, masks, old log-probabilities and advantages; not groups, rewards or estimators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from task_app.config.training import TrainingSection
from task_app.train.network import MEMORY_ADVICE, Network, memory_guard
from task_app.train.objective import divisor, kl_k2, mismatch_kl, token_loss
from task_app.train.optimizer import NotFiniteError, rate_factor
from task_app.train.ranks import current
from task_app.train.rows import MicroBatch, Row
from task_app.train.score import score
from task_app.train.weights import weights_of

__all__ = ["Learner"]


class _Sums:
    """Running sums and maxima over the tokens of an update, kept in float64 on the host."""

    def __init__(self) -> None:
        self.tokens = 0
        self._sums: dict[str, float] = {}
        self._peaks: dict[str, float] = {}

    def add(self, **values: Tensor) -> None:
        for name, value_N in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value_N.detach().double().sum())

    def peak(self, **values: Tensor) -> None:
        for name, value_N in values.items():
            self._peaks[name] = max(self._peaks.get(name, 0.0), float(value_N.detach().max()))

    @classmethod
    def of_all(cls, shares: Iterable[_Sums]) -> _Sums:
        """Those of several processes, taken together."""
        whole = cls()
        for share in shares:
            whole.tokens += share.tokens
            for name, value in share._sums.items():
                whole._sums[name] = whole._sums.get(name, 0.0) + value
            for name, value in share._peaks.items():
                whole._peaks[name] = max(whole._peaks.get(name, 0.0), value)
        return whole

    def sum(self, name: str) -> float:
        return self._sums.get(name, 0.0)

    def mean(self, name: str) -> float | None:
        return self.sum(name) / self.tokens if self.tokens else None

    def max(self, name: str) -> float | None:
        return self._peaks.get(name)


class Learner:
    """Owns the trained weights of one network and their optimiser, and the frozen initial weights where a KL penalty
    needs them. Under `torchrun` every process has one and makes the same calls; each computes its share of the rows."""

    def __init__(self, network: Network, settings: TrainingSection, temperature: float) -> None:
        self._network, self._settings, self._temperature = network, settings, temperature
        self.weights = weights_of(
            network,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm,
        )
        self.optimizer = self.weights.optimizer
        self._reference: nn.Module | None = None
        if settings.objective.kl_coefficient > 0:
            self._reference = network.reference()

    def update(self, rows: Sequence[Row], episodes: int, number: int = 1) -> dict[str, float | None]:
        """Make `optimizer_steps_per_update` steps on the whole batch and return what to log of it.

        `number` is the update's, 1 for the first: it sets the learning rate by the schedule.
        A batch without any advantage (and without a KL penalty) changes nothing, momentum included.
        Raises NotFiniteError when loss or gradient is not finite; the weights are then as before the step.
        """
        batches = self.weights.micro_batches(rows, self._settings.micro_batch_tokens)
        tokens = sum(len(row.targets) for row in rows)
        shared = divisor(self._settings.objective, episodes=episodes, tokens=tokens)
        reference = [self._reference_logp(batch) for batch in batches]
        old: list[Tensor] = []
        metrics: dict[str, float | None] = {}
        signal = self._reference is not None or any(advantage for row in rows for advantage in row.advantages)
        factor = self._rate_factor(number)
        for _ in range(self._settings.optimizer_steps_per_update):
            sums = _Sums()
            self.optimizer.zero_grad()
            for index, batch in enumerate(batches):
                logp_N = self._backward(batch, reference[index], old[index] if len(old) > index else None, shared, sums)
                if len(old) == index:
                    old.append(logp_N)
            sums = _Sums.of_all(current().gather(sums))
            _check_finite(sums.sum("loss"))
            norm = self.optimizer.step(factor) if signal and batches else 0.0
            # Mismatch and entropy describe the batch as it came in; clip and loss the last step.
            metrics = _metrics(sums, norm) | {
                name: value for name, value in metrics.items() if name.startswith(("policy/", "mismatch/"))
            }
        self.weights.publish()
        return metrics | {
            "train/skipped": float(not (signal and batches)),
            "train/learning_rate": self._settings.learning_rate * factor,
        }

    def _rate_factor(self, number: int) -> float:
        settings = self._settings
        return rate_factor(number - 1, settings.updates, settings.warmup_updates, settings.schedule)

    def _backward(
        self, batch: MicroBatch, reference_N: Tensor | None, old_N: Tensor | None, shared: float, sums: _Sums
    ) -> Tensor:
        """Add one micro-batch's gradient; returns its log-probabilities, detached."""
        with memory_guard(MEMORY_ADVICE):
            scores = self.weights.score(batch, self._temperature)
        if not batch.counts:
            (scores.logp_N.sum() * 0.0).backward()
            return scores.logp_N.detach()
        old_N = scores.logp_N.detach() if old_N is None else old_N
        objective = self._settings.objective
        token = token_loss(scores.logp_N, old_N, batch.sampler_logp_N, batch.advantage_N, objective, batch.decision_N)
        loss_N = token.loss_N
        if reference_N is not None:
            penalty_N = kl_k2(scores.logp_N, reference_N)
            loss_N = loss_N + objective.kl_coefficient * penalty_N
            sums.add(kl_reference=penalty_N)
        with memory_guard(MEMORY_ADVICE):
            self.weights.backward(loss_N.sum() / shared)
        sums.tokens += len(loss_N)
        kl_N = mismatch_kl(old_N, batch.sampler_logp_N)
        weight_N = token.weight_N
        sums.add(loss=loss_N / shared, entropy=scores.entropy_N, clipped=token.clipped_N, kl=kl_N)
        sums.add(weight=weight_N, weight_square=weight_N.square())
        sums.peak(kl=kl_N, difference=(old_N - batch.sampler_logp_N).abs())
        return scores.logp_N.detach()

    def _reference_logp(self, batch: MicroBatch) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad():
            return score(self._network, self._reference, batch, self._temperature).logp_N


def _check_finite(loss: float) -> None:
    if not math.isfinite(loss):
        raise NotFiniteError(f"the loss is {loss}; the last checkpoint stands, lower the learning rate")


def _metrics(sums: _Sums, norm: float) -> dict[str, float | None]:
    square = sums.sum("weight_square")
    return {
        "policy/entropy": sums.mean("entropy"),
        "mismatch/kl_mean": sums.mean("kl"),
        "mismatch/kl_max": sums.max("kl"),
        "mismatch/logp_max": sums.max("difference"),
        "mismatch/ess_frac": sums.sum("weight") ** 2 / (sums.tokens * square) if square else None,
        "train/loss": sums.sum("loss"),
        "train/clip_frac": sums.mean("clipped"),
        "train/kl_reference": sums.mean("kl_reference"),
        "train/grad_norm": norm,
        "train/tokens": float(sums.tokens),
    }
