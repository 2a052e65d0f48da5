"""The two seams: plain and grouped products."""

from __future__ import annotations

import pytest
import torch

from quantaudit.model.linear import GroupedLinear, Linear
from tests.tolerances import rounding


def test_linear_is_x_times_the_transposed_weight() -> None:
    linear = Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert linear(torch.tensor([[1.0, 10.0, 100.0]])).tolist() == [[321.0, 654.0]]
    assert not hasattr(linear, "bias")


@pytest.mark.parametrize("counts", [[2, 3, 1], [0, 6, 0], [0, 0, 6], [6, 0, 0], [1, 0, 5]])
def test_each_group_meets_its_own_matrix(counts: list[int]) -> None:
    grouped = GroupedLinear(3, 4, 5).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        grouped.weight.normal_(generator=generator)
    x = torch.randn(6, 4, generator=generator).double()
    expert = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    expected = torch.einsum("ni,noi->no", x, grouped.weight[expert]).detach()
    tolerance = rounding(torch.float64, depth=4, scale=float(expected.abs().max()))
    assert (grouped(x, counts) - expected).abs().max() <= tolerance


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_a_narrower_weight_is_widened_exactly(stored: torch.dtype) -> None:
    linear = Linear(8, 8)
    with torch.no_grad():
        linear.weight.normal_(generator=torch.Generator().manual_seed(1))
    linear.to(stored)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)).double()
    assert torch.equal(linear(x), torch.nn.functional.linear(x, linear.weight.double()))
