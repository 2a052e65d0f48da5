"""The reference as steps: for one statistic the code of a value is a staircase, so its treads are all there is to know.

For a fixed scale the ratio does not decrease with the magnitude of the value (division and multiplication are
monotonic once rounded), and the code changes exactly where the ratio reaches the numbers that `numerics.steps` derives
from exact arithmetic. The first magnitude whose ratio reaches such a number is found by bisection over ranks, every
ratio computed by the operations of the reference. A ladder of values then costs one copy a value, whatever the scheme.

Shape suffixes: B statistics, S signs of the value (positive, negative), K treads, U different thresholds, M values.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantaudit.core.scheme import ExponentScale, LinearScale, Scheme
from quantaudit.identity.domain import Block, InputNumbers
from quantaudit.identity.outcome import Outcome
from quantaudit.numerics import scales
from quantaudit.numerics.exponent import choose_exponent
from quantaudit.numerics.ladder import element_rule
from quantaudit.numerics.rounding import decode
from quantaudit.numerics.steps import step_table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Staircase:
    """Codes and decoded values of every value under some statistics.

    Attributes:
        scales_B: fp32, the stored scales as numbers.
        starts_BSK: int64, the rank at which a tread begins: ascending, the first 0, unreachable ones beyond all ranks.
        codes_BSK: int16.
        values_BSK: Decoded values in the output dtype.
    """

    scales_B: Tensor
    starts_BSK: Tensor
    codes_BSK: Tensor
    values_BSK: Tensor


class _Treads(NamedTuple):
    """For both signs: magnitude bits of the ratio at which a tread begins, int64, and its code, int16, both [S, K]."""

    thresholds_SK: Tensor
    codes_SK: Tensor


def has_staircase(scheme: Scheme) -> bool:
    """Returns whether one number of a group, its statistic, determines the scale."""
    return isinstance(scheme.scale, ExponentScale) or scheme.scale.second_level is None


def build_staircase(
    ranks_B: Tensor, scheme: Scheme, inputs: InputNumbers, out_dtype: torch.dtype, *, is_negative: bool = False
) -> Staircase:
    """Builds the stairs of these statistics.

    Args:
        ranks_B: int64 ranks, all finite.
        scheme: One with `has_staircase`.
        inputs: The input dtype.
        out_dtype: Dtype of the decoded values.
        is_negative: Whether the statistics are negative, for signed statistics.
    """
    statistic_B = inputs.numbers(ranks_B)
    stored_B, factor = choose_scale(-statistic_B if is_negative else statistic_B, scheme)
    decoded_B = scales.decode_stored(stored_B, scheme.scale)
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
        scales_B=decoded_B, starts_BSK=starts_BSK, codes_BSK=codes_BSK, values_BSK=values_BSK.to(out_dtype)
    )


def climb(stairs: Staircase, block: Block) -> Outcome:
    """Returns the results for every value of a block whose statistics the stairs were built for."""
    if block.ladder:
        return _climb_ladder(stairs, block)
    bits_BM = block.bits_BM.to(torch.int64)
    ranks_BM = torch.where(bits_BM < 0, bits_BM - block.inputs.sign_bit, bits_BM)
    is_negative_BM = bits_BM < 0
    found = [torch.searchsorted(stairs.starts_BSK[:, sign].contiguous(), ranks_BM, right=True) - 1 for sign in (0, 1)]
    num_treads = stairs.starts_BSK.shape[-1]
    tread_BM = torch.where(is_negative_BM, found[1] + num_treads, found[0])
    return Outcome(
        scales_BR=stairs.scales_B.unsqueeze(1),
        codes_BM=stairs.codes_BSK.flatten(1).gather(1, tread_BM),
        values_BM=stairs.values_BSK.flatten(1).gather(1, tread_BM),
    )


def _climb_ladder(stairs: Staircase, block: Block) -> Outcome:
    """Repeats every tread as often as it is long."""
    starts = stairs.starts_BSK
    starts = torch.where(starts > block.ranks_B[:, None, None], block.ladder, starts)
    ends = torch.cat([starts[..., 1:], torch.full_like(starts[..., :1], block.ladder)], dim=-1)
    lengths = (ends - starts).flatten().numpy()
    bits_dtype = torch.int16 if stairs.values_BSK.itemsize == 2 else torch.int32
    values = np.repeat(stairs.values_BSK.contiguous().view(bits_dtype).flatten().numpy(), lengths)
    codes = np.repeat(stairs.codes_BSK.flatten().numpy(), lengths)
    shape = block.bits_BM.shape
    return Outcome(
        scales_BR=stairs.scales_B.unsqueeze(1),
        codes_BM=torch.from_numpy(codes).view(shape),
        values_BM=torch.from_numpy(values).view(shape).view(stairs.values_BSK.dtype),
    )


def choose_scale(statistic_B: Tensor, scheme: Scheme) -> tuple[Tensor, scales.Factor]:
    """Returns the stored scales [B] and what values are divided or multiplied by, as the reference does."""
    rule = scheme.scale
    if isinstance(rule, ExponentScale):
        stored_B = choose_exponent(statistic_B, rule)
        return stored_B, scales.exponent_factor(stored_B)
    assert isinstance(rule, LinearScale)
    computed_B = scales.choose_linear(statistic_B, rule)
    stored_B = scales.store(computed_B, rule)
    visible_B = scales.visible_scale(computed_B, stored_B, rule)
    dtype = scales.arithmetic_dtype(scheme.arithmetic, statistic_B.dtype)
    return stored_B, scales.linear_factor(visible_B, rule, scheme.division, dtype, None)


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
    sides = [side + [(_NEVER, side[-1][1])] * (length - len(side)) for side in (positive, negative)]
    return _Treads(
        torch.tensor([[at for at, _ in side] for side in sides]),
        torch.tensor([[code for _, code in side] for side in sides], dtype=torch.int16),
    )


_NEVER = 1 << 31  # beyond the bits of every fp32 magnitude, infinity included


def _first_ranks(thresholds_U: Tensor, factor: scales.Factor, scheme: Scheme, inputs: InputNumbers) -> Tensor:
    """Returns the smallest rank whose ratio reaches a threshold, [B, U]; the number of ranks where none does."""
    dtype = scales.arithmetic_dtype(scheme.arithmetic, inputs.dtype)
    factor_B1 = factor.value_SG.abs().unsqueeze(1)
    low = torch.full((len(factor_B1), len(thresholds_U)), -1)
    high = torch.full_like(low, inputs.num_ranks)
    for _ in range(inputs.num_ranks.bit_length()):
        middle = (low + high) >> 1
        values = inputs.numbers(middle.clamp(0, inputs.num_ranks - 1)).to(dtype)
        ratio = values * factor_B1 if factor.is_multiplier else values / factor_B1
        bits = ratio.float().view(torch.int32)
        # 0 / 0 happens only where the factor is not usable, and a NaN compares like a large number.
        reaches = bits >= thresholds_U
        is_open = high - low > 1
        high = torch.where(is_open & reaches, middle, high)
        low = torch.where(is_open & ~reaches, middle, low)
    return high
