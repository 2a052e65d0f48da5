"""Quantizers that cannot be enumerated by (statistic, value), compared on whole matrices: a sample, never a proof.

Two-level and double-quantized scales depend on the whole matrix, and sides with different groups have no common group.
A difference found here is a difference; none found proves nothing.

Shape suffixes: R rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind
from quantaudit.core.scheme import PerBlock
from quantaudit.identity.arrangement import group_size
from quantaudit.identity.differences import Tallies, add_masks, find_differences
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Produced, Side
from quantaudit.identity.special_blocks import as_block
from quantaudit.numerics.grouping import plan, to_groups

_SEEDS = 8
_ROWS = 128
_MIN_COLUMNS = 1024
_TIES = (6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -6.0, -2.5, 0.0, -0.0)


def sample_matrices(sides: tuple[Side, Side], dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields matrices whose shape both sides can group: Gaussian with rows of different size, ties, zeros, tiny."""
    columns = math.lcm(*(_columns(side) for side in sides))
    columns *= -(-_MIN_COLUMNS // columns)
    rng = torch.Generator().manual_seed(20260804)
    for _ in range(_SEEDS):
        size_R1 = torch.exp(torch.randn(_ROWS, 1, generator=rng))
        yield (torch.randn(_ROWS, columns, generator=rng) * size_R1 * 0.02).to(dtype)
    ties_C = torch.tensor(_TIES).repeat(math.ceil(columns / len(_TIES)))[:columns]
    exponents_R1 = torch.arange(_ROWS).unsqueeze(1) / 4 - 16
    yield (ties_C * torch.exp2(exponents_R1.floor())).to(dtype)
    mixed = torch.randn(_ROWS, columns, generator=rng) * torch.exp2(-exponents_R1 * 4)
    mixed[::7] = 0
    yield mixed.to(dtype)


def compare_whole(sides: tuple[Side, Side], matrices: Iterator[Tensor], tallies: Tallies, out: torch.dtype) -> int:
    """Compares two sides on matrices; returns how many values were compared."""
    total = 0
    for matrix in matrices:
        produced = [side.run(matrix, out) for side in sides]
        _add_matrix(tallies, matrix, sides, produced)
        total += matrix.numel()
    return total


def _add_matrix(tallies: Tallies, matrix: Tensor, sides: tuple[Side, Side], produced: list[Produced]) -> None:
    cut = plan(tuple(matrix.shape), sides[0].scheme.granularity)

    def grouped(x: Tensor) -> Tensor:
        return to_groups(x, cut).squeeze(0)

    has_equal_grids = len({None if p.scales is None else p.scales.numel() for p in produced}) == 1
    a, b = (
        Outcome(
            scales_BR=p.scales.reshape(-1, 1) if p.scales is not None and has_equal_grids else None,
            codes_BM=None if p.codes is None else grouped(p.codes),
            values_BM=grouped(p.values),
        )
        for p in produced
    )
    tallies.has_scales &= a.scales_BR is not None and b.scales_BR is not None
    tallies.has_codes &= a.codes_BM is not None and b.codes_BM is not None
    block = as_block(grouped(matrix))
    masks = find_differences(a, b, torch.ones_like(a.values_BM, dtype=torch.bool), with_codes=tallies.has_codes)
    tally = tallies.of(BlockKind.ORDINARY)
    tally.num_pairs += matrix.numel()
    tally.num_statistics += len(a.values_BM)
    add_masks(tally, masks, torch.ones(len(a.values_BM), dtype=torch.bool), block, a, b)


def _columns(side: Side) -> int:
    """Returns a number of columns whose multiples this side can group."""
    granularity = side.scheme.granularity
    if isinstance(granularity, PerBlock):
        return granularity.cols
    return group_size(granularity) or 1
