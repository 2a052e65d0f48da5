"""Groups laid out as the matrix that a quantizer cuts into these groups, and its results as groups again.

Shape suffixes: G groups, N members of a group.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from quantaudit.core.scheme import FlatBlocks, Granularity, PerBlock, PerGroup, PerTensor
from quantaudit.numerics.grouping import from_groups, plan, to_groups

_GROUPS_A_ROW = 16


class Arrangement(NamedTuple):
    """How [G, N] groups lie in matrices of one shape, `num_matrices` of them (one a group for whole-tensor scales)."""

    granularity: Granularity
    shape: tuple[int, int]
    num_matrices: int


def group_size(granularity: Granularity) -> int | None:
    """Returns how many values share a scale; `None` where the shape of the matrix decides."""
    if isinstance(granularity, PerBlock):
        return granularity.rows * granularity.cols
    return granularity.size if isinstance(granularity, PerGroup | FlatBlocks) else None


def arrange(num_groups: int, size: int, granularity: Granularity) -> Arrangement:
    """Returns the matrix of so many groups of that size.

    Args:
        num_groups: G.
        size: N; that of the granularity, where it has one.
        granularity: Which values share a scale.
    """
    assert size == (group_size(granularity) or size)
    if isinstance(granularity, PerBlock):
        return Arrangement(granularity, (granularity.rows, num_groups * granularity.cols), 1)
    if isinstance(granularity, PerTensor):
        return Arrangement(granularity, (1, size), num_groups)
    a_row = 1
    if isinstance(granularity, PerGroup):
        while a_row < _GROUPS_A_ROW and num_groups % (2 * a_row) == 0:
            a_row *= 2
    return Arrangement(granularity, (num_groups // a_row, a_row * size), 1)


def spread(groups_GN: Tensor, where: Arrangement) -> list[Tensor]:
    """Returns the matrices that hold these groups."""
    if where.num_matrices > 1:
        return [row.reshape(where.shape) for row in groups_GN.unbind(0)]
    return [from_groups(groups_GN.unsqueeze(0), plan(where.shape, where.granularity), where.shape).contiguous()]


def collect(matrix: Tensor, where: Arrangement) -> Tensor:
    """Returns the groups of one matrix (the inverse of `spread`)."""
    return to_groups(matrix, plan(where.shape, where.granularity)).squeeze(0)
