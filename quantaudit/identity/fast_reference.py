"""The reference as steps: for one statistic the code of a value is a staircase, so its treads are all there is to know.

For a fixed scale the ratio does not decrease with the magnitude of the value (division and multiplication are
monotonic once rounded), and the code changes exactly where the ratio reaches the numbers that `numerics.steps` derives
from exact arithmetic. The first magnitude whose ratio reaches such a number is found by bisection over ranks, every
ratio computed by the operations of the reference. A ladder of values then costs one copy a value, whatever the scheme.

Shape suffixes: B statistics, S signs of the value (positive, negative), K treads, U different thresholds, M values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantaudit.core.format import IntegerFormat
from quantaudit.core.scheme import ExponentScale, LinearScale, Scheme, TwoLevel
from quantaudit.identity.domain import Block, InputNumbers
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.places import Places
from quantaudit.numerics import scales
from quantaudit.numerics.exponent import choose_exponent
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.rounding import decode, encode
from quantaudit.numerics.steps import step_table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Staircase:
    """Codes and decoded values of every value under some statistics.

    Attributes:
        scales_B: fp32, the stored scales as numbers.
        starts_BSK: int64, the rank at which a tread begins: ascending, the first 0, unreachable ones beyond all ranks.
        codes_BSK: int8 for integers, else uint8.
        values_BSK: Decoded values in the output dtype.
        above_1: fp32, the scale of the whole matrix; `None` where there is no second level.
    """

    scales_B: Tensor
    starts_BSK: Tensor
    codes_BSK: Tensor
    values_BSK: Tensor
    above_1: Tensor | None = None


class _Treads(NamedTuple):
    """For both signs: magnitude bits of the ratio at which a tread begins, int64, and its code, both [S, K]."""

    thresholds_SK: Tensor
    codes_SK: Tensor


def has_staircase(scheme: Scheme) -> bool:
    """Returns whether one number of a group, its statistic, determines the scale."""
    return isinstance(scheme.scale, ExponentScale) or scheme.scale.second_level is None


def is_two_level(scheme: Scheme) -> bool:
    """Returns whether the absolute maxima of the group and of its matrix together determine the scale."""
    return isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)


def build_staircase(
    ranks_B: Tensor,
    scheme: Scheme,
    inputs: InputNumbers,
    out_dtype: torch.dtype,
    *,
    is_negative: bool = False,
    matrix_rank: int | None = None,
) -> Staircase:
    """Builds the stairs of these statistics.

    Args:
        ranks_B: int64 ranks, all finite.
        scheme: One with `has_staircase`, or of two levels.
        inputs: The input dtype.
        out_dtype: Dtype of the decoded values.
        is_negative: Whether the statistics are negative, for signed statistics.
        matrix_rank: Rank of the absolute maximum of the matrix, for two levels.
    """
    statistic_B = inputs.numbers(ranks_B)
    above_1 = None if matrix_rank is None else scale_of_matrix(matrix_rank, scheme, inputs)
    stored_B, factor = choose_scale(-statistic_B if is_negative else statistic_B, scheme, above_1)
    scales_B = scales.decode_stored(stored_B, scheme.scale)
    decoded_B = scales_B if above_1 is None else scales_B * above_1
    treads = _treads(scheme)
    thresholds_U, where_SK = treads.thresholds_SK.unique(return_inverse=True)
    starts_BU = _first_ranks(thresholds_U, factor, scheme, inputs)
    starts_BSK = torch.where(factor.is_usable_SG[:, None, None], starts_BU[:, where_SK], inputs.num_ranks)
    starts_BSK = torch.where(treads.thresholds_SK == 0, 0, starts_BSK)
    codes_BSK = treads.codes_SK.expand(starts_BSK.shape)
    # A negative scale turns the stairs around.
    is_turned_B = factor.is_usable_SG & (factor.value_SG < 0)
    starts_BSK = torch.where(is_turned_B[:, None, None], starts_BSK.flip(1), starts_BSK)
    codes_BSK = torch.where(is_turned_B[:, None, None], codes_BSK.flip(1), codes_BSK)
    values_BSK = decode(codes_BSK, scheme.element) * decoded_B[:, None, None]
    return Staircase(
        scales_B=scales_B,
        starts_BSK=starts_BSK,
        codes_BSK=codes_BSK,
        values_BSK=values_BSK.to(out_dtype),
        above_1=above_1,
    )


def climb(stairs: Staircase, block: Block, places: Places | None = None) -> Outcome:
    """Returns the results for every value of a block whose statistics the stairs were built for.

    Args:
        stairs: Those of its statistics.
        block: The block.
        places: For a ladder, where its values lie in groups: the results then lie there too, statistics among them.
    """
    if block.ladder:
        return _climb_ladder(stairs, block, places)
    bits_BM = block.bits_BM.to(torch.int64)
    ranks_BM = torch.where(bits_BM < 0, bits_BM - block.inputs.sign_bit, bits_BM)
    is_negative_BM = bits_BM < 0
    found = [torch.searchsorted(stairs.starts_BSK[:, sign].contiguous(), ranks_BM, right=True) - 1 for sign in (0, 1)]
    num_treads = stairs.starts_BSK.shape[-1]
    tread_BM = torch.where(is_negative_BM, found[1] + num_treads, found[0])
    return Outcome(
        scales_BR=_shown_scales(stairs.scales_B, stairs.above_1),
        codes_BM=stairs.codes_BSK.flatten(1).gather(1, tread_BM),
        values_BM=stairs.values_BSK.flatten(1).gather(1, tread_BM),
    )


def _climb_ladder(stairs: Staircase, block: Block, places: Places | None) -> Outcome:
    """Repeats every tread as often as it is long."""
    starts, end = stairs.starts_BSK, block.ladder
    starts = torch.where(starts > block.ranks_B[:, None, None], end, starts)
    if places is not None:
        end = block.ladder // (places.size - 1) * places.size
        starts = torch.where(starts == 0, 0, places.of(starts).clamp(max=end))
    ends = torch.cat([starts[..., 1:], torch.full_like(starts[..., :1], end)], dim=-1)
    lengths = (ends - starts).flatten().numpy()
    bits_dtype = torch.int16 if stairs.values_BSK.itemsize == 2 else torch.int32
    bits_BSK = stairs.values_BSK.contiguous().view(bits_dtype)
    codes, bits = (
        torch.from_numpy(np.repeat(one.flatten().numpy(), lengths)).view(len(block.ranks_B), 2, end)
        for one in (stairs.codes_BSK, bits_BSK)
    )
    if places is not None:
        for results_BSX in (codes, bits):
            _write_statistics(results_BSX, places, is_negative=block.is_negative)
    return Outcome(
        scales_BR=_shown_scales(stairs.scales_B, stairs.above_1),
        codes_BM=codes.flatten(1),
        values_BM=bits.flatten(1).view(stairs.values_BSK.dtype),
    )


def _write_statistics(results_BSX: Tensor, places: Places, *, is_negative: bool) -> None:
    """Writes what becomes of the statistic of a row to its places: the same as of the last value of its sign."""
    members_BSHN = results_BSX.view(*results_BSX.shape[:2], -1, places.size)
    own_B = members_BSHN[:, int(is_negative), -1, places.values][:, -1]
    members_BSHN[..., places.statistic] = own_B[:, None, None]


def quantize_few(block: Block, scheme: Scheme, out_dtype: torch.dtype) -> Outcome:
    """Returns the results for a few listed values of many groups, by the operations of the reference.

    Stairs would cost more there than they save.
    """
    above_1 = None if block.matrix_rank is None else scale_of_matrix(block.matrix_rank, scheme, block.inputs)
    stored_B, factor = choose_scale(block.statistics_B, scheme, above_1)
    scales_B = scales.decode_stored(stored_B, scheme.scale)
    decoded_B = scales_B if above_1 is None else scales_B * above_1
    values_BM = block.values_BM.to(scales.arithmetic_dtype(scheme.arithmetic, block.inputs.dtype))
    by_B1 = factor.value_SG.unsqueeze(1)
    ratio_BM = values_BM * by_B1 if factor.is_multiplier else values_BM / by_B1
    zero_BM = torch.zeros_like(values_BM).copysign(values_BM)
    ratio_BM = torch.where(factor.is_usable_SG.unsqueeze(1), ratio_BM, zero_BM).float()
    codes_BM = encode(ratio_BM, element_rule(scheme))
    return Outcome(
        scales_BR=_shown_scales(scales_B, above_1),
        codes_BM=codes_BM,
        values_BM=(decode(codes_BM, scheme.element) * decoded_B.unsqueeze(1)).to(out_dtype),
    )


def _shown_scales(scales_B: Tensor, above_1: Tensor | None) -> Tensor:
    """Returns the scales of an outcome; for two levels lowest and highest of a row's groups, and that of the matrix."""
    if above_1 is None:
        return scales_B.unsqueeze(1)
    return torch.stack([scales_B, scales_B, above_1.expand_as(scales_B)], dim=1)


def scale_of_matrix(matrix_rank: int, scheme: Scheme, inputs: InputNumbers) -> Tensor:
    """Returns the second-level scale of a matrix whose absolute maximum has this rank, [1], fp32."""
    assert isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)
    return scales.matrix_scale(inputs.numbers(torch.tensor([matrix_rank])), scheme.scale.second_level)


def choose_scale(statistic_B: Tensor, scheme: Scheme, above_1: Tensor | None = None) -> tuple[Tensor, scales.Factor]:
    """Returns the stored scales [B] and what values are divided or multiplied by, as the reference does.

    Args:
        statistic_B: The statistics in the input dtype.
        scheme: The scheme.
        above_1: For two levels, the scale of the matrix.
    """
    rule = scheme.scale
    if isinstance(rule, ExponentScale):
        stored_B = choose_exponent(statistic_B, rule)
        return stored_B, scales.exponent_factor(stored_B)
    assert isinstance(rule, LinearScale)
    computed_B = scales.choose_linear(statistic_B, rule, above_1)
    stored_B = scales.store(computed_B, rule)
    visible_B = scales.visible_scale(computed_B, stored_B, rule)
    dtype = scales.arithmetic_dtype(scheme.arithmetic, statistic_B.dtype)
    return stored_B, scales.linear_factor(visible_B, rule, scheme.division, dtype, above_1)


@lru_cache(maxsize=256)
def _treads(scheme: Scheme) -> _Treads:
    """Splits the step table of the element format at zero (see `numerics.steps` for its order of numbers)."""
    table = step_table(element_rule(scheme))
    at_zero, at_negative_zero = bisect_right(table.keys, 0), bisect_right(table.keys, -1)
    positive = [(0, table.codes[at_zero])]
    positive += list(zip(table.keys[at_zero:], table.codes[at_zero + 1 :], strict=True))
    negative = [(0, table.codes[at_negative_zero])]
    negative += [(-table.keys[i], table.codes[i]) for i in range(at_negative_zero - 1, -1, -1)]
    length = max(len(positive), len(negative))
    dtype = torch.int8 if isinstance(scheme.element, IntegerFormat) else torch.uint8
    sides = [side + [(_NEVER, side[-1][1])] * (length - len(side)) for side in (positive, negative)]
    return _Treads(
        torch.tensor([[at for at, _ in side] for side in sides]),
        torch.tensor([[code for _, code in side] for side in sides], dtype=dtype),
    )


_SLACK = 2  # ranks
_INFINITY = 0x7F800000
_NEVER = 1 << 31  # beyond the bits of every fp32 magnitude, infinity included


def _first_ranks(thresholds_U: Tensor, factor: scales.Factor, scheme: Scheme, inputs: InputNumbers) -> Tensor:
    """Returns the smallest rank whose ratio reaches a threshold, [B, U]; the number of ranks where none does."""
    dtype = scales.arithmetic_dtype(scheme.arithmetic, inputs.dtype)
    factor_B1 = factor.value_SG.abs().unsqueeze(1)

    def reaches_threshold(ranks_BU: Tensor) -> Tensor:
        values_BU = inputs.numbers(ranks_BU.clamp(0, inputs.num_ranks - 1)).to(dtype)
        ratio_BU = values_BU * factor_B1 if factor.is_multiplier else values_BU / factor_B1
        # 0 / 0 happens only where the factor is not usable, and a NaN compares like a large number.
        return ratio_BU.float().view(torch.int32) >= thresholds_U

    low, high = _brackets(_near_ranks(thresholds_U, factor_B1, factor, inputs), reaches_threshold, inputs)
    while bool((is_open := high - low > 1).any()):
        middle = (low + high) >> 1
        reaches = reaches_threshold(middle)
        high = torch.where(is_open & reaches, middle, high)
        low = torch.where(is_open & ~reaches, middle, low)
    return high


def _near_ranks(thresholds_U: Tensor, factor_B1: Tensor, factor: scales.Factor, inputs: InputNumbers) -> Tensor:
    """Returns ranks near which ratios should reach their thresholds, [B, U]: where division would be exact."""
    threshold_U = thresholds_U.clamp(max=_INFINITY).to(torch.int32).view(torch.float32)
    value_BU = threshold_U / factor_B1.float() if factor.is_multiplier else threshold_U * factor_B1.float()
    return value_BU.nan_to_num(0.0).view(torch.int32).to(torch.int64) >> (23 - inputs.mantissa_bits)


def _brackets(near_BU: Tensor, reaches: Callable[[Tensor], Tensor], inputs: InputNumbers) -> tuple[Tensor, Tensor]:
    """Returns ranks below and from which a threshold is reached, close together where the guess is good."""
    low, high = (near_BU - _SLACK).clamp(min=-1), (near_BU + _SLACK).clamp(max=inputs.num_ranks)
    is_low = (low < 0) | ~reaches(low)
    is_high = (high >= inputs.num_ranks) | reaches(high)
    return torch.where(is_low & is_high, low, -1), torch.where(is_low & is_high, high, inputs.num_ranks)
