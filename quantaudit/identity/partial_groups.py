"""Groups cut off at the edge of a matrix: blocks that do not divide its shape, and a last block that is not full.

An enumeration fills whole groups. What a library does with the rest (pad with zeros, take the absmax of what is there,
use another code path, refuse) shows only on shapes that do not divide, so such matrices are compared apart.

Shape suffixes: R rows, C columns, G groups, N members of a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quantaudit.core.certificate import BlockKind, BlockSection
from quantaudit.core.errors import InputError
from quantaudit.core.scheme import FlatBlocks, Granularity, PerBlock
from quantaudit.identity.differences import Tallies, add_masks, find_differences
from quantaudit.identity.outcome import Outcome
from quantaudit.identity.sides import Produced, Side
from quantaudit.identity.special_blocks import as_block
from quantaudit.numerics.grouping import plan, to_groups

_SEED = 20260806
_EXPONENTS = (0, -12, 30)
_TIES = (6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def has_partial_groups(granularity: Granularity) -> bool:
    """Returns whether a matrix may have groups that are not full."""
    return isinstance(granularity, PerBlock | FlatBlocks)


def compare_partial(
    sides: tuple[Side, Side], dtype: torch.dtype, out_dtype: torch.dtype, *, with_codes: bool
) -> tuple[BlockSection, list[str]]:
    """Compares two sides on matrices whose shape their groups do not divide.

    Args:
        sides: Both sides, of one granularity that has partial groups.
        dtype: Of the inputs.
        out_dtype: Of decoded values where a side leaves it open.
        with_codes: Whether codes are of one numbering.

    Returns:
        A section, and sentences about sides that refuse such matrices.
    """
    tallies = Tallies(largest=1.0, has_codes=with_codes)
    refusals: dict[str, int] = {}
    for matrix in _matrices(sides[0].scheme.granularity, dtype):
        found = [_attempt(side, matrix, out_dtype) for side in sides]
        for side, produced in zip(sides, found, strict=True):
            if produced is None:
                refusals[side.name] = refusals.get(side.name, 0) + 1
        _add(tallies, sides[0].scheme.granularity, matrix, found)
    tally = tallies.of(BlockKind.PARTIAL)
    section = BlockSection(
        kind=BlockKind.PARTIAL,
        num_pairs=tally.num_pairs,
        differing=tallies.differing(BlockKind.PARTIAL),
        zero_signs=tally.zero_signs,
        counterexample=tally.first,
        a_refuses=sides[0].name in refusals,
        b_refuses=sides[1].name in refusals,
    )
    notes = [f"{name} refuses {count} matrices whose last groups are partial." for name, count in refusals.items()]
    return section, notes


def _matrices(granularity: Granularity, dtype: torch.dtype) -> list[Tensor]:
    """Returns matrices with partial groups at one edge, at both, and with nothing else."""
    rng = torch.Generator().manual_seed(_SEED)
    matrices = []
    for shape in _shapes(granularity):
        for exponent in _EXPONENTS:
            gaussian_RC = torch.randn(shape, generator=rng)
            ties_C = torch.tensor(_TIES).repeat(-(-shape[1] // len(_TIES)))[: shape[1]]
            rows_R1 = torch.arange(shape[0]).unsqueeze(1)
            matrices.append((torch.where(rows_R1 % 3 == 2, ties_C, gaussian_RC) * 2.0**exponent).to(dtype))
    return matrices


def _shapes(granularity: Granularity) -> list[tuple[int, int]]:
    if isinstance(granularity, PerBlock):
        rows, cols = granularity.rows, granularity.cols
        return [(rows + 37, cols + 53), (rows, cols + 1), (rows + 1, 2 * cols), (5, cols), (3, 7)]
    assert isinstance(granularity, FlatBlocks)
    size = granularity.size
    return [(1, size + 5), (3, size + 1), (1, 3), (5, 2 * size - 1)]


def _attempt(side: Side, matrix: Tensor, out_dtype: torch.dtype) -> Produced | None:
    """Returns the results, or `None` where the side refuses the shape."""
    try:
        return side.run(matrix, out_dtype)
    except InputError:
        return None


def _add(tallies: Tallies, granularity: Granularity, matrix: Tensor, found: list[Produced | None]) -> None:
    """Counts the values of partial groups; where one side alone refuses, all of them differ."""
    cut = plan(tuple(matrix.shape), granularity)
    is_real_GN = to_groups(torch.ones_like(matrix, dtype=torch.bool), cut).squeeze(0)
    is_partial_G = ~is_real_GN.all(1)
    tally = tallies.of(BlockKind.PARTIAL)
    count = int(is_real_GN[is_partial_G].sum())
    tally.num_pairs += count
    tally.num_statistics += int(is_partial_G.sum())
    left, right = found
    if left is None or right is None:
        tally.values += 0 if left is right else count
        return
    a, b = (
        Outcome(
            scales_BR=None if p.scales is None else p.scales.reshape(-1, 1),
            codes_BM=None if p.codes is None else to_groups(p.codes, cut).squeeze(0),
            values_BM=to_groups(p.values, cut).squeeze(0),
        )
        for p in (left, right)
    )
    tallies.has_scales &= a.scales_BR is not None and b.scales_BR is not None
    tallies.has_codes &= a.codes_BM is not None and b.codes_BM is not None
    masks = find_differences(a, b, is_real_GN, with_codes=tallies.has_codes)
    add_masks(tally, masks, is_partial_G, as_block(to_groups(matrix, cut).squeeze(0)), a, b)
