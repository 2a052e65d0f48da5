"""Power-of-two scales for tensors: every rounding rule is one integer comparison with the fraction of the statistic.

With a = 2^e s and divisor d = 2^k c (1 <= s, c < 2), the exponent is X = e - k, and one more where

    floor      never              ceil     s > 1
    even       s >= 2 - 2^-(b+1)  rceil    s > c          (b fraction bits kept)
    nearest    s >= c sqrt(2); where that is beyond 2: one less for s < c / sqrt(2)

As s is a 24-bit number, each of these is `fraction bits >= threshold`, and the threshold is found in exact arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.scheme import ExponentRounding, ExponentScale
from quantaudit.numerics.bits import MANTISSA_BITS, split
from quantaudit.numerics.exact import floor_log2, power_of_two

_ONE = 1 << MANTISSA_BITS


class ExponentBump(NamedTuple):
    """X = e(a) + offset, and one more where the fraction bits of a reach the threshold."""

    offset: int
    threshold: int


@lru_cache(maxsize=64)
def exponent_bump(rule: ExponentScale) -> ExponentBump:
    """Turns a rounding rule into its offset and its threshold."""
    divisor = Fraction(rule.divisor)
    shift = floor_log2(divisor)
    significand = divisor / power_of_two(shift) * _ONE
    match rule.rounding:
        case ExponentRounding.FLOOR:
            return ExponentBump(-shift, _ONE)
        case ExponentRounding.CEIL:
            return ExponentBump(-shift, 1)
        case ExponentRounding.EVEN:
            assert rule.kept_mantissa_bits is not None
            return ExponentBump(-shift, _ONE - (_ONE >> (rule.kept_mantissa_bits + 1)))
        case ExponentRounding.RCEIL:
            return ExponentBump(-shift, math.floor(significand) - _ONE + 1)
    if significand**2 < 2 * _ONE**2:
        return ExponentBump(-shift, _ceil_sqrt(2 * significand**2) - _ONE)
    return ExponentBump(-shift - 1, _ceil_sqrt(significand**2 / 2) - _ONE)


def choose_exponent(statistic: Tensor, rule: ExponentScale) -> Tensor:
    """Returns the stored exponents (uint8) for absmax values of any shape and float dtype; NaN gives the NaN code."""
    absmax = statistic.float()
    if rule.amax_floor > 0:
        absmax = absmax.clamp(min=rule.amax_floor)
    parts = split(absmax.nan_to_num(nan=1.0))
    bump = exponent_bump(rule)
    unbounded = parts.exponent + bump.offset + (parts.fraction >= bump.threshold).to(torch.int32)
    code = (unbounded + rule.format.bias).clamp(0, rule.format.max_code)
    code = torch.where(absmax == 0, rule.zero_code, code)
    return torch.where(statistic.isnan(), rule.format.nan_code or 0, code).to(torch.uint8)


def _ceil_sqrt(value: Fraction) -> int:
    root = math.isqrt(math.floor(value))
    return root if root * root >= value else root + 1
