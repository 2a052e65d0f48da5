"""RMSNorm rounds twice in bf16, and uses its weight as stored."""

from __future__ import annotations

import math

import torch

from quantaudit.model.norm import RMSNorm, normalize_rms
from quantaudit.model.precision import widen


def test_normalises_by_the_root_of_the_mean_square() -> None:
    norm = RMSNorm(2, eps=0.5).double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, -1.0]))
    # mean(9, 16) + 0.5 = 13
    expected = torch.tensor([[2 * 3.0, -4.0]], dtype=torch.float64) / math.sqrt(13.0)
    torch.testing.assert_close(norm(torch.tensor([[3.0, 4.0]], dtype=torch.float64)), expected, rtol=1e-15, atol=0.0)


def test_bf16_is_rounded_before_the_weight_and_again_after() -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    norm = RMSNorm(96, eps=1e-5)
    with torch.no_grad():
        norm.weight.copy_((1 + 0.3 * torch.randn(96, generator=torch.Generator().manual_seed(1))).bfloat16())
    normalised = normalize_rms(x, 1e-5)
    twice = (normalised.bfloat16().float() * norm.weight).bfloat16()
    once = (normalised * norm.weight).bfloat16()
    assert torch.equal(norm(x), twice)
    assert not torch.equal(norm(x), once)


def test_widening_keeps_fp64_and_lifts_everything_else_to_fp32() -> None:
    lifted = {
        dtype: widen(torch.ones(1, dtype=dtype)).dtype for dtype in (torch.float64, torch.float32, torch.bfloat16)
    }
    assert lifted == {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}
