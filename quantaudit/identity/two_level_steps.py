"""fp32 inputs of a two-level scale: both sides of every step of the group scale, and of every code under each of those.

Three fp32 numbers decide (see `two_level_domain`), so even the scales cannot be enumerated: 2^62 pairs. What is tried,
in some matrices of every binade, are the places where something changes: the first group absmax with each stored scale
and the last before it, found by bisection, and under both of them the first value of every code and the last before it.

Shape suffixes: B groups, C stored scales, M values of a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quantaudit.core.scheme import Scheme
from quantaudit.identity.domain import Block, InputNumbers, listed_block
from quantaudit.identity.fast_reference import choose_scale, scale_of_matrix
from quantaudit.identity.treads import tread_edges

_NEAR_ONE = 64  # matrices whose absmax is in the binade of 1
_SEED = 20260808


def matrix_ranks(inputs: InputNumbers) -> Tensor:
    """Returns ranks of absolute maxima of matrices: 64 in the binade of 1, one in every other, and the largest."""
    rng = torch.Generator().manual_seed(_SEED)
    one = 1 << inputs.mantissa_bits
    inside = torch.randint(0, one, (inputs.num_binades,), generator=rng)
    others = torch.arange(inputs.num_binades) * one + inside
    ends = torch.tensor([0, 1, one - 1])
    near = torch.cat([ends, torch.randint(0, one, (_NEAR_ONE - len(ends),), generator=rng)]) + inputs.rank_of_one
    found: Tensor = torch.cat([near, others, torch.tensor([inputs.num_ranks - 1])])
    return found[found > 0]


def two_level_step_blocks(schemes: tuple[Scheme, ...], inputs: InputNumbers) -> Iterator[Block]:
    """Yields a block a matrix: groups on both sides of every step of the scale, with values on those of the code.

    Args:
        schemes: Schemes of two levels.
        inputs: The input dtype.
    """
    for matrix_rank in matrix_ranks(inputs).tolist():
        ranks_B = torch.cat([scale_edges(matrix_rank, scheme, inputs) for scheme in schemes]).unique()
        edges = [tread_edges(scheme, ranks_B, inputs, matrix_rank=matrix_rank) for scheme in schemes]
        yield listed_block(ranks_B, torch.cat(edges, dim=1), inputs, matrix_rank=matrix_rank)


def scale_edges(matrix_rank: int, scheme: Scheme, inputs: InputNumbers) -> Tensor:
    """Returns the ranks of group maxima on both sides of every step of the stored scale, ascending, with the ends."""
    above = scale_of_matrix(matrix_rank, scheme, inputs)

    def stored(ranks: Tensor) -> Tensor:
        return choose_scale(inputs.numbers(ranks), scheme, above)[0].to(torch.int64)

    ends = torch.tensor([0, matrix_rank])
    lowest, highest = stored(ends).tolist()
    wanted_C = torch.arange(lowest + 1, highest + 1)
    low_C, high_C = torch.zeros_like(wanted_C), torch.full_like(wanted_C, matrix_rank)
    while bool((is_open_C := high_C - low_C > 1).any()):
        middle_C = (low_C + high_C) >> 1
        reaches_C = stored(middle_C) >= wanted_C
        high_C = torch.where(is_open_C & reaches_C, middle_C, high_C)
        low_C = torch.where(is_open_C & ~reaches_C, middle_C, low_C)
    found: Tensor = torch.cat([ends, low_C, high_C]).unique()
    return found
