"""One update of the weights from one batch of rows: forward, loss, gradient, optimiser, and what to log.

It knows token ids, masks, old log-probabilities and advantages; not groups, rewards or estimators.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from task_app.config.models import TrainingSection
from task_app.core.errors import TrainError
from task_app.train.decoder import encode
from task_app.train.model import Qwen3ForCausalLM, autocast
from task_app.train.objective import divisor, entropy, kl_k2, mismatch_kl, token_loss
from task_app.train.policy import Network
from task_app.train.rows import MicroBatch, Row, make_micro_batches
from task_app.train.sampler import masked_log_softmax

__all__ = ["Learner", "Scores", "score"]


@dataclass(frozen=True, slots=True)
class Scores:
    """The network's view of a micro-batch: log-probability and entropy per chosen token."""

    logp_N: Tensor
    entropy_N: Tensor


def score(network: Network, model: Qwen3ForCausalLM, batch: MicroBatch, temperature: float) -> Scores:
    """Log-probabilities under the same grammar mask and temperature the sampler used."""
    with autocast(network.settings, network.device):
        hidden_B_K_H = encode(model, batch.input_B_T, batch.position_B_K)
        logit_N_V = model.lm_head(hidden_B_K_H[batch.kept_B_K])
    logp_N_V = masked_log_softmax(logit_N_V, network.table.allowed_S_V[batch.state_N], temperature)
    logp_N = logp_N_V.gather(1, batch.target_N[:, None])[:, 0]
    return Scores(logp_N, entropy(logp_N_V.detach()))


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

    def sum(self, name: str) -> float:
        return self._sums.get(name, 0.0)

    def mean(self, name: str) -> float | None:
        return self.sum(name) / self.tokens if self.tokens else None

    def max(self, name: str) -> float | None:
        return self._peaks.get(name)


class Learner:
    """Owns the optimiser of one network, and the frozen initial weights where a KL penalty needs them."""

    def __init__(self, network: Network, settings: TrainingSection, temperature: float) -> None:
        self._network, self._settings, self._temperature = network, settings, temperature
        self.optimizer = torch.optim.AdamW(
            network.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self._reference: Qwen3ForCausalLM | None = None
        if settings.objective.kl_coefficient > 0:
            self._reference = copy.deepcopy(network.model).requires_grad_(False)

    def update(self, rows: Sequence[Row], episodes: int) -> dict[str, float | None]:
        """Make `optimizer_steps_per_update` steps on the whole batch and return what to log of it.

        A batch without any advantage (and without a KL penalty) changes nothing, momentum included.
        Raises TrainError when the gradient is not finite; the weights are then as before the step.
        """
        batches = make_micro_batches(rows, self._settings.micro_batch_rows, self._network.device)
        tokens = sum(len(row.targets) for row in rows)
        shared = divisor(self._settings.objective, episodes=episodes, tokens=tokens)
        reference = [self._reference_logp(batch) for batch in batches]
        old: list[Tensor] = []
        metrics: dict[str, float | None] = {}
        signal = self._reference is not None or any(row.advantage for row in rows)
        for _ in range(self._settings.optimizer_steps_per_update):
            sums = _Sums()
            self.optimizer.zero_grad(set_to_none=True)
            for index, batch in enumerate(batches):
                logp_N = self._backward(batch, reference[index], old[index] if len(old) > index else None, shared, sums)
                if len(old) == index:
                    old.append(logp_N)
            norm = self._step() if signal and batches else 0.0
            # Mismatch and entropy describe the batch as it came in; clip and loss the last step.
            metrics = _metrics(sums, norm) | {
                name: value for name, value in metrics.items() if name.startswith(("policy/", "mismatch/"))
            }
        return metrics | {"train/skipped": float(not (signal and batches))}

    def _backward(
        self, batch: MicroBatch, reference_N: Tensor | None, old_N: Tensor | None, shared: float, sums: _Sums
    ) -> Tensor:
        """Add one micro-batch's gradient; returns its log-probabilities, detached."""
        scores = score(self._network, self._network.model, batch, self._temperature)
        old_N = scores.logp_N.detach() if old_N is None else old_N
        objective = self._settings.objective
        token = token_loss(scores.logp_N, old_N, batch.sampler_logp_N, batch.advantage_N, objective)
        loss_N = token.loss_N
        if reference_N is not None:
            penalty_N = kl_k2(scores.logp_N, reference_N)
            loss_N = loss_N + objective.kl_coefficient * penalty_N
            sums.add(kl_reference=penalty_N)
        (loss_N.sum() / shared).backward()
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

    def _step(self) -> float:
        parameters = self._network.model.parameters()
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainError(f"the gradient's norm is {norm}; the last checkpoint stands, lower the learning rate")
        self.optimizer.step()
        return norm


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
