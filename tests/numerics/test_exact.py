"""Exact arithmetic with one rounding equals the arithmetic of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from quantaudit.core.format import BF16, FP16, FP32, FloatFormat
from quantaudit.numerics import exact
from tests.numerics.bits import assert_same_bits

EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-126), (2 - 2.0**-23) * 2.0**127, 1.0, -7.0]
MACHINE = {FP32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns pairs over all exponents, with every pair of edge cases in front."""
    edges = torch.tensor(EDGES).to(dtype)
    grid = torch.cartesian_prod(edges, edges)
    span = 12 if dtype == torch.float16 else 140
    random = (torch.randn(2, 3000) * torch.exp2(torch.randint(-span, span, (2, 3000)).float())).to(dtype)
    return torch.cat([grid[:, 0], random[0]]), torch.cat([grid[:, 1], random[1]])


@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(exact.multiply, torch.mul), (exact.divide, torch.div), (exact.add, torch.add)],
    ids=["multiply", "divide", "add"],
)
def test_operations_round_as_the_machine_does(
    fmt: FloatFormat, ours: Callable[[float, float, FloatFormat], float], theirs: Callable[..., torch.Tensor]
) -> None:
    a, b = operands(MACHINE[fmt])
    result = [ours(x, y, fmt) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert_same_bits(torch.tensor(result, dtype=torch.float64).float(), theirs(a, b))


def test_round_to_takes_ties_to_even_and_overflows_half_a_step_beyond_the_largest_number() -> None:
    step = Fraction(2) ** 104
    largest = Fraction(FP32.max)
    assert exact.round_to(largest + step / 2 - 1, FP32) == FP32.max
    assert exact.round_to(largest + step / 2, FP32) == math.inf
    assert exact.round_to(Fraction(1) + Fraction(1, 2**24), FP32) == 1.0
    assert exact.round_to(Fraction(1) + Fraction(3, 2**24), FP32) == 1 + 2.0**-22
    assert exact.round_to(Fraction(1, 2**150), FP32) == 0.0
    assert exact.round_to(-Fraction(1, 2**150) * 3, FP32) == -(2.0**-148)


def test_logarithms_are_exact_next_to_powers_of_two() -> None:
    for exponent in (-149, -1, 0, 1, 23, 127):
        power, tiny = exact.power_of_two(exponent), Fraction(1, 2**400)
        assert (exact.floor_log2(power - tiny), exact.floor_log2(power)) == (exponent - 1, exponent)
        assert (exact.ceil_log2(power), exact.ceil_log2(power + tiny)) == (exponent, exponent + 1)


def test_pairwise_sum_adds_by_halves() -> None:
    # (1 + 2^-60) + (-1 + 2^-60): halves cancel first, a running sum would lose both small terms.
    assert exact.pairwise_sum([1.0, 2.0**-60, -1.0, 2.0**-60]) == 2.0**-59
    assert exact.pairwise_sum([3.0]) == 3.0
    assert exact.pairwise_sum([1.0, 2.0, 3.0]) == 6.0
