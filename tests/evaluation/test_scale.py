"""A stack of experts whose size moved beyond anything a quantizer does is degenerate, whatever the probes say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from quantaudit.core.engine import WeightPair
from quantaudit.evaluation.weights import MAX_RMS_RATIO, compare_weights
from quantaudit.numerics import fake_quantize, get_scheme, scheme_names
from quantaudit.observers.weights import rms_ratio
from tests.evaluation.synthetic import weight_evidence


def pair(hi: torch.Tensor, lo: torch.Tensor) -> WeightPair:
    """Returns a pair of expert stacks that no scheme is asked of."""
    return WeightPair(name="layers.2.experts.w3", layer=2, is_expert=True, hi=hi, lo=lo, wanted=None, held=None)


def test_the_ratio_is_that_of_the_root_mean_squares() -> None:
    hi = torch.tensor([[[3.0, 4.0]]])
    assert rms_ratio(hi, hi * 64) == 64.0
    assert rms_ratio(hi, torch.zeros_like(hi)) == 0.0
    assert rms_ratio(torch.zeros_like(hi), hi) == math.inf
    assert rms_ratio(torch.zeros_like(hi), torch.zeros_like(hi)) == 1.0


def test_permuting_experts_changes_no_size() -> None:
    hi = torch.randn(6, 4, 32)
    assert rms_ratio(hi, hi.flip(0)) == pytest.approx(1.0, rel=1e-12)  # the same 768 squares in another order, fp64


@pytest.mark.parametrize("name", scheme_names())
def test_no_scheme_of_the_catalogue_moves_the_size_by_that_much(name: str) -> None:
    hi = torch.randn(4, 128, 128) * torch.randn(4, 128, 1).exp()
    assert compare_weights([pair(hi, fake_quantize(hi, get_scheme(name)))]).misscaled() is None


@pytest.mark.parametrize("factor", [2.0**6, 2.0**-6, 0.0])
def test_scales_that_are_off_are_named(factor: float) -> None:
    hi = torch.randn(4, 8, 32)
    found = compare_weights([pair(hi, hi * factor)]).misscaled()
    assert found is not None and "layers.2.experts.w3" in found


def test_the_bound_itself_is_tolerated() -> None:
    evidence = weight_evidence()
    assert replace(evidence, rms_ratio={"w1": MAX_RMS_RATIO}).misscaled() is None
    assert replace(evidence, rms_ratio={"w1": MAX_RMS_RATIO * 1.01}).misscaled() is not None
    assert replace(evidence, rms_ratio={"w1": 1.0, "w2": math.nan}).misscaled() is not None
