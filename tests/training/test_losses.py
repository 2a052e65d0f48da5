"""Losses follow their formulas, are zero where nothing differs, and weigh positions as asked."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from quantaudit.core.recipe import Divergence
from quantaudit.training.losses import measure_divergence, measure_loss
from tests.training.toy import REPAIR


def by_hand(p: list[float], q: list[float]) -> float:
    """Returns KL(p || q)."""
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
M = [(a + b) / 2 for a, b in zip(P, Q, strict=True)]
WANTED = {
    Divergence.FORWARD: by_hand(P, Q),
    Divergence.REVERSE: by_hand(Q, P),
    Divergence.JENSEN_SHANNON: (by_hand(P, M) + by_hand(Q, M)) / 2,
}
# Some ten fp32 operations on numbers of order one.
CLOSE = 10 * 2.0**-23


@pytest.mark.parametrize("kind", Divergence)
def test_a_divergence_is_its_formula(kind: Divergence) -> None:
    # logits are log-probabilities up to a constant, which must not matter
    hi, lo = torch.tensor([P]).log() + 3.0, torch.tensor([Q]).log() - 2.0
    assert float(measure_divergence(hi, lo, kind)) == pytest.approx(WANTED[kind], abs=CLOSE)


@pytest.mark.parametrize("kind", Divergence)
def test_a_divergence_from_itself_is_zero(kind: Divergence) -> None:
    logits = torch.randn(5, 11)
    assert float(measure_divergence(logits, logits.clone(), kind).abs().max()) <= CLOSE


def test_jensen_shannon_never_exceeds_ln_2() -> None:
    hi, lo = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 100.0]])
    assert float(measure_divergence(hi, lo, Divergence.JENSEN_SHANNON)) == pytest.approx(math.log(2), abs=CLOSE)


def test_the_gradient_of_forward_kl_is_q_minus_p() -> None:
    hi, lo = torch.randn(1, 6), torch.randn(1, 6, requires_grad=True)
    measure_divergence(hi, lo, Divergence.FORWARD).sum().backward()
    assert lo.grad is not None
    assert float((lo.grad - (lo.detach().softmax(-1) - hi.softmax(-1))).abs().max()) <= CLOSE


def test_losses_are_mixed_and_weighted_as_the_repair_says() -> None:
    logits, hi, target = torch.randn(3, 7), torch.randn(3, 7), torch.tensor([1, 4, 6])
    weight = torch.tensor([0.5, 0.25, 0.0])
    repair = REPAIR.model_copy(update={"cross_entropy": 0.5, "distillation": 2.0, "divergence": Divergence.REVERSE})
    hard = functional.cross_entropy(logits, target, reduction="none")
    soft = measure_divergence(hi, logits, Divergence.REVERSE)
    wanted = (weight * (0.5 * hard + 2.0 * soft)).sum()
    assert float(measure_loss(logits, target, hi, weight, repair)) == pytest.approx(float(wanted), abs=CLOSE)


def test_without_distillation_hi_is_not_asked() -> None:
    repair = REPAIR.model_copy(update={"distillation": 0.0})
    logits, target = torch.randn(2, 5), torch.tensor([0, 1])
    found = measure_loss(logits, target, None, torch.tensor([0.5, 0.5]), repair)
    assert float(found) == pytest.approx(float(functional.cross_entropy(logits, target)), abs=CLOSE)
