"""fp32 numbers as exponent and fraction bits: no logarithm is ever taken, so no exponent is ever off by one.

Shape suffixes: none; everything here is element by element.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MANTISSA_BITS = 23
BIAS = 127
_FRACTION_MASK = (1 << MANTISSA_BITS) - 1
_SMALLEST_NORMAL = 2.0**-126
_LIFT = 32  # 2^32 turns the smallest subnormal (2^-149) into a normal number


class Split(NamedTuple):
    """|x| = 2^exponent * (1 + fraction / 2^23)."""

    exponent: Tensor
    fraction: Tensor


def split(magnitude: Tensor) -> Split:
    """Splits non-negative finite fp32 numbers, subnormals too (int32 both; zero gives exponent -159)."""
    is_subnormal = magnitude < _SMALLEST_NORMAL
    bits = torch.where(is_subnormal, magnitude * 2.0**_LIFT, magnitude).view(torch.int32)
    exponent = (bits >> MANTISSA_BITS) - BIAS - is_subnormal.to(torch.int32) * _LIFT
    return Split(exponent, bits & _FRACTION_MASK)


def normal_exponent(magnitude: Tensor) -> Tensor:
    """Returns the exponents of positive normal fp32 numbers, int32."""
    return (magnitude.view(torch.int32) >> MANTISSA_BITS) - BIAS


def power_of_two(exponent: Tensor) -> Tensor:
    """Returns 2^exponent in fp32 for int32 exponents from -126 to 127."""
    return ((exponent + BIAS) << MANTISSA_BITS).view(torch.float32)


def decode_e8m0(code: Tensor) -> Tensor:
    """Returns the fp32 value of E8M0 bytes: 2^(code - 127), 0 giving the subnormal 2^-127 and 255 a NaN."""
    wide = code.to(torch.int32)
    bits = torch.where(wide == 0, 1 << (MANTISSA_BITS - 1), wide << MANTISSA_BITS)
    return torch.where(wide == 255, torch.nan, bits.view(torch.float32))


def inverse_e8m0(code: Tensor) -> Tensor:
    """Returns 2^(127 - code) in fp32: exact up to code 253, and what encodes beyond is never produced by a rule.

    Multiplying by it equals dividing by the scale, because both only move the exponent.
    """
    return power_of_two(BIAS - code.to(torch.int32).clamp(max=253))
