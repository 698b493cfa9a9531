"""The objective against worked numbers, value and slope."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from task_app.config.training import ObjectiveSection
from task_app.train.objective import divisor, entropy, kl_k2, mismatch_kl, token_loss

ORACLES: dict[str, Any] = json.loads(Path(__file__).with_name("oracles.json").read_text())


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", ORACLES["ppo"])
def test_clipped_loss_and_its_slope(case):
    old = tensor(-1.0)
    new = (old + math.log(case["ratio"])).requires_grad_()
    settings = ObjectiveSection(clip_low=case["lo"], clip_high=case["hi"])
    result = token_loss(new, old, old, tensor(case["A"]), settings)
    result.loss_N.sum().backward()
    assert result.loss_N.item() == pytest.approx(case["loss"])
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(case["dlogp"])
    assert result.clipped_N.item() == (case["dlogp"] == 0)


def test_sampler_weight_is_capped_detached_and_per_token():
    case = ORACLES["tis"]
    new = tensor(*case["train"]).requires_grad_()
    result = token_loss(new, new.detach(), tensor(*case["rollout"]), tensor(1, 1, 1), ObjectiveSection())
    result.loss_N.sum().backward()
    assert result.weight_N.tolist() == pytest.approx(case["truncate2"], abs=1e-6)
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-weight for weight in case["truncate2"]], abs=1e-6)
    weight = result.weight_N
    assert (weight.sum() ** 2 / (3 * weight.square().sum())).item() == pytest.approx(case["ess_frac"], abs=1e-6)


@pytest.mark.parametrize("case", ORACLES["kl"])
def test_kl_k2_and_its_slope(case):
    new = tensor(case["lp"]).requires_grad_()
    penalty = kl_k2(new, tensor(case["ref"]))
    penalty.sum().backward()
    assert penalty.item() == pytest.approx(case["k2"])
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(case["dk2"])


def test_a_hand_worked_update():
    """Two episodes, three tokens, constant 10: on policy, loss −Σ A/20, slope −A/20 each."""
    new = tensor(-0.5, -1.0, -2.0).requires_grad_()
    advantage = tensor(1.0, -2.0, 0.5)
    result = token_loss(new, new.detach(), new.detach(), advantage, ObjectiveSection(normaliser_constant=10))
    loss = result.loss_N.sum() / divisor(ObjectiveSection(normaliser_constant=10), episodes=2, tokens=3)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 / 20)
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-0.05, 0.1, -0.025])


def test_normalisers():
    assert divisor(ObjectiveSection(), episodes=32, tokens=5) == 3200
    assert divisor(ObjectiveSection(normaliser="tokens"), episodes=32, tokens=5) == 5
    assert divisor(ObjectiveSection(normaliser="tokens"), episodes=32, tokens=0) == 1


def test_entropy_ignores_illegal_tokens():
    logp = torch.tensor([[math.log(0.5), -math.inf, math.log(0.5)], [0.0, -math.inf, -math.inf]])
    assert entropy(logp).tolist() == pytest.approx([math.log(2), 0.0])


def test_mismatch_is_zero_where_both_agree_and_never_negative():
    values = mismatch_kl(tensor(-1.0, -1.0, -1.0), tensor(-1.0, -1.5, -0.5))
    assert values[0] == 0
    assert values.tolist()[1:] == pytest.approx([math.exp(0.5) - 1.5, math.exp(-0.5) - 0.5])


def test_gspo_has_one_ratio_a_decision_and_a_clip_of_its_own():
    """Two decisions of 2 and 1 tokens. Differences (.2, −.1) and .3: ratios e^.05 and e^.3, advantages 1 and −1."""
    old = tensor(-1.0, -1.0, -1.0)
    new = (old + tensor(0.2, -0.1, 0.3)).requires_grad_()
    decision = torch.tensor([0, 0, 1])
    wide = ObjectiveSection(ratio="gspo", gspo_clip_low=0.9, gspo_clip_high=9.0)
    loss_N = token_loss(new, old, old, tensor(1, 1, -1), wide, decision).loss_N
    first, second = math.exp(0.05), math.exp(0.3)
    assert loss_N.tolist() == pytest.approx([-first, -first, second])
    loss_N.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-first, -first, second])  # each token as if it were the whole ratio's
    held = token_loss(new, old, old, tensor(1, 1, -1), ObjectiveSection(ratio="gspo"), decision)
    assert held.clipped_N.tolist() == [True, True, False]  # a worse decision made likelier is never held back
    assert held.loss_N.tolist() == pytest.approx([-1.0004, -1.0004, second])


def test_gspo_is_the_token_objective_for_decisions_of_one_token():
    old, advantage = tensor(-1.0, -2.0), tensor(1.0, -0.5)
    new = old + tensor(0.1, -0.05)
    apart = token_loss(new, old, old, advantage, ObjectiveSection())
    gspo = ObjectiveSection(ratio="gspo", gspo_clip_low=0.2, gspo_clip_high=0.28)
    assert torch.equal(token_loss(new, old, old, advantage, gspo, torch.tensor([0, 1])).loss_N, apart.loss_N)
