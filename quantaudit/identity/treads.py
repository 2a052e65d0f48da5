"""The values on both sides of every step of a scheme, and the statistics at which its scale can change.

Shape suffixes: B statistics, M listed values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quantaudit.core.scheme import ExponentRounding, ExponentScale, Scheme
from quantaudit.identity.domain import Block, InputNumbers, listed_block
from quantaudit.identity.fast_reference import build_staircase
from quantaudit.numerics.exponent import exponent_bump

_NUM_RANDOM = 8
_SEED = 20260803
_BLOCK_VALUES = 1 << 20


def tread_edges(scheme: Scheme, ranks_B: Tensor, inputs: InputNumbers, *, matrix_rank: int | None = None) -> Tensor:
    """Returns for every statistic the first value of every tread and the one before, both signs, with zeros and itself.

    Args:
        scheme: One with stairs.
        ranks_B: int64 ranks of the statistics.
        inputs: The input dtype.
        matrix_rank: Rank of the absmax of the matrix, for two levels.

    Returns:
        [B, M] int64 as `listed_block` takes them; unreachable ones are beyond the statistic.
    """
    starts_BSK = build_staircase(ranks_B, scheme, inputs, torch.float32, matrix_rank=matrix_rank).starts_BSK
    first_BM = starts_BSK.flatten(1).clamp(max=inputs.num_ranks)
    own_B2 = torch.stack([ranks_B, torch.zeros_like(ranks_B)], dim=1)
    edges = torch.cat([first_BM, (first_BM - 1).clamp(min=0), own_B2], dim=1)
    return torch.cat([edges, -1 - edges], dim=1)


def boundary_statistics(scheme: Scheme, inputs: InputNumbers) -> Tensor:
    """Returns ranks at which the scale can change, with neighbours, in every binade, and some random ones.

    For a power-of-two scale these are all: the exponent is constant between them, if it does not fall as absmax grows.
    """
    one = 1 << inputs.mantissa_bits
    fractions = {0, 1, one - 1, one // 4, one // 2, 3 * one // 4, 7 * one // 8}
    if isinstance(scheme.scale, ExponentScale):
        kept = scheme.scale.kept_mantissa_bits or 1
        for rounding in ExponentRounding:
            rule = scheme.scale.model_copy(
                update={
                    "rounding": rounding,
                    "kept_mantissa_bits": kept if rounding is ExponentRounding.EVEN else None,
                }
            )
            fractions.add(exponent_bump(rule).threshold >> (23 - inputs.mantissa_bits))
    random = torch.randint(0, one, (_NUM_RANDOM,), generator=torch.Generator().manual_seed(_SEED)).tolist()
    near = {f + step for f in fractions for step in (-1, 0, 1)} | set(random)
    binades = torch.arange(inputs.num_binades).unsqueeze(1) * one
    ranks = (binades + torch.tensor(sorted(near))).flatten().unique()
    smallest = torch.tensor([0, *(1 << bit for bit in range(inputs.mantissa_bits))])
    found: Tensor = torch.cat([ranks, smallest]).clamp(0, inputs.num_ranks - 1).unique()
    return found


def boundary_blocks(
    schemes: tuple[Scheme, ...], ranks: Tensor, inputs: InputNumbers, *, signs: tuple[bool, ...] = (False,)
) -> Iterator[Block]:
    """Yields every statistic with both sides of every tread of every scheme, binades next to 1 first.

    Args:
        schemes: Schemes with stairs.
        ranks: int64 ranks of the statistics.
        inputs: The input dtype.
        signs: Whether statistics are negative: once each.
    """
    near_one = ((ranks >> inputs.mantissa_bits) - 127).abs()
    ranks = ranks[near_one.argsort(stable=True)]
    num_values = sum(tread_edges(scheme, ranks[:1], inputs).shape[1] for scheme in schemes)
    for is_negative in signs:
        for ranks_B in ranks.split(max(1, _BLOCK_VALUES // num_values)):
            edges_BM = torch.cat([tread_edges(scheme, ranks_B, inputs) for scheme in schemes], dim=1)
            yield listed_block(ranks_B, edges_BM, inputs, is_negative=is_negative)
