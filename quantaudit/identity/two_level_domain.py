"""The inputs of a two-level quantizer, factored: (matrix, group) absmax for the scale, then values under every scale.

Three absolute numbers decide what a value becomes: the absmax T of its matrix, the absmax a of its group, and itself.
All triples would be 5.8e12, so they are tried in two steps, which together are a proof for code that sees a and the
value only through the stored scale and T:

    scales  every T with every a <= T that can have a scale of its own. Far below T the scale is its floor, and every
            61st a is tried (all of them if the search is deep).
    values  every value under every stored scale, the group's absmax being the largest that has this scale, for every T
            of the binade of 1; multiplying T, a and the value by 2^k changes nothing elsewhere. Below where that holds
            every fourth T is tried (every one if the search is deep), in the last binade one in 16. For some T the
            smallest a of a scale is tried too.

Shape suffixes: B groups, M values of a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from quantaudit.core.format import FloatFormat
from quantaudit.core.scheme import LinearScale, Scheme, TwoLevel
from quantaudit.identity.domain import Block, InputNumbers, ladder_block, listed_block
from quantaudit.identity.fast_reference import choose_scale, scale_of_matrix
from quantaudit.identity.laying import ladder_multiple

_BLOCK_VALUES = 1 << 20
_SPARSE = 61  # a prime, so that all fractions come by
_WITH_VALUES = 8  # one T in so many has values beside the absmax of the group
_BELOW = (0, 37, 81, 101, 128, 167, 197, 256, 289, 331, 384, 409, 463, 512, 700)  # ranks below a, 128 to a binade
_SOME = 16  # one T in so many, where not all are tried
_LOW = 4  # the same among the smallest


def scale_blocks(scheme: Scheme, inputs: InputNumbers, *, is_deep: bool) -> Iterator[Block]:
    """Yields a block for every finite T, binades next to 1 first, its rows being absolute maxima of groups.

    Args:
        scheme: One of two levels.
        inputs: A 16-bit dtype.
        is_deep: Whether groups far below T are tried one and all.
    """
    for matrix_rank in _near_one_first(torch.arange(inputs.num_ranks), inputs).tolist():
        yield scales_below(matrix_rank, scheme, inputs, is_deep=is_deep)


def scales_below(matrix_rank: int, scheme: Scheme, inputs: InputNumbers, *, is_deep: bool) -> Block:
    """Returns the groups that are tried for their scale in a matrix of this absmax, with a few values each."""
    ranks_B = _absmax_ranks(matrix_rank, scheme, inputs, is_deep=is_deep)
    below_M = torch.tensor(_BELOW if matrix_rank % _WITH_VALUES == 0 else _BELOW[:1])
    values_BM = (ranks_B.unsqueeze(1) - below_M).clamp(min=0)
    signed_BM = torch.where(torch.arange(len(below_M)) % 2 == 0, values_BM, -1 - values_BM)
    return listed_block(ranks_B, signed_BM, inputs, matrix_rank=matrix_rank)


def value_blocks(scheme: Scheme, inputs: InputNumbers, *, is_deep: bool) -> Iterator[Block]:
    """Yields ladders of values under every scale, for the T at which multiplying by 2 can change something.

    Args:
        scheme: One of two levels.
        inputs: A 16-bit dtype.
        is_deep: Whether every small T is tried.
    """
    for matrix_rank in _near_one_first(value_matrices(scheme, inputs, is_deep=is_deep), inputs).tolist():
        yield from values_below(matrix_rank, scheme, inputs)


def values_below(matrix_rank: int, scheme: Scheme, inputs: InputNumbers) -> Iterator[Block]:
    """Yields every value under every scale that a group has in a matrix of this absmax."""
    for ranks_B in _cut(_one_a_scale(matrix_rank, scheme, inputs, with_smallest=matrix_rank % _SOME == 0)):
        yield ladder_block(ranks_B, inputs, matrix_rank=matrix_rank, multiple=ladder_multiple(scheme))


def value_matrices(scheme: Scheme, inputs: InputNumbers, *, is_deep: bool) -> Tensor:
    """Returns the ranks of the T under which all values are tried."""
    one = 1 << inputs.mantissa_bits
    start = inputs.rank_of_one
    low = torch.arange(1, equivariant_from(scheme, inputs), 1 if is_deep else _LOW)
    top = torch.arange(inputs.num_ranks - one, inputs.num_ranks, _SOME)
    last = torch.tensor([inputs.num_ranks - 1])
    found: Tensor = torch.cat([low, torch.arange(start, start + one), top, last]).unique()
    return found


def equivariant_from(scheme: Scheme, inputs: InputNumbers) -> int:
    """Returns the rank of the smallest T from which on no scale, factor or decoded value is subnormal or overflows."""
    level = _level(scheme)
    rule = scheme.scale
    assert isinstance(rule, LinearScale)
    smallest = scheme.element.smallest_positive if isinstance(scheme.element, FloatFormat) else 1.0
    # T / divisor times the smallest scale and the smallest element must be normal; one binade more for roundings.
    least = level.divisor / (max(rule.scale_floor, rule.format.smallest_positive) * min(1.0, smallest)) * 2.0**-125
    binade = 127 + torch.frexp(torch.tensor(least, dtype=torch.float64)).exponent.item()
    return int(binade) << inputs.mantissa_bits


def _absmax_ranks(matrix_rank: int, scheme: Scheme, inputs: InputNumbers, *, is_deep: bool) -> Tensor:
    """Returns the ranks of the absolute maxima of groups that are tried under one T, ascending."""
    if is_deep:
        return torch.arange(matrix_rank + 1)
    first = max(0, matrix_rank - (_num_binades(scheme) << inputs.mantissa_bits))
    sparse = torch.arange(0, first, _SPARSE) + matrix_rank % _SPARSE
    zero = torch.zeros(1, dtype=torch.int64)
    found: Tensor = torch.cat([zero, sparse, torch.arange(first, matrix_rank + 1)]).unique()
    return found


def _num_binades(scheme: Scheme) -> int:
    """Returns how many binades below T a group can be and still have a scale above the floor, and one more."""
    rule = scheme.scale
    assert isinstance(rule, LinearScale)
    smallest = max(rule.scale_floor, rule.format.smallest_positive)
    reach = _level(scheme).divisor / rule.divisor / smallest
    return int(torch.frexp(torch.tensor(reach)).exponent.item()) + 1


def _one_a_scale(matrix_rank: int, scheme: Scheme, inputs: InputNumbers, *, with_smallest: bool) -> Tensor:
    """Returns the ranks of the largest absmax of every stored scale under one T, and of the smallest, ascending."""
    statistic_B = inputs.numbers(torch.arange(matrix_rank + 1))
    stored_B, _ = choose_scale(statistic_B, scheme, scale_of_matrix(matrix_rank, scheme, inputs))
    is_last_B = torch.ones_like(stored_B, dtype=torch.bool)
    is_last_B[:-1] = stored_B[1:] != stored_B[:-1]
    if with_smallest:
        is_last_B = is_last_B | is_last_B.roll(1)
    return is_last_B.nonzero().flatten()


def _cut(ranks_B: Tensor) -> Iterator[Tensor]:
    """Cuts rows into blocks of about a million values."""
    end = len(ranks_B)
    while end:
        count = max(1, _BLOCK_VALUES // (2 * (int(ranks_B[end - 1]) + 1)))
        yield ranks_B[max(0, end - count) : end]
        end -= min(count, end)


def _near_one_first(ranks: Tensor, inputs: InputNumbers) -> Tensor:
    near = ((ranks >> inputs.mantissa_bits) - 127).abs()
    return ranks[near.argsort(stable=True)]


def _level(scheme: Scheme) -> TwoLevel:
    assert isinstance(scheme.scale, LinearScale) and isinstance(scheme.scale.second_level, TwoLevel)
    return scheme.scale.second_level
