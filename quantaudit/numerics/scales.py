"""Linear scales for tensors: the order of operations of `scalar_scales`, one group a lane.

Shape suffixes: S stack, G groups of a matrix, N members of a group, 1 an axis of length one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.format import BF16, FP16, FP32
from quantaudit.core.scheme import (
    Arithmetic,
    Division,
    EncodeScale,
    ExponentScale,
    LinearScale,
    Overflow,
    Statistic,
    StatisticTie,
    Tie,
    TwoLevel,
)
from quantaudit.numerics.bits import decode_e8m0, inverse_e8m0
from quantaudit.numerics.ladder import ElementRule
from quantaudit.numerics.rounding import decode, encode

_CONTAINERS = {FP32: torch.float32, BF16: torch.bfloat16, FP16: torch.float16}


class Factor(NamedTuple):
    """What elements are multiplied by, or divided by; where it is not usable their ratio is a zero of their sign."""

    value_SG: Tensor
    is_multiplier: bool
    is_usable_SG: Tensor


def measure(groups_SGN: Tensor, rule: ExponentScale | LinearScale) -> Tensor:
    """Returns the statistic of every group, [S, G], in the dtype of the input; NaN if a member is not finite."""
    magnitude_SGN = groups_SGN.abs()
    absmax_SG1 = magnitude_SGN.amax(-1, keepdim=True)
    value_SG1 = absmax_SG1
    if isinstance(rule, LinearScale) and rule.statistic is Statistic.SIGNED_ABSMAX:
        value_SG1 = groups_SGN.gather(-1, _position(magnitude_SGN == absmax_SG1, rule.statistic_tie))
    return torch.where(absmax_SG1.isfinite(), value_SG1, torch.nan).squeeze(-1)


def _position(is_largest_SGN: Tensor, tie: StatisticTie) -> Tensor:
    """Returns the first or last true position of every group, [S, G, 1]; 0 where there is none (NaN)."""
    size = is_largest_SGN.shape[-1]
    position_N = torch.arange(size, device=is_largest_SGN.device)
    if tie is StatisticTie.FIRST:
        return torch.where(is_largest_SGN, position_N, size - 1).amin(-1, keepdim=True)
    return torch.where(is_largest_SGN, position_N, 0).amax(-1, keepdim=True)


def arithmetic_dtype(arithmetic: Arithmetic, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which a step is computed for inputs of `dtype`."""
    return dtype if arithmetic is Arithmetic.INPUT else torch.float32


def matrix_scale(statistic_SG: Tensor, level: TwoLevel) -> Tensor:
    """Returns the scale of every matrix, [S, 1], fp32: absmax / divisor (NaN if any group is NaN)."""
    absmax_S1 = statistic_SG.float().amax(-1, keepdim=True)
    return absmax_S1 / torch.full_like(absmax_S1, level.divisor)


def choose_linear(statistic_SG: Tensor, rule: LinearScale, above_S1: Tensor | None = None) -> Tensor:
    """Returns the computed scales, [S, G] fp32, NaN where the statistic is NaN.

    Args:
        statistic_SG: fp32 or bf16.
        rule: The scale rule.
        above_S1: For two levels, the scale of the matrix.
    """
    value = statistic_SG.to(arithmetic_dtype(rule.arithmetic, statistic_SG.dtype))
    computed = _over_divisor(_raised(value, rule.amax_floor), rule)
    if above_S1 is not None:
        computed = torch.where(above_S1 == 0, 0.0, computed / above_S1)
    computed = _raised(computed, rule.scale_floor)
    if rule.zero_scale > 0:
        computed = torch.where(computed == 0, rule.zero_scale, computed)
    return computed.float()


def store(computed: Tensor, rule: LinearScale) -> Tensor:
    """Returns scales as stored: uint8 codes for formats of at most 8 bits, else rounded values in fp32."""
    fmt = rule.format
    if fmt.bits <= 8:
        return encode(computed, ElementRule(fmt, Tie.EVEN, overflow=rule.overflow))
    stored = computed.to(_CONTAINERS[fmt]).float()
    if rule.overflow is Overflow.SATURATE:
        stored = torch.where(stored.isinf(), computed.clamp(-fmt.max, fmt.max), stored)
    return stored


def decode_stored(stored: Tensor, rule: ExponentScale | LinearScale) -> Tensor:
    """Returns the fp32 scales that stored ones stand for (without a second level)."""
    if isinstance(rule, ExponentScale):
        return decode_e8m0(stored)
    return decode(stored, rule.format) if rule.format.bits <= 8 else stored


def exponent_factor(stored_SG: Tensor) -> Factor:
    """Returns the exact multipliers of power-of-two scales."""
    return Factor(inverse_e8m0(stored_SG), True, torch.ones_like(stored_SG, dtype=torch.bool))


def linear_factor(
    scale_SG: Tensor, rule: LinearScale, division: Division, dtype: torch.dtype, above_S1: Tensor | None
) -> Factor:
    """Returns the factors of linear scales in the arithmetic dtype.

    Args:
        scale_SG: fp32, the scales that elements see: see `visible_scale`.
        rule: The scale rule.
        division: Whether elements are divided, or multiplied by the reciprocal.
        dtype: The arithmetic dtype.
        above_S1: For two levels, the scale of the matrix.
    """
    scale = torch.where(scale_SG == 0, scale_SG, _raised(scale_SG, rule.encode_floor)).to(dtype)
    if division is Division.DIVIDE:
        divisor = scale if above_S1 is None else scale * above_S1
        return Factor(divisor, False, divisor != 0)
    one = torch.ones((), dtype=dtype, device=scale.device)
    factor = one / scale if above_S1 is None else (one / above_S1) / scale
    return Factor(factor, True, factor.isfinite())


def visible_scale(computed: Tensor, stored: Tensor, rule: LinearScale) -> Tensor:
    """Returns the scale with which elements are encoded."""
    return computed if rule.encode_with is EncodeScale.COMPUTED else decode_stored(stored, rule)


def pairwise_mean(values_SG: Tensor) -> Tensor:
    """Returns the mean of every row, [S, 1], fp32, in an order of additions that no thread or device changes."""
    count = values_SG.shape[-1]
    terms = torch.nn.functional.pad(values_SG.double(), (0, (1 << (count - 1).bit_length()) - count))
    while terms.shape[-1] > 1:
        low, high = terms.chunk(2, dim=-1)
        terms = low + high
    # A GPU divides by a Python number through its reciprocal, which is not the same; by a tensor it divides.
    return (terms / torch.full_like(terms, count)).float()


def _raised(value: Tensor, floor: float) -> Tensor:
    """Returns values of at least `floor` in magnitude, sign and NaN kept."""
    return value if floor == 0 else value.abs().clamp(min=floor).copysign(value)


def _over_divisor(statistic: Tensor, rule: LinearScale) -> Tensor:
    divisor = torch.full((), rule.divisor, dtype=statistic.dtype, device=statistic.device)
    if rule.division is Division.DIVIDE:
        return statistic / divisor
    return statistic * (1.0 / divisor)
