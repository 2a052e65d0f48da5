"""fp32 inputs of a power-of-two scale, factored and complete: every absmax for the scale, every value for the code.

All pairs would be 2^61. With a power of two as scale the ratio of a value to it is the value with another exponent, so
the codes of all values under the scale 1 are the codes of all ratios: 2.2e9 values. The scales of all 2^31 absmax need
a group each. Both take minutes to hours, so they are tried on demand.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from quantaudit.core.scheme import Scheme
from quantaudit.identity.domain import Block, InputNumbers, listed_block
from quantaudit.identity.fast_reference import choose_scale
from quantaudit.numerics import scales

_ROWS = 1 << 15
_VALUES = 1 << 19  # magnitudes, of both signs


def absmax_blocks(inputs: InputNumbers, start: int = 0) -> Iterator[Block]:
    """Yields every finite absmax from a rank on once, its group holding nothing else."""
    for first in range(start, inputs.num_ranks, _ROWS):
        ranks_B = torch.arange(first, min(first + _ROWS, inputs.num_ranks))
        yield listed_block(ranks_B, ranks_B.unsqueeze(1), inputs)


def ratio_blocks(scheme: Scheme, inputs: InputNumbers, start: int = 0) -> Iterator[Block]:
    """Yields every value of both signs, its magnitude from a rank on, under the largest absmax whose scale is 1."""
    rank = largest_of_scale_one(scheme, inputs)
    ranks_B = torch.tensor([rank])
    for first in range(start, rank + 1, _VALUES):
        magnitudes_M = torch.arange(first, min(first + _VALUES, rank + 1))
        yield listed_block(ranks_B, torch.cat([magnitudes_M, -1 - magnitudes_M]).unsqueeze(0), inputs)


def num_ratios(scheme: Scheme, inputs: InputNumbers) -> int:
    """Returns how many values `ratio_blocks` yields."""
    return 2 * (largest_of_scale_one(scheme, inputs) + 1)


def largest_of_scale_one(scheme: Scheme, inputs: InputNumbers) -> int:
    """Returns the rank of the largest absmax whose scale is 1, by bisection: exponents do not fall as absmax grows."""
    low, high = 0, inputs.num_ranks - 1
    while low < high:
        middle = (low + high + 1) // 2
        stored, _ = choose_scale(inputs.numbers(torch.tensor([middle])), scheme)
        if float(scales.decode_stored(stored, scheme.scale)) <= 1.0:
            low = middle
        else:
            high = middle - 1
    return low
