"""Weight error per expert, and the first value that differs with the bits of both sides."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from quantaudit.observers.weights import SQNR_CAP_DB, first_discrepancy, sqnr_db


def test_sqnr_is_that_of_a_loop() -> None:
    hi = torch.randn(3, 4, 5)
    lo = hi + 0.1 * torch.randn(3, 4, 5)
    for found, a, b in zip(sqnr_db(hi, lo), hi.flatten(1).tolist(), lo.flatten(1).tolist(), strict=True):
        signal = math.fsum(x * x for x in a)
        error = math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))
        assert found == pytest.approx(10 * math.log10(signal / error), rel=1e-13)  # 20 squares and a logarithm in fp64


def test_equal_experts_are_shown_at_the_cap_and_lost_ones_at_zero() -> None:
    hi = torch.randn(3, 4, 5)
    lo = hi.clone()
    lo[1] = 0
    assert sqnr_db(hi, lo) == [SQNR_CAP_DB, 0.0, SQNR_CAP_DB]


def test_a_halved_expert_is_at_six_decibel() -> None:
    hi = torch.randn(1, 4, 5)
    assert sqnr_db(hi, hi / 2) == pytest.approx([20 * math.log10(2)], rel=1e-13)


def test_the_first_difference_is_named_with_both_bit_patterns() -> None:
    hi = torch.randn(2, 3, 4)
    lo = hi.clone()
    lo[1, 0, 2] = -lo[1, 0, 2]
    lo[1, 2, 3] += 1
    found = first_discrepancy("w", hi, lo)
    assert found is not None and found.tensor == "w" and found.coordinate == (1, 0, 2)
    for value, bits, source in ((found.hi_value, found.hi_bits, hi), (found.lo_value, found.lo_bits, lo)):
        assert value == float(source[1, 0, 2])
        assert bits == "0x" + struct.pack(">f", value).hex()


def test_the_smallest_difference_counts() -> None:
    hi = torch.ones(2, 2)
    lo = hi.clone()
    lo[1, 1] = math.nextafter(1.0, 2.0)  # rounds to 1 in fp32
    assert first_discrepancy("w", hi, lo) is None
    lo[1, 1] = 1 + 2.0**-23
    found = first_discrepancy("w", hi, lo)
    assert found is not None and (found.hi_bits, found.lo_bits) == ("0x3f800000", "0x3f800001")


def test_equal_values_of_two_dtypes_are_no_difference() -> None:
    hi = torch.randn(3, 3).bfloat16()
    assert first_discrepancy("w", hi, hi.float()) is None


def test_nan_equals_nan_and_differs_from_a_number() -> None:
    hi = torch.tensor([1.0, math.nan, 2.0])
    assert first_discrepancy("w", hi, hi.clone()) is None
    found = first_discrepancy("w", hi, torch.tensor([1.0, 0.0, 2.0]))
    assert found is not None and found.coordinate == (1,)
