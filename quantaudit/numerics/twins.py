"""Fake quantization in one pass, written for a compiler: the same bits as `reference` by fewer operations.

Three identities carry it; each holds bit for bit, and the tests compare every twin with the reference:

    * The exponent of a power-of-two scale is integer arithmetic on the bits of absmax (see `exponent`), and dividing by
      the scale is multiplying by its exact inverse, which is a normal number for every scale that a rule can choose.
    * Rounding |y| to a float format of m fraction bits, ties to even, is (|y| + M) - M for M = 2^(max(e, e0) + 23 - m):
      e is the exponent of y, e0 the smallest one of the format, and at M fp32 has exactly the step of the format.
    * The sign is moved as a bit, so that -0 needs no care (and compilers that ignore signs of zero do no harm).

Where the scale is NaN the ratio does not matter, and where it is zero the ratio is taken over 1 and rounds to zero.

Shape suffixes: G groups, N members of a group; K rows of a block, B blocks, L columns of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from quantaudit.core.format import FP32, FloatFormat, IntegerFormat
from quantaudit.core.scheme import (
    Arithmetic,
    Division,
    ExponentScale,
    LinearScale,
    Overflow,
    PerBlock,
    PerChannel,
    PerGroup,
    PerToken,
    Scheme,
    Tie,
)
from quantaudit.numerics.bits import BIAS, MANTISSA_BITS
from quantaudit.numerics.exponent import ExponentBump, exponent_bump
from quantaudit.numerics.steps import ordered_key

_MAGNITUDE = 0x7FFFFFFF
_SIGN = -0x80000000
_EXPONENT = 0x7F800000
_NAN = 0x7FC00000
_FRACTION = (1 << MANTISSA_BITS) - 1
_SUBNORMAL_SCALE = 1 << (MANTISSA_BITS - 1)  # 2^-127, the value of E8M0 code 0


class GroupScale(NamedTuple):
    """What elements are multiplied by (or divided by) before rounding, and the decoded scale."""

    factor: Tensor
    scale: Tensor


class FloatGrid(NamedTuple):
    """A float format as bits of fp32: its smallest binade, what turns a binade into M, and its largest number."""

    smallest_binade: int
    to_magic: int
    largest: int


Twin: TypeAlias = Callable[[Tensor, Tensor], GroupScale]


def has_twin(scheme: Scheme) -> bool:
    """Returns whether a scheme is of the form that the twins cover."""
    fits_element = isinstance(scheme.element, FloatFormat | IntegerFormat)
    fits_grain = isinstance(scheme.granularity, PerGroup | PerChannel | PerToken | PerBlock)
    fits_rounding = scheme.tie is Tie.EVEN and scheme.overflow is Overflow.SATURATE
    return fits_element and fits_grain and fits_rounding and (_is_plain(scheme) or _is_power_of_two(scheme))


def make_twin(scheme: Scheme) -> Twin:
    """Returns a function that writes the fake-quantized groups of its first argument into its second.

    Both are [G, N], or [K, B, L] for a row of blocks, of one dtype and contiguous; it returns the scales of the groups.
    """
    assert has_twin(scheme)
    axes = (0, 2) if isinstance(scheme.granularity, PerBlock) else (-1,)
    rule, element, codes = scheme.scale, scheme.element, scheme.code_range
    divides = isinstance(rule, LinearScale)
    bump = exponent_bump(rule) if isinstance(rule, ExponentScale) else None

    def scale_groups(values: Tensor) -> GroupScale:
        absmax = values.abs().amax(axes, keepdim=True)
        return _linear_scale(absmax, rule.divisor) if bump is None else _exponent_scale(absmax, bump)

    if isinstance(element, FloatFormat):
        grid = _grid(element)

        def float_twin(x: Tensor, out: Tensor) -> GroupScale:
            values = x.float()
            group = scale_groups(values)
            out.copy_(_round_float(values, group, grid, divides=divides))
            return group

        return float_twin

    def integer_twin(x: Tensor, out: Tensor) -> GroupScale:
        assert codes is not None
        values = x.float()
        group = scale_groups(values)
        ratio = values / group.factor if divides else values * group.factor
        out.copy_(ratio.round().to(torch.int32).clamp(codes.low, codes.high).to(torch.float32) * group.scale)
        return group

    return integer_twin


def _is_power_of_two(scheme: Scheme) -> bool:
    """Returns whether the scale is a power of two, code 0 for zero, and below absmax (so subnormals end at code 0)."""
    rule = scheme.scale
    if not isinstance(rule, ExponentScale):
        return False
    return rule.amax_floor == 0 and rule.zero_code == 0 and exponent_bump(rule).offset < 0


def _is_plain(scheme: Scheme) -> bool:
    """Returns whether the scale is absmax / divisor in fp32 and nothing else."""
    rule = scheme.scale
    plain = LinearScale(divisor=rule.divisor) if isinstance(rule, LinearScale) and rule.divisor > 0 else None
    divides = scheme.division is Division.DIVIDE and scheme.arithmetic is Arithmetic.FLOAT32
    return rule == plain and divides


def _exponent_scale(absmax: Tensor, bump: ExponentBump) -> GroupScale:
    bits = absmax.view(torch.int32)
    one_more = ((bits & _FRACTION) >= bump.threshold).to(torch.int32)
    code = ((bits >> MANTISSA_BITS) + bump.offset + one_more).clamp(min=0)
    inverse = ((2 * BIAS - code) << MANTISSA_BITS).view(torch.float32)
    scale = torch.where(code == 0, _SUBNORMAL_SCALE, code << MANTISSA_BITS)
    return GroupScale(inverse, torch.where(absmax < math.inf, scale, _NAN).view(torch.float32))


def _linear_scale(absmax: Tensor, divisor: float) -> GroupScale:
    scale = absmax / torch.full_like(absmax, divisor)  # by a number, a GPU would multiply by the reciprocal
    return GroupScale(torch.where(scale == 0, 1.0, scale), torch.where(absmax < math.inf, scale, math.nan))


def _grid(element: FloatFormat) -> FloatGrid:
    return FloatGrid(
        smallest_binade=(element.min_exponent + BIAS) << MANTISSA_BITS,
        to_magic=(MANTISSA_BITS - element.mantissa_bits) << MANTISSA_BITS,
        largest=ordered_key(element.max, FP32),
    )


def _round_float(values: Tensor, group: GroupScale, grid: FloatGrid, *, divides: bool) -> Tensor:
    bits = values.view(torch.int32)
    magnitude = (bits & _MAGNITUDE).view(torch.float32)
    ratio = magnitude / group.factor if divides else magnitude * group.factor
    binade = ratio.view(torch.int32).clamp(min=grid.smallest_binade) & _EXPONENT
    magic = (binade + grid.to_magic).view(torch.float32)
    rounded = ((ratio + magic) - magic).view(torch.int32).clamp(max=grid.largest).view(torch.float32)
    return ((rounded * group.scale).view(torch.int32) | (bits & _SIGN)).view(torch.float32)
