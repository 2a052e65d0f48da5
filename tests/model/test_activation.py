"""SiTU-GLU: its published values, its bounds, and what it is not."""

from __future__ import annotations

import math

import pytest
import torch

from quantaudit.model.activation import situ_glu

# The published values, printed to 16 digits: beta 4, linear beta 25.
GOLDEN = [
    (1.0, 1.0, 0.7158178280748404),
    (-1.0, 2.0, -0.525828895514303),
    (4.0, -3.0, -8.931919451284294),
    (10.0, 50.0, 95.1080215340149),
    (-10.0, 50.0, -0.004317897497493173),
]


def situ(gate: float, up: float, *, beta: float = 4.0, linear_beta: float | None = 25.0) -> float:
    wide = torch.float64
    return float(
        situ_glu(torch.tensor(gate, dtype=wide), torch.tensor(up, dtype=wide), beta=beta, linear_beta=linear_beta)
    )


@pytest.mark.parametrize(("gate", "up", "expected"), GOLDEN)
def test_published_values(gate: float, up: float, expected: float) -> None:
    # Two tanh, one sigmoid and four products, each within an ulp or two, of a value printed to the last digit.
    assert math.isclose(situ(gate, up), expected, rel_tol=16 * 2.0**-53)


def test_both_branches_saturate() -> None:
    assert situ(1e4, 1e4) == 100.0
    assert situ(1e4, -1e4) == -100.0
    assert situ(-1e4, 1e4) == 0.0


def test_argument_of_the_sigmoid_is_not_divided_by_beta() -> None:
    assert math.isclose(situ(2.0, 1e4), 100 * math.tanh(0.5) / (1 + math.exp(-2.0)), rel_tol=1e-15)


def test_beta_of_zero_means_one() -> None:
    assert situ(0.3, 2.0, beta=0.0) == situ(0.3, 2.0, beta=1.0) != situ(0.3, 2.0, beta=4.0)


def test_without_linear_beta_the_up_branch_is_linear() -> None:
    assert situ(0.3, 2e6, linear_beta=None) == 1e6 * situ(0.3, 2.0, linear_beta=None)


def test_bf16_inputs_are_computed_in_fp32_and_rounded_once() -> None:
    gate, up = torch.linspace(-9, 9, 513).bfloat16(), torch.linspace(60, -60, 513).bfloat16()
    narrow = situ_glu(gate, up, beta=4.0, linear_beta=25.0)
    assert narrow.dtype is torch.bfloat16
    assert torch.equal(narrow, situ_glu(gate.float(), up.float(), beta=4.0, linear_beta=25.0).bfloat16())
