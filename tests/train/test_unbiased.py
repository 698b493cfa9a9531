"""The whole chain by enumeration: rewards → advantages → loss → gradient, in expectation the true gradient.

The world of tests/credit/test_unbiased.py (stop, or go on to a bad or a good end), its policy a table of
two log-odds in torch, and every group of three members it can produce.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from task_app.config.training import ObjectiveSection
from task_app.credit import CreditSettings, GroupRewards, RunningBaseline, compute_advantages
from task_app.train.objective import divisor, token_loss

TRAJECTORIES = ((1.0,), (0.5, 0.0), (0.5, 2.0))
MEMBERS = 3


def log_probabilities(odds: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """log π of each decision of each trajectory."""
    go, stop, good, bad = logsigmoid(odds[0]), logsigmoid(-odds[0]), logsigmoid(odds[1]), logsigmoid(-odds[1])
    return (stop,), (go, bad), (go, good)


def true_gradient(odds: Tensor) -> Tensor:
    chances = [torch.stack(row).sum().exp() for row in log_probabilities(odds)]
    value = sum(chance * sum(rewards) for chance, rewards in zip(chances, TRAJECTORIES, strict=True))
    assert isinstance(value, Tensor)
    return torch.autograd.grad(value, odds)[0]


def expected_gradient(odds: Tensor, credit: CreditSettings, objective: ObjectiveSection) -> Tensor:
    """−E[∇ loss] · constant over all groups, the constant that undoes the normaliser's scale."""
    total = torch.zeros(2, dtype=torch.float64)
    for group in itertools.product(range(3), repeat=MEMBERS):
        rows = log_probabilities(odds)
        chance = torch.stack([logp for index in group for logp in rows[index]]).sum().exp().item()
        rewards = GroupRewards("g", "task", tuple(TRAJECTORIES[index] for index in group))
        advantages = compute_advantages([rewards], credit, RunningBaseline()).groups[0].advantages
        logp_N = torch.stack([logp for index in group for logp in rows[index]])
        advantage_N = torch.tensor([value for row in advantages for value in row], dtype=torch.float64)
        loss_N = token_loss(logp_N, logp_N, logp_N.detach(), advantage_N, objective).loss_N
        loss = loss_N.sum() / divisor(objective, episodes=MEMBERS, tokens=len(loss_N))
        total -= chance * torch.autograd.grad(loss, odds)[0]
    return total * objective.normaliser_constant


def ratios(credit: CreditSettings, objective: ObjectiveSection = ObjectiveSection()) -> list[float]:
    odds = torch.tensor([0.4, -0.3], dtype=torch.float64, requires_grad=True)
    return (expected_gradient(odds, credit, objective) / true_gradient(odds)).tolist()


@pytest.mark.parametrize(
    "credit",
    [CreditSettings("return_loo"), CreditSettings("rtg_alive_loo"), CreditSettings("rtg_alive_loo", singleton="raw")],
    ids=lambda credit: f"{credit.estimator}-{credit.singleton}",
)
def test_the_expected_gradient_is_the_true_one(credit):
    assert ratios(credit) == pytest.approx([1.0, 1.0], abs=1e-6)


def test_dividing_by_a_batchs_own_tokens_is_not_proportional():
    first, second = ratios(CreditSettings("return_loo"), ObjectiveSection(normaliser="tokens"))
    assert abs(first / second - 1) > 0.02
