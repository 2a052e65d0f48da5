"""Every code under every scale, decoded by both sides: all there is of a side that only decodes.

Shape suffixes: B scales, M codes, R groups of a scale, N members of a group.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind
from quantaudit.core.format import IntegerFormat
from quantaudit.core.scheme import ExponentScale, PerTensor, Scheme
from quantaudit.identity.arrangement import Arrangement, arrange, collect, group_size, spread
from quantaudit.identity.differences import Tallies, add_masks, find_differences
from quantaudit.identity.domain import BF16_INPUT, FP32_INPUT, Block
from quantaudit.identity.fast_reference import choose_scale, has_staircase
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Side
from quantaudit.numerics import scales
from quantaudit.numerics.grouping import plan
from quantaudit.numerics.reference import QuantizedTensor

_MOST_VALUES = 1 << 24


class Grid(NamedTuple):
    """A tensor that holds every code under every scale.

    Attributes:
        quantized: Codes and scales.
        where: How groups lie in it.
        scales_B: fp32, the scales as numbers.
        codes_M: The codes, as in `quantized`.
    """

    quantized: QuantizedTensor
    where: Arrangement
    scales_B: Tensor
    codes_M: Tensor


def can_decode(sides: tuple[Side, Side]) -> bool:
    """Returns whether both sides decode codes of one scheme that a grid can hold."""
    a, b = (side.scheme for side in sides)
    is_one = a.element == b.element and a.granularity == b.granularity and a.scale.kind == b.scale.kind
    is_gridded = has_staircase(a) and has_staircase(b) and not isinstance(a.granularity, PerTensor)
    return is_one and is_gridded and all(side.decode is not None for side in sides)


def make_grid(scheme: Scheme, dtype: torch.dtype) -> Grid:
    """Returns all codes under all E8M0 scales, or under every scale (or every n-th) that a bf16 absmax gives."""
    codes_M = _all_codes(scheme)
    size = group_size(scheme.granularity) or len(codes_M)
    a_row = -(-len(codes_M) // size)
    stored_B = _all_scales(scheme, most=_MOST_VALUES // (a_row * size))
    filled = codes_M.repeat(-(-a_row * size // len(codes_M)))[: a_row * size]
    groups_GN = filled.view(a_row, size).repeat(len(stored_B), 1)
    where = arrange(len(groups_GN), size, scheme.granularity)
    (codes,) = spread(groups_GN, where)
    quantized = QuantizedTensor(
        codes=codes,
        scales=stored_B.repeat_interleave(a_row).reshape(plan(where.shape, scheme.granularity).grid),
        second_scales=None,
        offset=None,
        shape=where.shape,
        dtype=dtype,
        scheme=scheme,
    )
    return Grid(quantized, where, scales.decode_stored(stored_B, scheme.scale), codes_M)


def compare_decoding(sides: tuple[Side, Side], dtype: torch.dtype, tallies: Tallies) -> int:
    """Decodes a grid by both sides and counts; the statistic of a counterexample is the scale, its value the code.

    Returns:
        How many scales there were.
    """
    grid = make_grid(sides[0].scheme, dtype)
    a, b = (_decode(side, grid, dtype) for side in sides)
    bits_BM = grid.codes_M.float().view(torch.int32).repeat(len(grid.scales_B), 1)
    block = Block(
        inputs=FP32_INPUT,
        ranks_B=grid.scales_B.view(torch.int32).to(torch.int64),
        is_negative=False,
        listed_BM=bits_BM,
        ladder=0,
    )
    masks = find_differences(a, b, torch.ones_like(bits_BM, dtype=torch.bool), with_codes=True)
    kinds = [_kind(value) for value in grid.scales_B.tolist()]
    for kind in set(kinds):
        rows_B = torch.tensor([k is kind for k in kinds])
        tally = tallies.of(kind)
        tally.num_pairs += int(rows_B.sum()) * len(grid.codes_M)
        tally.num_statistics += int(rows_B.sum())
        add_masks(tally, masks, rows_B, block, a, b)
    return len(kinds)


def _decode(side: Side, grid: Grid, dtype: torch.dtype) -> Outcome:
    assert side.decode is not None
    num_codes, num_scales = len(grid.codes_M), len(grid.scales_B)
    values_GN = collect(side.decode(grid.quantized, dtype), grid.where)
    return Outcome(
        scales_BR=grid.scales_B.unsqueeze(1),
        codes_BM=grid.codes_M.to(torch.int16).repeat(num_scales, 1),
        values_BM=values_GN.reshape(num_scales, -1)[:, :num_codes].contiguous(),
    )


def _all_codes(scheme: Scheme) -> Tensor:
    if isinstance(scheme.element, IntegerFormat):
        assert scheme.code_range is not None
        return torch.arange(scheme.code_range.low, scheme.code_range.high + 1, dtype=torch.int8)
    return torch.arange(1 << scheme.element.bits, dtype=torch.int16).to(torch.uint8)


def _all_scales(scheme: Scheme, most: int) -> Tensor:
    if isinstance(scheme.scale, ExponentScale):
        return torch.arange(256, dtype=torch.int16).to(torch.uint8)
    ranks = torch.arange(0, BF16_INPUT.num_ranks, -(-BF16_INPUT.num_ranks // most))
    return choose_scale(BF16_INPUT.numbers(ranks), scheme)[0]


def _kind(scale: float) -> BlockKind:
    """Returns the kind of what has this scale: the last binades may decode to infinity."""
    if math.isnan(scale):
        return BlockKind.NAN
    if scale == 0:
        return BlockKind.ZERO
    if abs(scale) < 2.0**-126:
        return BlockKind.SUBNORMAL
    return BlockKind.SATURATING if abs(scale) >= 2.0**120 else BlockKind.ORDINARY
